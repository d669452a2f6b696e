"""A data set before it is spread over clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.settings import Kind, explained
from coterie.data.columns import Standardise, TablePlan, targets_to_be_standardised, to_be_standardised
from coterie.data.federation import Domain
from coterie.data.scale import Scale

PER_SAMPLE = ("x", "y", "official", "client", "validation", "time")  # one entry for each sample


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

    def take(self, rows: NDArray[np.int64]) -> Dataset:
        """These samples only, with everything that is known of each."""
        known = {name: getattr(self, name) for name in PER_SAMPLE}
        return replace(self, **{name: values[rows] for name, values in known.items() if values is not None})

    def with_usual_scales(self, inputs: Standardise, targets: Standardise) -> Dataset:
        """To be standardised as is said, or as is usual for a user's own arrays."""
        x = to_be_standardised(self.x, self.scale) if inputs == "auto" else inputs
        y = targets_to_be_standardised(self.y) if targets == "auto" else targets
        return replace(self, standardise_x=x, standardise_y=y)

    def per_domain(self, values: NDArray[Any] | None, domains: int) -> NDArray[Any] | None:
        """What is known of each sample, for a federation that sees these samples through so many domains."""
        return None if values is None else np.tile(values, domains)
