"""Which clients take part: by ascending id, other ones in every round and in every attempt at a round."""

from __future__ import annotations

import torch

from coterie.core.tables import Roster
from coterie.layers.dropout import Dropout, dropouts
from coterie.training.sampling import available, sample_cohort
from coterie.training.settings import Settings

IDS = torch.arange(3, 303, 3)  # 100 clients whose ids are not their positions
ROSTER = Roster(IDS, torch.full((100,), 5))
SETTINGS = Settings(rounds=5, seed=1, participation=10, dropout=0.5)


def test_a_cohort_is_drawn_from_the_ids_of_the_roster() -> None:
    cohort = sample_cohort(ROSTER, SETTINGS, 0, 0)
    assert len(cohort) == len(set(cohort.tolist())) == 10
    assert bool(torch.isin(cohort, IDS).all())
    assert cohort.tolist() == sorted(cohort.tolist())
    assert torch.equal(cohort, sample_cohort(ROSTER, SETTINGS, 0, 0))


def test_every_round_and_every_attempt_has_a_cohort_of_its_own() -> None:
    drawn = {tuple(sample_cohort(ROSTER, SETTINGS, t, attempt).tolist()) for t in range(4) for attempt in range(4)}
    assert len(drawn) == 16
    other = Settings(rounds=5, seed=2, participation=10)
    assert tuple(sample_cohort(ROSTER, other, 0, 0).tolist()) not in drawn


def test_every_attempt_loses_other_clients() -> None:
    gone = {tuple(dropouts(IDS, 0.5, 1, t, attempt).tolist()) for t in range(4) for attempt in range(4)}
    assert len(gone) == 16
    assert all(set(ids) <= set(IDS.tolist()) and 20 < len(ids) < 80 for ids in gone)
    assert Dropout.of(Settings(rounds=5, seed=1)) is None


def test_a_count_is_at_most_the_clients_that_are_connected() -> None:
    assert available("participation", 10, 4) == 4
    assert available("participation", 10, 40) == 10
    assert available("participation", 0.1, 40) == 4
    assert available("participation", 1.0, 7) == 7
