"""How many clusters: a number, or a rule that reads it off what clients learn from a common start."""

from __future__ import annotations

from typing import TypeAlias

import torch
from pydantic import PositiveInt
from torch import Tensor

from coterie.clustering.cluster_count import CountRule, choose_k
from coterie.core.cohort import Cohort, Roster
from coterie.core.errors import CoterieError, QuorumError
from coterie.core.formatting import counted

ClusterCount: TypeAlias = PositiveInt | CountRule

MOST = 12  # a rule chooses fewer clusters
FEWER = "Write a smaller k, or find out why the others did not answer."


def enough_clients(k: ClusterCount, roster: Roster) -> ClusterCount:
    """k, if there are that many clients to be clustered."""
    if isinstance(k, int) and k > len(roster.ids):
        raise CoterieError(
            f"method.k: {k} clusters for {len(roster.ids)} clients; at most one cluster per client",
            code="config-invalid-value",
        )
    return k


def too_few(k: ClusterCount, cohort: Cohort) -> bool:
    """Whether fewer clients are there now than clusters are to be found: there were enough, but some have left."""
    return isinstance(k, int) and k > len(cohort.roster.ids)


def wait_for_enough(k: ClusterCount, cohort: Cohort) -> None:
    """A clustering that all later rounds build on is not made of fewer clients than clusters."""
    if too_few(k, cohort):
        here = counted(len(cohort.roster.ids), "client")
        said = f"round {cohort.round + 1}: {here} connected, too few to find {k} clusters among"
        raise QuorumError(said, advice=FEWER)


def enough_answers(k: ClusterCount, answered: Tensor, cohort: Cohort) -> None:
    """Nor is it made of fewer answers than clusters, however many clients are there."""
    if isinstance(k, int) and len(answered) < k:
        here = counted(len(answered), "client")
        said = f"round {cohort.round + 1}: {here} answered, too few to find {k} clusters among"
        raise QuorumError(f"{said}; later rounds would keep to these clusters", advice=FEWER)


def count(points: Tensor, k: ClusterCount, weights: Tensor, cohort: Cohort) -> int:
    """k, or what its rule says of the points, which the round then tells of."""
    if isinstance(k, int):
        return k
    cohort.counted.append(choose_k(points, weights, cohort.rng, k, MOST - 1))
    return cohort.counted[-1].k


def at_least(wanted: int, cohort: Cohort) -> Tensor:
    """The cohort and, where it is smaller than wanted, others drawn at random: a clustering needs to see every kind."""
    others = cohort.roster.ids[~torch.isin(cohort.roster.ids, cohort.ids)]
    more = min(wanted - len(cohort.ids), len(others))
    if more <= 0:
        return cohort.ids
    drawn = torch.from_numpy(cohort.rng.choice(len(others), more, replace=False))
    return torch.cat([cohort.ids, others[drawn]]).sort().values


def first_clients(k: ClusterCount, alpha: int, cohort: Cohort) -> Tensor:
    """Those whose models are clustered first: the cohort and, where it is small, others, to be alpha * k."""
    wait_for_enough(k, cohort)
    return at_least(0 if k == 1 else alpha * (k if isinstance(k, int) else MOST), cohort)
