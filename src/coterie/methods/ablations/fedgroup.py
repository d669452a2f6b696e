"""FedGroup's ablations: random groups (RCC), or random assignment of clients to groups (RAC).

Duan et al. 2021, Table III, in the authors' code. RCC, randomly selected cluster centers: m random clients are
pre-trained and are the groups; everyone else joins one as in FedGroup. RAC, randomly assigned clients: groups are found
as in FedGroup, but a client that was not clustered is put into a random one each time it is selected.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.constructors import dataclass
from coterie.core.types import STRICT
from coterie.methods.authors.fedgroup import FedGroupAuthors
from coterie.methods.contract import Ask
from coterie.methods.fedgroup import FedGroup, Groups
from coterie.methods.hard_clusters import assigned


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
