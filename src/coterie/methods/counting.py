"""How many clusters: a number, or a rule that reads it off what clients learn from a common start."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional

from coterie.clustering import CountRule, choose_k
from coterie.errors import CoterieError, QuorumError
from coterie.methods.contract import Ask
from coterie.model import Model
from coterie.tasks import All, Cohort, Fit, Local, Roster

ClusterCount: TypeAlias = PositiveInt | CountRule

MOST = 12  # models that are drawn while a rule has not chosen yet; it chooses fewer


def enough_clients(k: ClusterCount, roster: Roster) -> ClusterCount:
    """k, if there are that many clients to be clustered."""
    if isinstance(k, int) and k > len(roster.ids):
        raise CoterieError(f"method.k: {k} clusters for {len(roster.ids)} clients; at most one cluster per client")
    return k


def too_few(k: ClusterCount, cohort: Cohort) -> bool:
    """Whether fewer clients are there now than clusters are to be found: there were enough, but some have left."""
    return isinstance(k, int) and k > len(cohort.roster.ids)


def wait_for_enough(k: ClusterCount, cohort: Cohort) -> None:
    """A clustering that all later rounds build on is not made of fewer clients than clusters."""
    if too_few(k, cohort):
        raise QuorumError(
            f"round {cohort.round + 1}: {len(cohort.roster.ids)} clients are there, too few to find {k} clusters among"
        )


def random_models(k: ClusterCount, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
    """k independent random models; as many as a rule may choose where it has not chosen yet."""
    enough_clients(k, roster)
    return torch.stack([model.init(rng) for _ in range(k if isinstance(k, int) else MOST)])


def count(points: Tensor, k: ClusterCount, weights: Tensor, rng: np.random.Generator) -> int:
    """k, or what its rule says of the points."""
    return k if isinstance(k, int) else choose_k(points, weights, rng, k, MOST - 1)


def chosen_rows(centers: Tensor, k: ClusterCount, local: Local, cohort: Cohort, ask: Ask) -> Tensor:
    """The centers to begin with: all of them, or the first time as many as a rule finds among the updates."""
    if isinstance(k, int) or len(centers) < MOST:
        return centers
    reply = ask(Fit(All(centers[0]), local=local))
    if reply.theta is None:
        return centers
    directions = functional.normalize(reply.theta - centers[0])
    return centers[: count(directions, k, torch.ones(len(directions), dtype=torch.float64), cohort.rng)]
