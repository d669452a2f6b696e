"""Hugging Face data sets (needs the extra `huggingface`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError, suggest
from coterie.core.settings import Kind
from coterie.data.bridges.pytorch import (
    Arrays,
    array_of,
    joined,
    stacked,
    with_owners,
)
from coterie.data.dataset import Dataset
from coterie.data.table import Cells


def from_huggingface(
    dataset: Any,
    *,
    x: str | Sequence[str],
    y: str,
    client: str | None = None,
    test: Any = None,
    name: str | None = None,
    words: bool = False,
    task: Kind | None = None,
) -> Dataset:
    """A Hugging Face data set, or the "train" and "test" of a dictionary of them (its other splits are not used).

    x: a column of images, arrays or lists of one length, or columns of numbers. y: class labels, whole numbers or
    strings are labels, floats are targets. client: the column of the owners. Bytes are divided by 255.
    """
    if isinstance(dataset, Mapping):
        if "train" not in dataset:
            raise CoterieError(
                f"data: no 'train' among the splits {', '.join(dataset)}; pass one, as dataset['...']",
                code="data-split",
            )
        test = dataset.get("test") if test is None else test
        dataset = dataset["train"]
    given = {"dataset": dataset} if test is None else {"dataset": dataset, "test": test}
    parts = [table_of(each, x, y, title, words) for title, each in given.items()]
    own: list[Any] = []
    for title, each in given.items():
        own += _values(each, client, f"{title}, client").full() if client is not None else []
    called = name or getattr(dataset.info, "dataset_name", None) or "own data"
    data = joined(parts, list(given), called, words, classes_of(dataset, y), task)
    return with_owners(data, len(parts[0][1]), own if client is not None else None)


def datasets_of(dataset: Any, title: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise CoterieError(
            "data: Hugging Face datasets is missing; pip install 'coterie[huggingface]'", code="extra-missing"
        ) from None
    if not isinstance(dataset, datasets.Dataset):
        raise CoterieError(
            f"data: {title}: expected a datasets.Dataset, not a {type(dataset).__name__} (a streamed one has no "
            "numbered samples; load it without streaming)",
            code="data-type",
        )
    return datasets


def classes_of(dataset: Any, y: str) -> int | None:
    """How many classes the column declares."""
    return getattr(dataset.features[y], "num_classes", None)


def _values(dataset: Any, column: str, title: str) -> Cells:
    """The values of a column, as Python's own."""
    return Cells(list(_only(dataset, column, title).with_format(None)[:][column]), f"{title} '{column}'")


def _only(dataset: Any, column: str, title: str) -> Any:
    if column not in dataset.column_names:
        raise CoterieError(
            f"data: {title}: there is no column '{column}'.{suggest(column, dataset.column_names)}",
            code="data-column-unknown",
        )
    return dataset.select_columns([column])


def table_of(dataset: Any, x: str | Sequence[str], y: str, title: str, words: bool) -> Arrays:
    """The inputs and labels of a Hugging Face data set."""
    image = datasets_of(dataset, title).Image
    labels = array_of(_values(dataset, y, f"{title}, y").full(), f"{title}, y '{y}'")
    if isinstance(x, str):
        only = _only(dataset, x, f"{title}, x")
        where = f"{title}, x '{x}'"
        if not len(only):
            raise CoterieError(f"data: {title} has no samples", code="data-empty")
        if isinstance(dataset.features[x], image):
            rows = only.with_format(None)
            return stacked([array_of(row[x], f"{where}, sample {i}") for i, row in enumerate(rows)], where), labels
        found = _numbers(only, x, where)
        return found.astype(np.float32) if found.ndim == 1 and not words else found, labels  # a number, not a pixel
    columns = [_numbers(_only(dataset, name, f"{title}, x"), name, f"{title}, x '{name}'") for name in x]
    for name, column in zip(x, columns, strict=True):
        if column.ndim != 1:
            raise CoterieError(
                f"data: {title}, x '{name}': one number per sample is needed where x names columns", code="data-shape"
            )
    if not columns:
        raise CoterieError("data: x names no column", code="data-column-unknown")
    return np.stack([column.astype(np.float32) for column in columns], 1), labels


def _numbers(only: Any, column: str, title: str) -> NDArray[Any]:
    """A column of numbers, or of arrays of them, as stored."""
    feature = only.features[column]
    while hasattr(feature, "feature") or isinstance(feature, list):
        feature = feature[0] if isinstance(feature, list) else feature.feature
    try:
        kind = np.dtype(feature.dtype)
    except (TypeError, AttributeError):
        raise CoterieError(
            f"data: {title} has no numbers, arrays or images but {feature}; encode it first", code="data-type"
        ) from None
    # Without the type, the formatter would make words of bytes.
    values: NDArray[Any] = np.asarray(only.with_format("numpy", dtype=kind)[:][column])
    if values.dtype == object:  # lists of several lengths, or missing values
        stored = only.with_format(None)[:][column]
        shapes = [None if value is None else np.shape(found) for value, found in zip(stored, values, strict=True)]
        odd = next((i for i, shape in enumerate(shapes) if shape is None or shape != shapes[0]), 0)
        Cells((), title).refuse(odd, f"{stored[odd]!r} is missing or of another length; pad, fill in or drop it")
    return values
