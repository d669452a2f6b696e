"""Who takes part: everyone the server knows, and those of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.client_table import ByClient
from coterie.core.constructors import explained


@explained
@dataclass(frozen=True, eq=False)
class Roster:
    """Everyone the server knows: client ids, ascending, and the size of their training data."""

    ids: Tensor
    n: Tensor
    groups: ByClient | None = None  # the numbers of the groups that the user has given, of clients that have one
    truth: ByClient | None = None  # the true clusters of a simulation, for comparison only (method `oracle`)
    founders: int | None = None  # ids below this were there when the run began; None: all that there are

    def only(self, here: Tensor) -> Roster:
        """Those of the clients for which `here` (n,) is true."""
        return replace(self, ids=self.ids[here], n=self.n[here])


def grouped(groups: Sequence[str | None] | None) -> ByClient | None:
    """The group of each client 0..N-1 as a number, in the order of the sorted names; who has no group is left out."""
    if groups is None:
        return None
    number = {name: i for i, name in enumerate(sorted({name for name in groups if name is not None}))}
    known = [client for client, name in enumerate(groups) if name is not None]
    values = [number[name] for name in groups if name is not None]
    return ByClient(torch.tensor(known, dtype=torch.int64), torch.tensor(values, dtype=torch.int64))


def crisp(truth: Sequence[int] | np.ndarray | None, mixture: object | None) -> ByClient | None:
    """The true cluster of each client 0..N-1; None where it is unknown, or clients are mixtures."""
    if truth is None or mixture is not None:
        return None
    _, number = np.unique(np.asarray(truth), return_inverse=True)
    return ByClient(torch.arange(len(number)), torch.from_numpy(number.astype(np.int64)))


@explained
@dataclass(frozen=True)
class Counted:
    """A number of clusters that a rule chose, how each number scored, and why it is this one."""

    k: int
    rule: str
    clients: int  # from which the rule chose
    scores: tuple[tuple[int, float], ...]  # (k, its score), as far as they were worth computing
    reason: str

    def __str__(self) -> str:
        scores = ", ".join(f"{k}: {score:.2f}" for k, score in self.scores)
        return f"k = {self.k} by {self.rule}, from {self.clients} clients: {self.reason}" + (
            f" (score by k: {scores})" if scores else ""
        )


@explained
@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round, the method's random generator for it, and a record of how it chose k."""

    ids: Tensor
    round: int  # from 0
    roster: Roster
    rng: np.random.Generator = field(repr=False)
    counted: list[Counted] = field(default_factory=list, repr=False)
