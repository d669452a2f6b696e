"""A client whose loss jumps is measured under all models, moves where one fits, and its model counts nowhere.

Of a smaller rise another look at its two halves decides.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scripted import TWO, ScriptedAsk, fitted, make_cohort, make_roster, scored, silence

from coterie.core.tables import ByClient
from coterie.core.tasks import Fitted
from coterie.methods.drift_alarm import alarmed, found_elsewhere, rescaled, suspected
from coterie.methods.halves import BOTH, PERSONAL, Halved, Halves, followed

ROSTER = make_roster({2: 10, 5: 10, 8: 10})
IDS = torch.tensor([2, 5, 8])
BEFORE = ByClient(IDS, torch.tensor([0.2, 0.5, 0.01]))


def trained(*losses: float) -> Fitted:
    reply = fitted(dict.fromkeys((2, 5, 8), (1.0, 1.0)))
    return dataclasses.replace(reply, loss=torch.tensor(losses))


def state() -> Halved:
    """Clients 2 and 5 in cluster 0, 8 in cluster 1, with the losses of their last visit; at first the loss was 0.8."""
    start = Halves().init(TWO, ROSTER, np.random.default_rng(0))
    labels, groups = ByClient(IDS, torch.tensor([0, 0, 1])), torch.tensor([0, 0])
    there = dataclasses.replace(start, centers=torch.zeros(2, 2), labels=labels, group_of=groups)
    return dataclasses.replace(there, losses=BEFORE, worst=0.8, under=there.how_trained)


def test_an_alarm_is_twice_the_loss_and_half_way_back_to_the_beginning() -> None:
    # sqrt(0.2 * 0.8) = 0.4: 0.41 is beyond both bounds; 0.9 is less than 2 * 0.5; 0.08 is 8 times 0.01, but trembles
    # below sqrt(0.01 * 0.8) = 0.09.
    found = alarmed(BEFORE, IDS, torch.tensor([0.41, 0.9, 0.08]), 0.8)
    assert found.tolist() == [True, False, False]
    assert alarmed(BEFORE, torch.tensor([9]), torch.tensor([7.0]), 0.8).tolist() == [False]  # never visited before


def test_losses_that_rose_for_most_are_compared_by_their_median_ratio() -> None:
    # Ratios 3, 2 and 10: the median is 3. Where most fell, nothing is scaled.
    assert rescaled(BEFORE, IDS, torch.tensor([0.6, 1.0, 0.1])).values.tolist() == pytest.approx([0.6, 1.5, 0.03])
    assert rescaled(BEFORE, IDS, torch.tensor([0.1, 0.1, 0.1])).values.tolist() == pytest.approx([0.2, 0.5, 0.01])


def test_who_has_not_fallen_as_the_others_is_suspected() -> None:
    """Most fell to half: 0.2 to 0.1, and 0.01 to 0.005. 0.4 is no rise from 0.5, but 1.6 times the 0.25 to expect."""
    assert suspected(BEFORE, IDS, torch.tensor([0.1, 0.4, 0.005]), 0.8).tolist() == [False, True, False]


def test_a_suspicion_is_a_quarter_more_and_a_quarter_of_the_way_back() -> None:
    # 0.2: 1.25 * 0.2 = 0.25, and 0.2^(3/4) 0.8^(1/4) = 0.2 sqrt(2) = 0.283. 0.5: 1.25 * 0.5 = 0.625, beyond 0.562.
    # 0.01: 0.01^(3/4) 0.8^(1/4) = 0.0299.
    assert suspected(BEFORE, IDS, torch.tensor([0.28, 0.63, 0.03]), 0.8).tolist() == [False, True, True]
    assert suspected(BEFORE, IDS, torch.tensor([0.29, 0.62, 0.029]), 0.8).tolist() == [True, False, False]
    assert suspected(BEFORE, torch.tensor([9]), torch.tensor([7.0]), 0.8).tolist() == [False]


NONE = torch.tensor([], dtype=torch.int64)
TO_TWO = ByClient(IDS, torch.tensor([0, 0, 1]))


def never(ids: torch.Tensor) -> torch.Tensor:
    return ids[:0]


def test_a_client_moves_only_where_its_loss_is_less_than_half() -> None:
    ask = ScriptedAsk(scored({2: (0.9, 0.4), 5: (0.9, 0.5)}))
    moved = found_elsewhere(torch.zeros(2, 2), TO_TWO, torch.tensor([2, 5]), NONE, ask, never)
    assert (moved.ids.tolist(), moved.values.tolist()) == ([2], [1])


def test_of_a_smaller_rise_the_halves_decide() -> None:
    """2 is sure: 0.9 > 2 * 0.4. 5 is unsure, so the halves decide. 8: no other model is better by a quarter."""
    looked = []

    def changed(ids: torch.Tensor) -> torch.Tensor:
        looked.append(ids.tolist())
        return ids

    losses = scored({2: (0.9, 0.4), 5: (0.9, 0.4), 8: (0.8, 0.9)})
    moved = found_elsewhere(torch.zeros(2, 2), TO_TWO, IDS[:1], IDS[1:], ScriptedAsk(losses), changed)
    assert looked == [[5]]
    assert (moved.ids.tolist(), moved.values.tolist()) == ([2, 5], [1, 1])
    moved = found_elsewhere(torch.zeros(2, 2), TO_TWO, IDS[:1], IDS[1:], ScriptedAsk(losses), never)
    assert moved.ids.tolist() == [2]
    # A sure one that another model serves 1.8 times better: its halves are asked too.
    half = scored({2: (0.9, 0.5), 8: (0.9, 0.8)})
    moved = found_elsewhere(torch.zeros(2, 2), TO_TWO, IDS[:1], IDS[2:], ScriptedAsk(half), changed)
    assert (looked[-1], moved.ids.tolist()) == ([2], [2])


def test_nobody_answers_the_question_and_nobody_moves() -> None:
    moved = found_elsewhere(torch.zeros(2, 2), TO_TWO, IDS[:1], IDS[1:], silence, never)
    assert not len(moved.ids)


def test_who_has_moved_is_in_its_new_cluster_and_its_model_counts_nowhere() -> None:
    cohort, ask = make_cohort([2, 5, 8], ROSTER, 7), ScriptedAsk(scored({2: (0.9, 0.1)}))
    new, moved = followed(state(), trained(0.9, 0.4, 0.01), cohort, ask, never)
    assert ask.asked[0].on.tolist() == [2]
    assert new.labels.at(IDS).tolist() == [1, 0, 1]
    assert moved.tolist() == [2]
    assert new.losses.ids.tolist() == [5, 8]  # the jump is no measure of what comes
    assert "the loss of 1 client (2) has jumped: another cluster's model fits, they move" in str(cohort.counted[0])


def test_data_that_no_model_fits_twice_is_looked_at_again() -> None:
    cohort = make_cohort([2, 5, 8], ROSTER, 7)
    ask = ScriptedAsk(scored({2: (0.9, 0.8)}), scored({2: (0.9, 0.8)}))
    once, moved = followed(state(), trained(0.9, 0.4, 0.01), cohort, ask, never)
    assert (once.alarmed.tolist(), moved.tolist(), cohort.counted) == ([2], [], [])
    twice, _ = followed(once, trained(0.9, 0.4, 0.01), cohort, ask, never)
    assert "no model fits, it is looked at again" in str(cohort.counted[0])
    assert not len(twice.looks.ids)


@pytest.mark.parametrize("kind", [PERSONAL, BOTH])
def test_where_personal_models_serve_nobody_is_asked(kind: int) -> None:
    there = dataclasses.replace(state(), kind=kind)
    here = make_cohort([2, 5, 8], ROSTER, 7)
    new, moved = followed(there, trained(0.9, 0.4, 0.01), here, ScriptedAsk(), never)
    assert new is there
    assert not len(moved)


@pytest.mark.parametrize("changed", [True, False])
def test_while_a_trial_goes_on_and_personal_models_are_ahead_only_halves_move_a_client(changed: bool) -> None:
    """Clusters are trained as ever then, and may win yet; but where everyone differs, losses alone mislead."""
    trial = dataclasses.replace(state().trial, rounds=3)
    there = dataclasses.replace(state(), kind=BOTH, trial=trial)
    there = dataclasses.replace(there, under=there.how_trained)
    cohort = make_cohort([2, 5, 8], ROSTER, 7)
    ask = ScriptedAsk(scored({2: (0.9, 0.1)}))
    new, moved = followed(there, trained(0.9, 0.4, 0.01), cohort, ask, lambda ids: ids if changed else ids[:0])
    assert moved.tolist() == ([2] if changed else [])
    assert not len(new.alarmed)


def test_in_a_round_of_looks_a_jump_needs_two_halves_too() -> None:
    """Clusters change in that round anyway: who has no halves of before goes where its new ones say."""
    cohort, ask = make_cohort([2, 5, 8], ROSTER, 7), ScriptedAsk(scored({2: (0.9, 0.1)}))
    _, moved = followed(state(), trained(0.9, 0.4, 0.01), cohort, ask, never, looking=True)
    assert not len(moved)
