"""torch data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Subset, TensorDataset

from coterie.core.errors import CoterieError
from coterie.core.settings import Kind
from coterie.data.bridges.convert import (
    Arrays,
    Ints,
    array_of,
    federation_of,
    held_out_at_random,
    joined,
    stacked,
    with_owners,
)
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation


def from_torch(
    dataset: Any,
    *,
    test: Any = None,
    name: str = "own data",
    client: Sequence[Any] | None = None,
    words: bool = False,
    task: Kind | None = None,
) -> Dataset:
    """Any torch data set of (x, y): tensors, arrays, PIL images or numbers. It is read once, transforms included.

    `test`: a second one, the official test set. `client`: the owner of every sample, those of `test` after the others.
    Bytes are divided by 255; `words` are handed to the model as whole numbers. `task`: "classification" or
    "regression"; None: whole numbers and names are labels, other numbers targets.
    """
    parts = [_torch_arrays(dataset, None, "dataset")]
    if test is not None:
        parts.append(_torch_arrays(test, None, "test"))
    return with_owners(
        joined(parts, ["dataset", "test"][: len(parts)], name, words, task=task), len(parts[0][1]), client
    )


def federation_from_torch(
    clients: Sequence[Any],
    tests: Sequence[Any] | None = None,
    *,
    test: float = 0.2,
    truth: Sequence[int] | None = None,
    seed: int = 0,
    name: str = "own data",
    words: bool = False,
    task: Kind | None = None,
) -> Federation:
    """One torch data set per client, for example Subsets; what several of them share is read and held once.

    `tests`: the clients' test sets; without them the share `test` of each client is held out, as `from_arrays` does.
    """
    if tests is not None and len(tests) != len(clients):
        raise CoterieError(
            f"data: {len(tests)} test sets for {len(clients)} clients; give one each, or leave them out",
            code="data-shape",
        )
    if truth is not None and len(truth) != len(clients):
        raise CoterieError(f"data: truth names {len(truth)} clients, the data has {len(clients)}", code="data-shape")
    given = [(f"client {i}", each) for i, each in enumerate(clients)]
    given += [(f"test set of client {i}", each) for i, each in enumerate(tests or ())]
    if not given:
        raise CoterieError("data: a federation needs at least one client", code="data-empty")
    bases = [_base(each, title) for title, each in given]
    titles: dict[int, str] = {}  # the first that uses it
    whole: dict[int, Any] = {}
    used: dict[int, list[Ints]] = {}
    for (title, _), (base, rows) in zip(given, bases, strict=True):
        titles.setdefault(id(base), title)
        whole[id(base)] = base
        used.setdefault(id(base), []).append(rows)
    kept = {key: np.unique(np.concatenate(rows)) for key, rows in used.items()}
    parts = [_torch_arrays(whole[key], rows, titles[key]) for key, rows in kept.items()]
    starts = dict(zip(kept, np.cumsum([0, *(len(rows) for rows in kept.values())]), strict=False))
    lists = [starts[id(base)] + np.searchsorted(kept[id(base)], rows) for base, rows in bases]
    data = joined(parts, list(titles.values()), name, words, task=task)
    own = lists[: len(clients)]
    train, held = held_out_at_random(own, test, seed) if tests is None else (own, lists[len(clients) :])
    return federation_of(data, train, held, truth=None if truth is None else np.asarray(truth, dtype=np.int64))


def _base(dataset: Any, title: str) -> tuple[Any, Ints]:
    """The data set below all Subsets, and which of its samples these are."""
    rows = np.arange(_length(dataset, title))
    while isinstance(dataset, Subset):
        rows = np.asarray(dataset.indices, dtype=np.int64)[rows]
        dataset = dataset.dataset
    return dataset, rows


def _length(dataset: Any, title: str) -> int:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise CoterieError(
            f"data: {title}: a {type(dataset).__name__} has no length or no numbered samples; give a torch data set "
            "with __len__ and __getitem__",
            code="data-type",
        )
    return len(dataset)


def _torch_arrays(dataset: Any, rows: Ints | None, title: str) -> Arrays:
    """The samples of these rows (all of them) as arrays."""
    length = _length(dataset, title)
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        x, y = (array_of(tensor, title) for tensor in dataset.tensors)
        return (x, y) if rows is None else (x[rows], y[rows])
    xs, ys = [], []
    for row in range(length) if rows is None else rows.tolist():
        sample = dataset[row]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            what = f"{len(sample)} things" if isinstance(sample, tuple | list) else f"a {type(sample).__name__}"
            raise CoterieError(f"data: {title}, sample {row} is {what}; expected (x, y)", code="data-shape")
        xs.append(array_of(sample[0], f"{title}, x of sample {row}"))
        ys.append(array_of(sample[1], f"{title}, y of sample {row}"))
    if not xs:
        raise CoterieError(f"data: {title} has no samples", code="data-empty")
    return stacked(xs, f"{title}, x"), stacked(ys, f"{title}, y")
