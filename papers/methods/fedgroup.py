"""FedGroup and FedGrouProx as in their authors' code: everyone joins a group before the first round.

The client cold start comes right after the group cold start, for all clients (cold_start: all_before), also for
those that are selected later. Clients are pre-trained for 50 steps of batch 10: write pretrain: {steps: 50, batch: 10}.

FedGroup's ablations: random groups (RCC), or random assignment of clients to groups (RAC).

Duan et al. 2021, Table III, in the authors' code. RCC, randomly selected cluster centers: m random clients are
pre-trained and are the groups; everyone else joins one as in FedGroup. RAC, randomly assigned clients: groups are found
as in FedGroup, but a client that was not clustered is put into a random one each time it is selected.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort
from coterie.core.tasks import Fit
from coterie.methods.contract import Ask, admitted
from coterie.methods.fedgroup import FedGroup, Groups
from coterie.methods.hard_clusters import assigned


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


@dataclass(frozen=True, config=STRICT)
class FedGroupRCC(FedGroupAuthors):
    """FedGroup whose groups are made of m random clients (ablation)."""

    def group_cold_start(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """m clients are drawn instead of alpha * m."""
        return super(FedGroupRCC, dataclasses.replace(self, alpha=1)).group_cold_start(state, cohort, ask)

    def cluster(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """Each of them is a group."""
        return torch.arange(len(updates))


@dataclass(frozen=True, config=STRICT)
class FedGroupRAC(FedGroupAuthors):
    """FedGroup that puts clients into a random group each time they are selected (ablation)."""

    def group_cold_start(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """As in FedGroup; other clients join a group only when they are selected."""
        return FedGroup.group_cold_start(self, state, cohort, ask)

    def meet(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """A client that was not clustered is put into a random group in every round."""
        others = cohort.ids[~torch.isin(cohort.ids, state.clustered)]
        return assigned(state, others, torch.from_numpy(cohort.rng.integers(len(state.centers), size=len(others))))
