"""A client's own data, and how to look it up by client id."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from coterie.data.scale import TargetScale


class ClientData(Protocol):
    """A client's own data: inputs and labels for training and testing."""

    @property
    def train(self) -> tuple[Tensor, Tensor]: ...

    @property
    def test(self) -> tuple[Tensor, Tensor]: ...

    @property
    def target(self) -> TargetScale | None:
        """How targets of a regression are standardised, if they are."""

    @property
    def target_mean(self) -> Tensor:
        """(targets,) the mean of the training targets of a regression, in original units."""


class ClientDataSource(Protocol):
    """Where clients' data is found by their ids."""

    def client(self, client: int) -> ClientData:
        """The data of one client."""


@runtime_checkable
class ChangingDataSource(Protocol):
    """Where clients' data is found that may change by round."""

    def at(self, round: int) -> ClientDataSource:
        """The data as it is in a round, counted from 0."""


def at_round(source: ClientDataSource, round: int) -> ClientDataSource:
    """The data as it is in a round."""
    return source.at(round) if isinstance(source, ChangingDataSource) else source


Samples: TypeAlias = tuple[Tensor, Tensor]


def samples_of(data: ClientData, split: Literal["train", "val", "test"]) -> Samples:
    """The samples of one split."""
    if split == "val":  # a client need not have a validation split
        found: Samples | None = getattr(data, "val", None)
        return (data.test[0][:0], data.test[1][:0]) if found is None else found
    return data.test if split == "test" else data.train
