"""Halves on data that changes early, in a trial, or in a round in which everyone is looked at again."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from scripted import ScriptedAsk, fitted, make_cohort, scored
from test_halves import LOCAL, OTHERS, PAIRS, ROSTER, first_round, judged, looks, models, on_trial, without_trial

from coterie.core.client_table import ByClient
from coterie.core.references import Pick
from coterie.core.replies import Fitted
from coterie.methods.halves import AFTER, RIGHT, ROUNDS, UNTRIED, Halved, Halves, without

IDS = torch.tensor([0, 3, 4, 7])  # 0 and 3 are in cluster 0; see `first_round`
METHOD = Halves(local=LOCAL)


def known(state: Halved) -> Halved:
    """After a visit in which everyone's loss was 0.5; that of the beginning was 2."""
    losses = ByClient(IDS, torch.full((4,), 0.5))
    return dataclasses.replace(state, losses=losses, worst=2.0, under=state.how_trained)


def rising(reply: Fitted) -> Fitted:
    """The loss of client 0 has risen from 0.5 to 0.9: less than twice, so that it is a suspicion only."""
    return dataclasses.replace(reply, loss=torch.tensor([0.9, 0.5, 0.5, 0.5]))


TRAINED = models(0, 2, 4, 6)
ELSEWHERE = looks({0: (11.0, 0.0)}), looks({0: (10.0, 0.0)})  # from (0, 0) and (1, 0): as clients 4 and 7
THERE = looks({0: (0.5, 0.0)}), looks({0: (0.5, 0.0)})  # as far as another half may be


def test_two_halves_say_that_a_suspected_clients_data_has_changed_and_it_moves() -> None:
    state = known(without_trial(first_round(METHOD)[0]))
    ask = ScriptedAsk([rising(TRAINED)], scored({0: (0.9, 0.6)}), list(ELSEWHERE))
    state = METHOD.round(state, make_cohort(IDS.tolist(), ROSTER, 2), ask)
    again = ask.asked[2]
    assert [(fit.half, fit.on.tolist(), fit.keep, fit.send) for fit in again] == [
        (h, [0], False, False) for h in (0, 1)
    ]
    assert state.labels.at(IDS).tolist() == [1, 0, 1, 1]
    assert state.centers.tolist() == [[2.0, 1.0], [5.0, 1.0]]  # client 0's model counts nowhere
    assert state.looks.ids.tolist() == [3, 4, 7]  # it is looked at again from where it is
    assert state.drifted.tolist() == [0]


def test_where_the_halves_say_it_is_as_it_was_everything_stays() -> None:
    before = known(without_trial(first_round(METHOD)[0]))
    ask = ScriptedAsk([rising(TRAINED)], scored({0: (0.9, 0.6)}), list(THERE))
    state = METHOD.round(before, make_cohort(IDS.tolist(), ROSTER, 2), ask)
    assert state.labels.at(IDS).tolist() == [0, 0, 1, 1]
    assert state.centers.tolist() == [[1.0, 1.0], [5.0, 1.0]]
    assert torch.equal(state.looks.values, before.looks.values)
    assert not len(state.drifted)


def test_in_a_trial_what_who_has_moved_measured_does_not_count() -> None:
    """It measured models of a cluster that it is not in: with it the clusters before would win, -0.05 on average."""
    state = known(on_trial(METHOD, ROUNDS - 1))
    scores = judged((0.5,) * 4, (0.0, 0.6, 0.6, 0.6), (0.3,) * 4)
    ask = ScriptedAsk(
        [rising(TRAINED), *scores, models(1, 1, 3, 3), models(9, 9, 9, 9)], scored({0: (0.9, 0.6)}), list(ELSEWHERE)
    )
    state = METHOD.round(state, make_cohort(IDS.tolist(), ROSTER, 5), ask)
    assert (len(state.centers), state.kind, state.verdict, state.trial.on) == (2, AFTER, RIGHT, False)


def test_a_trial_waits_for_those_who_are_left() -> None:
    """Three of four have moved: what one client measured is not enough to end it."""
    trial = on_trial(METHOD, ROUNDS).trial.measured(judged((0.9,) * 4, (0.2,) * 4, (0.3,) * 4))
    assert trial.is_over(4)
    left = trial.without(torch.tensor([0, 3, 7]))
    assert (left.scores.ids.tolist(), left.held_out.ids.tolist(), left.is_over(4)) == ([4], [4], False)
    assert trial.without(None) is trial


def test_in_a_round_of_new_looks_the_old_ones_are_compared_and_those_of_who_moved_do_not_count() -> None:
    first = known(without_trial(first_round(METHOD)[0]))
    state = dataclasses.replace(first, visits=10.0)
    ask = ScriptedAsk([rising(TRAINED), looks(PAIRS), looks(OTHERS)], scored({0: (0.9, 0.6)}), list(ELSEWHERE))
    state = METHOD.round(state, make_cohort(IDS.tolist(), ROSTER, 11), ask)
    start = ask.asked[2][0].start
    assert isinstance(start, Pick)
    assert torch.equal(start.centers, first.anchors)  # where it was looked at before
    assert torch.equal(state.anchors, first.centers)
    assert state.looks.ids.tolist() == [3, 4, 7]
    assert state.labels.at(IDS)[0] == state.labels.at(IDS)[2]


@pytest.mark.parametrize("who", [(), (3,), (3, 7)])
def test_after_several_moves_the_next_looks_are_from_one_model_so_that_clusters_may_merge(who: tuple[int, ...]) -> None:
    """One client's change may be a false alarm: then it is as if there had been none."""
    drifted = len(who) > 1
    state = without_trial(first_round(METHOD)[0])
    labels = ByClient(IDS, torch.tensor([0, 1, 1, 1]))
    state = dataclasses.replace(state, labels=labels, visits=10.0, drifted=torch.tensor(who)).visited(4)
    assert not len(state.drifted)
    assert state.group_of.tolist() == ([0, 0] if drifted else [0, 1])
    assert state.verdict == (RIGHT if drifted else UNTRIED)  # what was tried once is not tried again for a move
    # The mean by clients: a quarter of (1.5, 1) and three quarters of (5.5, 1).
    assert state.anchors.tolist() == ([[4.5, 1.0]] if drifted else [[1.5, 1.0], [5.5, 1.0]])


def test_clusters_that_nobody_was_looked_at_in_stay_as_they_are() -> None:
    """Three clusters are one group after a drift; a round looks at clients of the first two only."""
    state = without_trial(first_round(METHOD)[0])
    labels = ByClient(IDS, torch.tensor([0, 0, 1, 2]))
    centers = torch.tensor([[1.0, 1.0], [5.0, 1.0], [9.0, 1.0]])
    state = dataclasses.replace(state, labels=labels, centers=centers, group_of=torch.zeros(3, dtype=torch.int64))
    found = state.regrouped(0, torch.tensor([0, 4]), torch.tensor([0, 1]))
    assert found.labels.at(IDS).tolist() == [0, 0, 1, 2]
    assert found.centers.tolist() == centers.tolist()


def alarmed_twice(drifted: tuple[int, ...]) -> tuple[Halved, Halved]:
    """Client 0's loss jumps in two visits, and no model fits; before and after the second."""
    before = dataclasses.replace(known(without_trial(first_round(METHOD)[0])), drifted=torch.tensor(drifted))
    before = dataclasses.replace(before, alarmed=torch.tensor([0]))
    jumped = dataclasses.replace(TRAINED, loss=torch.tensor([1.9, 0.5, 0.5, 0.5]))
    ask = ScriptedAsk([jumped], scored({0: (1.9, 1.8)}))
    return before, METHOD.round(before, make_cohort(IDS.tolist(), ROSTER, 2), ask)


def test_data_of_one_client_that_no_model_fits_is_looked_at_again_and_nobody_elses() -> None:
    before, after = alarmed_twice(())
    assert after.looks.ids.tolist() == [3, 4, 7]
    assert torch.equal(after.anchors, before.anchors)
    assert (after.visits, after.until) == (before.visits + 1, before.until)
    assert after.visited(100).group_of.tolist() == before.group_of.tolist()
    assert after.labels.at(IDS).tolist() == before.labels.at(IDS).tolist()


def test_where_the_data_of_others_has_changed_too_everyone_is_looked_at_again() -> None:
    _, after = alarmed_twice((7,))
    assert after.drifted.tolist() == [0, 7]
    assert after.visited(4).group_of.tolist() == [0, 0]


def test_looks_without_some_clients() -> None:
    reply = looks(PAIRS)
    assert without(reply, IDS[:0]) is reply
    found = without(reply, torch.tensor([3, 7]))
    assert found.sketch is not None
    assert (found.ids.tolist(), found.n.tolist(), found.sketch.tolist()) == (
        [0, 4],
        [10, 10],
        [[0.0, 0.0], [10.0, 0.0]],
    )


def test_who_does_not_answer_is_as_it_was() -> None:
    before = known(without_trial(first_round(METHOD)[0]))
    ask = ScriptedAsk([rising(TRAINED)], scored({0: (0.9, 0.6)}), [fitted({}), fitted({})])
    assert METHOD.round(before, make_cohort(IDS.tolist(), ROSTER, 2), ask).labels.at(IDS).tolist() == [0, 0, 1, 1]
