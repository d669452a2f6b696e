"""FedGroup and FedGrouProx as in their authors' code: everyone joins a group before the first round.

The client cold start comes right after the group cold start, for all clients (cold_start: all_before), also for
those that are selected later. Clients are pre-trained for 50 steps of batch 10: write pretrain: {steps: 50, batch: 10}.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.constructors import dataclass
from coterie.core.tasks import Fit
from coterie.core.types import STRICT
from coterie.methods.contract import Ask, admitted
from coterie.methods.fedgroup import FedGroup, Groups


@dataclass(frozen=True, config=STRICT)
class FedGroupAuthors(FedGroup):
    """FedGroup as in its authors' code: everyone joins a group before the first round."""

    cold_start: Literal["on_selection", "all_before"] = "all_before"  # when the rest joins a group
    mu: NonNegativeFloat = 0.0  # of a proximal term towards the group's model; FedGrouProx

    def group_cold_start(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Algorithm 3, and then the client cold start of everyone else."""
        state = super().group_cold_start(state, cohort, ask)
        if self.cold_start == "on_selection":
            return state
        return admitted(self, state, dataclasses.replace(cohort, ids=cohort.roster.ids), ask)

    def fit(self, state: Groups, on: Tensor) -> Fit:
        """A member's training, held near its group's model where mu says so."""
        fit = super().fit(state, on)
        return dataclasses.replace(fit, anchor=fit.start, mu=self.mu) if self.mu else fit


@dataclass(frozen=True, config=STRICT)
class FedGrouProxAuthors(FedGroupAuthors):
    """FedGrouProx as in its authors' code: everyone joins a group before the first round."""

    mu: NonNegativeFloat = 1.0
