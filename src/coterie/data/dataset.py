"""A data set before it is spread over clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.settings import Kind, explained
from coterie.data.domain import Domain
from coterie.data.encoding import TablePlan
from coterie.data.scale import Scale


@explained
@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as stored; `scale` makes inputs of them. Held once, whatever is made of it."""

    name: str
    x: Tensor  # (n, channels, height, width), (n, channels, length), (n, features) or (n, words)
    y: Tensor  # (n,) int64 labels, or (n, targets) floating point
    classes: int  # or targets of a regression
    scale: Scale | None = Scale()  # None: inputs are the stored numbers themselves
    official: NDArray[np.bool_] | None = None  # (n,) the samples of its official test set, where it has one
    client: NDArray[np.int64] | None = None  # (n,) natural clients 0..N-1, where samples have an owner
    client_names: tuple[str, ...] | None = None  # (N,)
    features: tuple[str, ...] | None = None  # what the inputs are, where they have names
    left_out: tuple[str, ...] = ()  # columns that are no features (`remarks` says why)
    standardise_x: bool = False  # inputs, by the training samples, once it is known which these are
    standardise_y: bool = False  # targets of a regression, likewise
    class_names: tuple[str, ...] | None = None  # where labels are names, and numbered in their order
    validation: NDArray[np.bool_] | None = None  # (n,) samples that are marked for validation, where any are
    plan: TablePlan | None = None  # how columns with holes or categories become inputs, once training rows are known
    remarks: tuple[str, ...] = ()  # what to say of its columns
    time: NDArray[np.float64] | None = None  # (n,) when each sample was: a client is tested on its latest
    groups: tuple[str | None, ...] | None = None  # (N,) the group that each natural client is said to be in

    @property
    def kind(self) -> Kind:
        """Labels or targets."""
        return "regression" if self.y.is_floating_point() else "classification"

    @property
    def domain(self) -> Domain:
        """The samples as they are."""
        return Domain(self.x, self.y, self.scale)
