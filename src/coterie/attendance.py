"""Who is asked: drawn from the run's seed, the same for every method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Federation
from coterie.seeds import Purpose, generator
from coterie.settings import Settings
from coterie.tasks import Roster


def crowd(federation: Federation, settings: Settings) -> tuple[Roster, Roster]:
    """Who trains, and who is kept back to come anew after it."""
    everyone = federation.roster
    many = settings.kept_back(len(federation))
    chosen = generator(settings.seed, Purpose.NEWCOMERS).choice(len(federation), many, replace=False)
    new = torch.zeros(len(federation), dtype=torch.bool)
    new[torch.from_numpy(chosen)] = True
    return Roster(everyone.ids[~new], everyone.n[~new]), Roster(everyone.ids[new], everyone.n[new])


def sample(roster: Roster, settings: Settings, t: int, attempt: int) -> Tensor:
    """Who takes part in round t: the same for every method under the same seed."""
    rng = generator(settings.seed, Purpose.COHORT, t, attempt)
    return some(roster, settings.per_round(len(roster.ids)), rng)


def some(roster: Roster, many: int, rng: np.random.Generator) -> Tensor:
    if many == len(roster.ids):
        return roster.ids
    return roster.ids[torch.from_numpy(np.sort(rng.choice(len(roster.ids), many, replace=False)))]


def audience(roster: Roster, settings: Settings, attempts: Sequence[int]) -> Roster:
    """Who is evaluated: everyone, or those drawn for a round so far; attempts: how often each round was tried."""
    if settings.evaluate_whom == "all" or settings.per_round(len(roster.ids)) == len(roster.ids):
        return roster
    met = torch.cat([sample(roster, settings, t, tries - 1) for t, tries in enumerate(attempts)]).unique()
    here = torch.isin(roster.ids, met)
    return Roster(roster.ids[here], roster.n[here])


def drop(ids: Tensor, settings: Settings, t: int, attempt: int) -> Tensor:
    """Which of these clients do not answer, when dropping out is simulated."""
    rng = generator(settings.seed, Purpose.DROPOUT, t, attempt)
    return ids[torch.from_numpy(rng.random(len(ids)) < settings.dropout)] if settings.dropout else ids[:0]
