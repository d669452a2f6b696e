"""Which clients take part: drawn from the run's seed, the same for every method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient, Clients, Roster, clients_at
from coterie.data.federate import with_validation
from coterie.data.federation import Federation
from coterie.training.settings import Settings, how_many


def split_newcomers(clients: Clients, settings: Settings) -> tuple[Roster, Roster]:
    """The clients that train, and the newcomers that join after training."""
    return _split(clients.roster, settings)


def _split(everyone: Roster, settings: Settings) -> tuple[Roster, Roster]:
    if not settings.newcomers:
        return everyone, everyone.only(torch.zeros(len(everyone.ids), dtype=torch.bool))
    # Who was added to a run, or forgotten, does not change who of the others was held out.
    first = everyone.ids if everyone.founders is None else torch.arange(everyone.founders)
    many = settings.newcomer_count(len(first))
    chosen = generator(settings.seed, Purpose.NEWCOMERS).choice(len(first), many, replace=False)
    new = torch.isin(everyone.ids, first[torch.from_numpy(chosen)])
    return everyone.only(~new), everyone.only(new)


def training_data(federation: Federation, settings: Settings) -> Federation:
    """The clients' data as a run uses it: with validation samples held out, and the scales of inputs and targets
    measured on what is trained on: neither on validation samples nor on newcomers."""
    held = with_validation(federation, settings.validation, settings.seed)
    if held is federation and not settings.newcomers:
        return federation
    return held.measured(split_newcomers(held, settings)[0].ids)


class ClientSampler:
    """Draws the clients of each round from those connected now. Cached; recomputed when the roster changes."""

    def __init__(
        self, clients: Clients, settings: Settings, key: int | None = None, unscored: Tensor | None = None
    ) -> None:
        """key: see `sample_cohort`. unscored: clients whose scores do not count."""
        self._clients, self._settings, self._key, self._unscored = clients, settings, key, unscored
        self._seen: Roster | None = None

    def _now(self) -> tuple[Roster, Roster]:
        found = self._clients.roster
        if found is not self._seen:
            self._seen, self._parts = found, _split(found, self._settings)
        return self._parts

    @property
    def roster(self) -> Roster:
        """The clients that can take part in a round now."""
        return self._now()[0]

    @property
    def newcomers(self) -> Roster:
        """The clients that join after training."""
        return self._scored(self._now()[1])

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of all clients by id, if they have names."""
        return self._clients.names

    def cohort(self, t: int, attempt: int) -> Tensor:
        """The ids of the clients of round t."""
        return sample_cohort(self.roster, self._settings, t, attempt, self._key)

    def to_evaluate(self, attempts: Sequence[int]) -> Roster:
        """The clients to evaluate; see `clients_to_evaluate`."""
        return self._scored(clients_to_evaluate(self.roster, self._settings, attempts, self._key))

    def _scored(self, roster: Roster) -> Roster:
        if self._unscored is None or not len(self._unscored):
            return roster
        return roster.only(~torch.isin(roster.ids, self._unscored))


def roster_at(clients: Clients, roster: Roster, t: int) -> Roster:
    """What is known of these clients in round t, where their data changes by round."""
    now = clients_at(clients, t)
    if now is clients:
        return roster
    truth = None
    if now.truth is not None and now.mixture is None:  # its clusters have the same numbers in all rounds
        truth = ByClient(roster.ids, torch.from_numpy(now.truth[roster.ids.numpy()]))
    return replace(roster, n=now.sizes(roster.ids), truth=truth)


def available(key: str, share: int | float, connected: int) -> int:
    """A share or a count of the connected clients, as a count: at most all of them."""
    return min(share, connected) if isinstance(share, int) else min(how_many(key, share, connected), connected)


def sample_cohort(roster: Roster, settings: Settings, t: int, attempt: int, key: int | None = None) -> Tensor:
    """The clients of round t: the same for every method under the same seed. key: a secret, in place of the seed."""
    rng = generator(settings.seed if key is None else key, Purpose.COHORT, t, attempt)
    if settings.sampling == "poisson":
        return roster.ids[torch.from_numpy(rng.random(len(roster.ids)) < settings.participation)]
    return draw(roster, available("participation", settings.participation, len(roster.ids)), rng)


def draw(roster: Roster, count: int, rng: np.random.Generator) -> Tensor:
    """So many clients at random, by ascending id."""
    if count == len(roster.ids):
        return roster.ids
    return roster.ids[torch.from_numpy(np.sort(rng.choice(len(roster.ids), count, replace=False)))]


def clients_to_evaluate(roster: Roster, settings: Settings, attempts: Sequence[int], key: int | None = None) -> Roster:
    """Every client, or with `evaluate_whom: met` those drawn for a round so far.

    attempts: how often each of the rounds so far was tried.
    """
    everyone = settings.evaluate_whom == "all" or settings.per_round(len(roster.ids)) == len(roster.ids)
    if everyone or roster.founders is not None:  # cohorts of before cannot be drawn again from other clients
        return roster
    drawn = [sample_cohort(roster, settings, t, tries - 1, key) for t, tries in enumerate(attempts)]
    met = torch.cat(drawn).unique()
    here = torch.isin(roster.ids, met)
    return roster.only(here)
