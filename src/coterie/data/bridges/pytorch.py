"""torch data sets; and samples of any library as arrays, arrays as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from coterie.core.errors import CoterieError
from coterie.core.settings import Kind
from coterie.data.clients import split_at_random
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation, Ragged
from coterie.data.images import pixels
from coterie.data.table import Cells, inputs, outcome, owners

Ints: TypeAlias = NDArray[np.int64]
Arrays: TypeAlias = tuple[NDArray[Any], NDArray[Any]]


def array_of(value: Any, title: str) -> NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).numpy())
    if hasattr(value, "convert") and hasattr(value, "mode"):  # a PIL image
        return pixels(value, title)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biufU":
        raise CoterieError(
            f"data: {title}: this {type(value).__name__} is no array, image or number; transform it first",
            code="data-type",
        )
    return array


def stacked(arrays: Sequence[NDArray[Any]], title: str) -> NDArray[Any]:
    """Samples of one shape and kind as one array."""
    for row, array in enumerate(arrays):
        if array.shape != arrays[0].shape or (array.dtype.kind == "U") != (arrays[0].dtype.kind == "U"):
            raise CoterieError(
                f"data: {title}: the sample at place {row} is {array.dtype} of shape {array.shape}, the first one is "
                f"{arrays[0].dtype} of shape {arrays[0].shape}; bring all to one shape and kind (images: one size, "
                "all grey or all rgb)",
                code="data-shape",
            )
    return np.stack(arrays)


def joined(
    parts: Sequence[Arrays],
    titles: Sequence[str],
    name: str,
    words: bool,
    classes: int | None = None,
    task: Kind | None = None,
) -> Dataset:
    """One data set of the samples of several."""
    first, first_y = parts[0]
    for (x, y), title in zip(parts, titles, strict=True):
        if len(x) != len(y):
            raise CoterieError(f"data: {title} has {len(x)} inputs but {len(y)} labels", code="data-shape")
        if x.shape[1:] != first.shape[1:] or x.dtype.kind != first.dtype.kind:
            raise CoterieError(
                f"data: {title} has {x.dtype} inputs of shape {x.shape[1:]}, {titles[0]} has {first.dtype} of "
                f"{first.shape[1:]}; bring both to one shape and kind",
                code="data-shape",
            )
        if y.shape[1:] != first_y.shape[1:] or _sort(y) != _sort(first_y):
            raise CoterieError(
                f"data: {title} has {_sort(y)} of shape {y.shape[1:]} for y, {titles[0]} has {_sort(first_y)} of "
                f"{first_y.shape[1:]}; labels or targets must be of one kind",
                code="data-labels",
            )
    x = first if len(parts) == 1 else np.concatenate([part[0] for part in parts])
    tensor, scale = inputs(x, f"{name}, x", words=words, channels="first")
    labels = Cells(np.concatenate([part[1] for part in parts]), f"{name}, y")
    return Dataset(name, tensor, *outcome(labels, task, classes), scale)


def _sort(y: NDArray[Any]) -> str:
    return {"f": "floats", "U": "strings"}.get(y.dtype.kind, "whole numbers")


def with_owners(data: Dataset, trained: int, client: Sequence[Any] | None) -> Dataset:
    """The data set with its first samples for training, the rest as official test set, and with owners."""
    official = np.arange(len(data.y)) >= trained
    owner, names = (None, None) if client is None else owners(Cells(client, f"{data.name}, client"))
    if owner is not None and len(owner) != len(data.y):
        raise CoterieError(
            f"data: client has {len(owner)} owners, the data {len(data.y)} samples, test set included",
            code="data-shape",
        )
    return replace(data, official=official if official.any() else None, client=owner, client_names=names)


def held_out_at_random(rows: Sequence[Ints], test: float, seed: int) -> tuple[list[Ints], list[Ints]]:
    """Of each client a share at random: the choice that `Federation.from_arrays` makes."""
    splits = [split_at_random(len(mine), test, seed, client) for client, mine in enumerate(rows)]
    train = [mine[kept] for mine, (kept, _) in zip(rows, splits, strict=True)]
    return train, [mine[held] for mine, (_, held) in zip(rows, splits, strict=True)]


def federation_of(data: Dataset, train: Sequence[Ints], test: Sequence[Ints], **more: Any) -> Federation:
    return Federation(
        (data.domain,), Ragged.of(train), Ragged.of(test), data.kind, outputs=data.classes, name=data.name, **more
    )


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
