"""Who is asked: drawn from the run's seed, the same for every method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.clients import Clients
from coterie.seeds import Purpose, generator
from coterie.settings import Settings, how_many
from coterie.tasks import Roster


def crowd(clients: Clients, settings: Settings) -> tuple[Roster, Roster]:
    """Who trains, and who is kept back to come anew after it."""
    return _parted(clients.roster, settings)


def _parted(everyone: Roster, settings: Settings) -> tuple[Roster, Roster]:
    if not settings.newcomers:
        return everyone, Roster(everyone.ids[:0], everyone.n[:0])
    many = settings.kept_back(len(everyone.ids))
    chosen = generator(settings.seed, Purpose.NEWCOMERS).choice(len(everyone.ids), many, replace=False)
    new = torch.zeros(len(everyone.ids), dtype=torch.bool)
    new[torch.from_numpy(chosen)] = True
    return Roster(everyone.ids[~new], everyone.n[~new]), Roster(everyone.ids[new], everyone.n[new])


class Attendance:
    """Who is there: read anew whenever it is asked for, and worked out only where the roster is another one."""

    def __init__(self, clients: Clients, settings: Settings) -> None:
        self._clients, self._settings = clients, settings
        self._read: Roster | None = None

    def _now(self) -> tuple[Roster, Roster]:
        found = self._clients.roster
        if found is not self._read:
            self._read, self._crowd = found, _parted(found, self._settings)
        return self._crowd

    @property
    def roster(self) -> Roster:
        """Those that can take part in a round now."""
        return self._now()[0]

    @property
    def kept_back(self) -> Roster:
        """Those that come anew after training."""
        return self._now()[1]


def present(key: str, share: int | float, there: int) -> int:
    """A share or a count of the clients that are there: at most all of them, who may be fewer than there have been."""
    return min(share, there) if isinstance(share, int) else min(how_many(key, share, there), there)


def sample(roster: Roster, settings: Settings, t: int, attempt: int) -> Tensor:
    """Who takes part in round t: the same for every method under the same seed."""
    rng = generator(settings.seed, Purpose.COHORT, t, attempt)
    return some(roster, present("participation", settings.participation, len(roster.ids)), rng)


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
