"""Samples of any library as arrays, and arrays as a data set or a federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.settings import Kind
from coterie.data.arrays import split_at_random
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation
from coterie.data.ragged import Ragged
from coterie.data.readers.columns import Column, inputs, outcome, owners
from coterie.data.readers.images import pixels

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
    labels = Column(np.concatenate([part[1] for part in parts]), f"{name}, y")
    return Dataset(name, tensor, *outcome(labels, task, classes), scale)


def _sort(y: NDArray[Any]) -> str:
    return {"f": "floats", "U": "strings"}.get(y.dtype.kind, "whole numbers")


def with_owners(data: Dataset, trained: int, client: Sequence[Any] | None) -> Dataset:
    """The data set with its first samples for training, the rest as official test set, and with owners."""
    official = np.arange(len(data.y)) >= trained
    owner, names = (None, None) if client is None else owners(Column(client, f"{data.name}, client"))
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
