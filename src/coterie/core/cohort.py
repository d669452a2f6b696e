"""Who takes part: everyone the server knows, and those of a round."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from coterie.core.constructors import explained


@explained
@dataclass(frozen=True, eq=False)
class Roster:
    """Everyone the server knows: client ids, ascending, and the size of their training data."""

    ids: Tensor
    n: Tensor


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
