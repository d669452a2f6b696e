"""Halves with a scripted `ask`: what is asked, how groups split and merge, and what happens to models and numbers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scripted import TWO, ScriptedAsk, fitted, make_cohort, make_roster, scored
from torch import Tensor

import coterie
from conftest import raises
from coterie.clustering.averaging import weigh
from coterie.clustering.halves import MOST
from coterie.core.local import Local
from coterie.core.references import Own, Pick
from coterie.core.tables import ByClient
from coterie.core.tasks import Evaluated, Fitted
from coterie.data import IID, Digits, Rotated
from coterie.methods.fedavg import FedAvg
from coterie.methods.halves import (
    AFTER,
    BEFORE,
    BOTH,
    LONGEST,
    PERSONAL,
    PERSONAL_TRIED,
    RIGHT,
    ROUNDS,
    SLOT,
    UNTRIED,
    Halved,
    Halves,
    SplitTrial,
    without,
)

LOCAL = Local(steps=3, lr=0.5, momentum=0.9, keep_optimizer=True)
ROSTER = make_roster({0: 10, 3: 10, 4: 10, 7: 10})
PAIRS = {0: (0.0, 0.0), 3: (1.0, 0.0), 4: (10.0, 0.0), 7: (11.0, 0.0)}  # as in the hand-computed risks
OTHERS = {0: (1.0, 0.0), 3: (0.0, 0.0), 4: (11.0, 0.0), 7: (10.0, 0.0)}


def looks(rows: Mapping[int, Sequence[float]]) -> Fitted:
    reply = fitted(rows)
    return dataclasses.replace(reply, sent=None, sketch=reply.theta)


def begin(method: Halves) -> Halved:
    return method.init(TWO, ROSTER, np.random.default_rng(0))


def first_round(method: Halves) -> tuple[Halved, ScriptedAsk, list[str]]:
    models = {c: (float(c), 1.0) for c in (0, 3, 4, 7)}
    ask = ScriptedAsk([fitted(models), looks(PAIRS), looks(OTHERS)])
    cohort = make_cohort([0, 3, 4, 7], ROSTER)
    state = method.round(begin(method), cohort, ask)
    return state, ask, [str(one) for one in cohort.counted]


def without_trial(state: Halved) -> Halved:
    return dataclasses.replace(state, trial=SplitTrial.none(state.centers))


def test_the_first_round_asks_for_two_halves_and_splits() -> None:
    """Two pairs of clients: their clusters are made at once, and hold the means of their models."""
    state, ask, told = first_round(Halves(local=LOCAL))
    fit, first, second = ask.asked[0]
    assert (fit.half, first.half, second.half) == (None, 0, 1)
    assert (first.send, first.keep, first.sketch, first.local.steps) == (False, False, 2, 50)
    assert not first.local.keep_optimizer
    assert first.local.lr == LOCAL.lr
    assert state.labels.at(torch.tensor([0, 3, 4, 7])).tolist() == [0, 0, 1, 1]
    assert state.centers.tolist() == [[1.5, 1.0], [5.5, 1.0]]
    assert "1 became 2" in told[0]
    assert "predicts the other 99% better" in told[0]


def test_who_was_looked_at_is_not_looked_at_again() -> None:
    method = Halves(local=LOCAL)
    state = without_trial(first_round(method)[0])
    ask = ScriptedAsk([fitted({0: (2.0, 2.0), 4: (4.0, 4.0)})])
    state = method.round(state, make_cohort([0, 4], ROSTER, 1), ask)
    assert len(ask.asked[0]) == 1
    assert state.centers.tolist() == [[2.0, 2.0], [4.0, 4.0]]


def test_a_client_met_later_starts_where_its_loss_is_least_and_is_looked_at_from_there() -> None:
    method, roster = Halves(local=LOCAL), make_roster({0: 10, 3: 10, 4: 10, 7: 10, 9: 10})
    state = without_trial(first_round(method)[0])
    halves = looks({9: (10.0, 0.0)}), looks({9: (10.5, 0.0)})
    ask = ScriptedAsk(scored({9: (3.0, 1.0)}), [fitted({9: (8.0, 8.0)}), *halves])
    state = method.round(state, make_cohort([9], roster, 1), ask)
    anchor = ask.asked[1][1].start
    assert isinstance(anchor, Pick)
    assert torch.equal(
        anchor.centers[anchor.labels.at(torch.tensor([9]))][0], begin(method).centers[0]
    )  # the first one
    assert state.labels.at(torch.tensor([9])).tolist() == [1]
    assert state.centers.tolist() == [[1.5, 1.0], [8.0, 8.0]]  # a cluster nobody answered for keeps its model


def state_of(labels: Mapping[int, int], k: int) -> Halved:
    state = Halved.begin(torch.zeros(2), torch.arange(2), 2, 10.0)
    ids = torch.tensor(list(labels))
    return dataclasses.replace(
        state,
        centers=torch.arange(2.0 * k).reshape(k, 2),
        labels=ByClient(ids, torch.tensor(list(labels.values()))),
        group_of=torch.zeros(k, dtype=torch.int64),
    )


def test_a_split_starts_from_the_parents_model_and_keeps_the_larger_parts_number() -> None:
    state = state_of({1: 0, 2: 0, 5: 0, 6: 1}, 2)
    state = state.regrouped(0, torch.tensor([1, 2, 5, 6]), torch.tensor([0, 1, 1, 2]))
    assert state.labels.at(torch.tensor([1, 2, 5, 6])).tolist() == [2, 0, 0, 1]
    assert state.centers.tolist() == [[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]]
    assert state.group_of.tolist() == [0, 0, 0]


def test_a_merge_takes_the_mean_by_clients_and_leaves_no_empty_row() -> None:
    state = state_of({1: 0, 2: 1, 5: 1, 6: 2}, 3)
    state = state.regrouped(0, torch.tensor([1, 2, 5, 6]), torch.tensor([0, 0, 0, 1]))
    assert state.labels.at(torch.tensor([1, 2, 5, 6])).tolist() == [0, 0, 0, 1]
    assert state.centers.flatten().tolist() == pytest.approx([4 / 3, 7 / 3, 4.0, 5.0])


def test_another_group_is_left_alone_and_who_was_not_looked_at_goes_with_the_others() -> None:
    state = dataclasses.replace(state_of({1: 0, 2: 0, 3: 0, 8: 1, 9: 0}, 2), group_of=torch.tensor([0, 1]))
    state = state.regrouped(0, torch.tensor([1, 2, 3]), torch.tensor([0, 1, 1]))
    assert state.labels.at(torch.tensor([1, 2, 3, 8, 9])).tolist() == [2, 0, 0, 1, 0]
    assert state.centers[1].tolist() == [2.0, 3.0]
    assert state.group_of.tolist() == [0, 1, 0]


def test_after_ten_visits_per_client_everyone_is_looked_at_from_its_clusters_model() -> None:
    method = Halves(local=LOCAL)
    state = without_trial(first_round(method)[0])
    for _ in range(9):
        state = state.visited(4)
    assert len(state.looks.ids) == 4
    assert state.until == 10
    state = state.visited(4)
    assert len(state.looks.ids) == 0
    assert torch.equal(state.anchors, state.centers)
    assert state.group_of.tolist() == [0, 1]
    assert (state.visits, state.until) == (0, 20)


# ------------------------------------------------------------------------------------------------------- the trial


def judged(*rows: Sequence[float]) -> list[Evaluated]:
    """Accuracies of clients 0, 3, 4 and 7 with each kind of model, on 5 held-out samples each."""
    ids, five = torch.tensor([0, 3, 4, 7]), torch.full((4,), 5)
    return [Evaluated(ids, five, torch.zeros(4), torch.tensor(row), torch.zeros(4)) for row in rows]


def models(*values: float) -> Fitted:
    return fitted({client: (value, 1.0) for client, value in zip((0, 3, 4, 7), values, strict=True)})


def trained(reply: Fitted) -> tuple[Fitted, torch.Tensor]:
    """A reply, and the weights of its models."""
    return reply, weigh(reply, "size")


def trial_round(
    method: Halves, state: Halved, *scores: Sequence[float], at: int = 1
) -> tuple[Halved, ScriptedAsk, str]:
    cohort = make_cohort([0, 3, 4, 7], ROSTER, at)
    trained = models(0, 2, 4, 6), models(1, 1, 3, 3), models(9, 9, 9, 9)  # after, before, personal
    ask = ScriptedAsk([trained[0], *judged(*scores), *trained[1:]])
    return method.round(state, cohort, ask), ask, " ".join(str(one) for one in cohort.counted)


def on_trial(method: Halves, rounds: int) -> Halved:
    state = first_round(method)[0]
    return dataclasses.replace(state, trial=dataclasses.replace(state.trial, rounds=rounds))


def test_a_split_is_tried_on_one_half_beside_the_clusters_before_and_personal_models() -> None:
    method = Halves(local=LOCAL, mu=0.5)
    state, _, _ = first_round(method)
    assert state.trial.before.tolist() == [[3.5, 1.0]]  # as FedAvg would have it
    state, ask, _ = trial_round(method, state)
    after, before, own = ask.asked[0]
    assert [fit.half for fit in (after, before, own)] == [0, 0, 0]
    assert isinstance(own.start, Own)
    assert (own.mu, own.save, own.send, own.on.tolist()) == (0.5, SLOT, False, [0, 3, 4, 7])
    assert state.centers.tolist() == [[1.0, 1.0], [5.0, 1.0]]
    assert state.trial.before.tolist() == [[2.0, 1.0]]
    assert state.trial.rounds == 1
    assert isinstance(method.predictor(state).models[0], Pick)
    _, ask, _ = trial_round(method, state, (0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 0, 0))
    tasks = ask.asked[0][1:4]
    assert [(task.split, task.half) for task in tasks] == [("train", 1)] * 3
    assert torch.equal(tasks[0].models[0].centers, state.trial.before)
    assert torch.equal(tasks[1].models[0].centers, state.centers)
    assert isinstance(tasks[2].models[0], Own)


def of_split() -> SplitTrial:
    return dataclasses.replace(SplitTrial.none(torch.zeros(1, 2)), before=torch.zeros(1, 2), rounds=1)


def test_the_simplest_that_is_not_clearly_worse_is_kept() -> None:
    """Gains of 0.2, 0.2, 0.2, 0.0 have mean 0.15 and, all shares being 1/4, an error of sqrt(0.03) / 4 = 0.0433."""
    trial = of_split().measured(judged((0.4, 0.4, 0.4, 0.4), (0.6, 0.6, 0.6, 0.4), (1, 1, 0, 0)))
    assert trial.gain(AFTER, BEFORE) == pytest.approx((0.15, 3**0.5 / 40))
    assert trial.gain(PERSONAL, AFTER)[0] == pytest.approx(-0.05)
    assert trial.best() == AFTER
    assert trial.measured(judged((0.5, 0.5, 0.5, 0.5), (1, 0, 1, 0), (1, 1, 1, 0.9))).best() == PERSONAL
    assert trial.measured(judged((0.5, 0.5, 0.5, 0.5), (1, 0, 1, 0.2), (0, 0, 0, 0))).best() == BEFORE


def test_clients_count_by_their_held_out_samples_and_a_regression_by_its_error() -> None:
    ids, n, nan = torch.tensor([3, 5, 8]), torch.tensor([1, 3, 0]), torch.full((3,), torch.nan)
    replies = [Evaluated(ids, n, torch.tensor([4.0, 4.0, 0.0]), nan, nan)]
    replies += [Evaluated(ids, n, torch.tensor(loss), nan, nan) for loss in ([4.0, 0.0, 9.0], [4.0, 4.0, 0.0])]
    trial = of_split().measured(replies)
    assert trial.scores.ids.tolist() == [3, 5]  # nothing is held out at client 8
    assert trial.gain(AFTER, BEFORE)[0] == 3.0


def test_a_trial_lasts_some_rounds_and_until_half_of_the_clients_have_measured() -> None:
    trial = of_split().measured(judged((0,) * 4, (0,) * 4, (1,) * 4))
    assert not dataclasses.replace(trial, rounds=ROUNDS - 1).is_over(4)
    assert dataclasses.replace(trial, rounds=ROUNDS).is_over(8)
    assert not dataclasses.replace(trial, rounds=ROUNDS).is_over(9)


def test_a_trial_of_many_clients_ends_as_soon_as_there_is_no_doubt() -> None:
    """Gains of 1 and 0.8 by turns have mean 0.9; with 10 clients their error is 0.1 / sqrt(10) = 0.032."""
    ids, n = torch.arange(10), torch.full((10,), 5)

    def scores(*values: float) -> Evaluated:
        return Evaluated(ids, n, torch.zeros(10), torch.tensor(values * (10 // len(values))), torch.zeros(10))

    clear = of_split().measured([scores(0), scores(1, 0.8), scores(0.3, 0.5)])
    assert clear.is_over(20)
    assert not clear.is_over(21)
    assert clear.personal_lost
    doubtful = clear.measured([scores(0), scores(1, 0.8), scores(0.9, 0.9)])
    assert not doubtful.is_over(20)
    assert not doubtful.personal_lost
    assert dataclasses.replace(doubtful, rounds=ROUNDS).is_over(20)
    alone = SplitTrial.none(torch.zeros(1, 2)).measured([scores(1, 0.8), scores(0.3, 0.5), scores(0)])
    assert alone.is_over(20)


def test_personal_models_that_lost_beyond_doubt_are_not_tried_again_from_new_anchors() -> None:
    state = alike(Halves(local=LOCAL))
    state = dataclasses.replace(without_trial(state), visits=10.0, kind=AFTER)
    assert state.visited(4).verdict == UNTRIED
    assert dataclasses.replace(state, beyond_doubt=True).visited(4).verdict == PERSONAL_TRIED


def test_where_neither_wins_the_mean_of_both_serves_if_it_is_better() -> None:
    """Personal models gain 0.1, -0.1, 0.1, -0.1 (a draw); the mean of outputs gains 0.1 for everyone."""
    method = Halves(local=LOCAL)
    state, scores = alike(method, rounds=LONGEST - 1), [(0.5,) * 4, (0.6, 0.4, 0.6, 0.4), (0.6,) * 4]
    cohort = make_cohort([0, 3, 4, 7], ROSTER, 2)
    ask = ScriptedAsk([models(0, 2, 4, 6), *judged(*scores), models(9, 9, 9, 9)])
    state = method.round(state, cohort, ask)
    both = ask.asked[0][3]
    assert (len(both.models), both.average, both.half) == (2, True, 1)
    assert (state.kind, state.trial.on) == (BOTH, False)
    assert "means of the cluster's and the personal model are kept" in str(cohort.counted[0])
    cluster, own = method.predictor(state).models
    assert isinstance(cluster, Pick)
    assert isinstance(own, Own)
    assert method.predictor(state).average
    ask = ScriptedAsk([fitted({0: (2.0, 2.0)}), fitted({})])
    method.round(state, make_cohort([0], ROSTER, 3), ask)
    assert [fit.half for fit in ask.asked[0]] == [None, None]  # both go on being trained
    worse = SplitTrial.none(torch.zeros(1, 2)).measured(judged(*scores[:2], (0.5,) * 4))
    assert worse.best() == BEFORE


def test_a_split_that_does_not_serve_is_taken_back_and_not_tried_again_soon() -> None:
    method = Halves(local=LOCAL)
    state, _, told = trial_round(method, on_trial(method, ROUNDS - 1), (0.9,) * 4, (0.2,) * 4, (0.3,) * 4)
    assert state.centers.tolist() == [[2.0, 1.0]]
    assert state.labels.values.tolist() == [0, 0, 0, 0]
    assert (state.refused, state.trial.on, state.kind) == (True, False, AFTER)
    assert "the clusters before the split are kept" in told
    assert "the clusters after it -0.700, personal models -0.600" in told
    roster = make_roster({0: 10, 3: 10, 4: 10, 7: 10, 9: 10})
    ask = ScriptedAsk([fitted({9: (8.0, 8.0)})])
    state = method.round(state, make_cohort([9], roster, 9), ask)
    assert len(ask.asked[0]) == 1  # a client met now is not looked at
    assert state.centers.tolist() == [[8.0, 8.0]]
    assert not dataclasses.replace(state, visits=10.0).visited(4).refused


def test_a_split_or_personal_models_that_serve_better_are_kept() -> None:
    method = Halves(local=LOCAL)
    state, _, _ = trial_round(method, on_trial(method, ROUNDS - 1), (0.2,) * 4, (0.9,) * 4, (0.8,) * 4)
    assert (len(state.centers), state.kind, state.trial.on, state.refused) == (2, AFTER, False, False)
    state, _, _ = trial_round(method, on_trial(method, ROUNDS - 1), (0.2,) * 4, (0.6,) * 4, (0.9,) * 4)
    assert (len(state.centers), state.kind, state.trial.on) == (2, PERSONAL, False)
    assert isinstance(method.predictor(state).models[0], Own)
    ask = ScriptedAsk([fitted({0: (2.0, 2.0)}), fitted({})])
    method.round(state, make_cohort([0], ROSTER, 1), ask)
    assert [fit.half for fit in ask.asked[0]] == [None, None]


def test_a_draw_for_personal_models_is_tried_on_without_the_clusters_before() -> None:
    """They are scored from the next round on, all still on one half, until it is clear or LONGEST rounds are over."""
    method = Halves(local=LOCAL)
    state, _, told = trial_round(method, on_trial(method, ROUNDS - 1), (0.2,) * 4, (0.9,) * 4, (0.9,) * 4)
    assert (len(state.centers), state.kind, state.trial.rounds, state.trial.of_split) == (2, AFTER, 1, False)
    assert "the clusters after it are kept" in told
    draw = dataclasses.replace(state.trial.measured(judged((0.5,) * 4, (0, 1, 0, 1), (0.5,) * 4)), rounds=LONGEST - 1)
    assert not draw.is_over(4)
    assert dataclasses.replace(draw, rounds=LONGEST).is_over(4)
    ask = ScriptedAsk([models(0, 2, 4, 6), *judged((0.5,) * 4, (0.9,) * 4, (0.7,) * 4), models(9, 9, 9, 9)])
    state = dataclasses.replace(state, trial=dataclasses.replace(state.trial, rounds=ROUNDS - 1))
    state = method.round(state, make_cohort([0, 3, 4, 7], ROSTER, 7), ask)
    assert [task.half for task in ask.asked[0]] == [0, 1, 1, 1, 0]
    assert (state.kind, state.trial.on) == (PERSONAL, False)
    again = dataclasses.replace(state, visits=10.0).visited(4)  # anchors are taken anew
    assert not again.next_trial(again, *trained(models(0, 2, 4, 6)), split=True).trial.on  # clusters that only pull


def test_a_draw_that_personal_models_are_ahead_in_is_tried_on_too() -> None:
    """Gains of 0.4, 0.1, 0 and 0: a mean of 0.125, which is 1.5 standard errors; both may be better still."""
    method, scores = Halves(local=LOCAL), ((0.2,) * 4, (0.5,) * 4, (0.9, 0.6, 0.5, 0.5))
    state, _, told = trial_round(method, on_trial(method, ROUNDS - 1), *scores)
    assert (state.kind, state.trial.rounds, state.trial.of_split) == (PERSONAL, 1, False)
    assert "personal models are kept" in told


def test_until_a_trial_is_over_the_kind_that_is_ahead_predicts() -> None:
    method = Halves(local=LOCAL)
    state, _, _ = trial_round(method, on_trial(method, 1), (0.9,) * 4, (0.2,) * 4, (0.3,) * 4)
    assert state.trial.on
    before = method.predictor(state).models[0]
    assert isinstance(before, Pick)
    assert torch.equal(before.centers, state.trial.before)
    assert before.labels.values.tolist() == [0, 0, 0, 0]


def test_a_trial_that_is_under_way_says_what_serves_meanwhile() -> None:
    method = Halves(local=LOCAL)
    behind, _, _ = trial_round(method, on_trial(method, 1), (0.9,) * 4, (0.2,) * 4, (0.3,) * 4)
    words = "1 cluster became 2 on trial, which was not over when the run ended; meanwhile "
    assert behind.undecided == f"{words}the clusters before the split serve"
    ahead, _, _ = trial_round(method, on_trial(method, 1), (0.2,) * 4, (0.9,) * 4, (0.3,) * 4)
    assert ahead.undecided == f"{words}the clusters after it serve"
    assert without_trial(ahead).undecided is None


def test_a_run_that_ends_within_a_trial_warns_and_more_rounds_decide(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(40, 2)).astype(np.float32) for _ in range(8)]
    data = coterie.Federation.from_arrays(
        [(one, (one[:, i % 2] > 0).astype(np.int64)) for i, one in enumerate(x)], standardise=False, standardise_y=False
    )
    result = coterie.run(Halves(local=Local(epochs=5, lr=0.3)), data, "linear", rounds=3, out=tmp_path / "run")
    (warning,) = (text for text in result.warnings if "on trial" in text)
    assert warning.endswith("serve; more rounds decide it (coterie run --resume DIR --more ROUNDS)")
    assert warning in coterie.load(tmp_path / "run", federation=data).warnings
    assert warning in json.loads((tmp_path / "run" / "warnings.json").read_text())
    done = coterie.go_on(tmp_path / "run", more=30, federation=data)
    assert not any("on trial" in text for text in done.warnings)


def alike(method: Halves, *, rounds: int = 0) -> Halved:
    """One cluster, which everyone has visited twice and whose clients' looks gave no reason to split."""
    state = first_round(method)[0]
    ids = torch.tensor([0, 3, 4, 7])
    one = ByClient(ids, torch.zeros(4, dtype=torch.int64))
    state = dataclasses.replace(without_trial(state), centers=state.centers[:1], labels=one, visits=1.0)
    state = dataclasses.replace(state, group_of=torch.tensor([0]), verdict=UNTRIED)
    state = method.round(state, make_cohort([0, 3, 4, 7], ROSTER, 1), ScriptedAsk([models(0, 2, 4, 6)]))
    return dataclasses.replace(state, trial=dataclasses.replace(state.trial, rounds=rounds))


@pytest.mark.parametrize(("personal", "kind", "told"), [(0.9, PERSONAL, "+0.500"), (0.3, AFTER, "")])
def test_where_nothing_was_split_personal_models_are_tried_alone(personal: float, kind: int, told: str) -> None:
    method = Halves(local=LOCAL)
    state = alike(method)
    assert (state.trial.on, state.trial.of_split, state.trial.rounds) == (True, False, 0)
    state = alike(method, rounds=ROUNDS - 1)
    cohort = make_cohort([0, 3, 4, 7], ROSTER, 2)
    ask = ScriptedAsk([models(0, 2, 4, 6), *judged((0.4,) * 4, (personal,) * 4, (0.4,) * 4), models(9, 9, 9, 9)])
    state = method.round(state, cohort, ask)
    halves = [getattr(task, "half", None) for task in ask.asked[0]]
    assert halves == [
        None,
        1,
        1,
        1,
        0,
    ]  # three measured on the other half; the cluster's trained on all, own ones on one
    assert state.centers.flatten().tolist() == [3.0, 1.0]
    assert (len(state.centers), state.kind, state.trial.on, state.verdict) == (1, kind, False, PERSONAL_TRIED)
    assert told in " ".join(str(one) for one in cohort.counted)
    assert not state.refused  # a split may come later, with a trial of its own
    later = state.next_trial(state, *trained(models(0, 2, 4, 6)), split=True)
    assert later.trial.of_split
    assert not state.next_trial(state, *trained(models(0, 2, 4, 6)), split=False).trial.on


def test_one_model_for_everyone_is_fedavg_to_the_bit() -> None:
    federation, local = coterie.federate(Digits(), IID(clients=6), seed=0), Local(steps=2, batch=8, lr=0.1)
    ours, theirs = (
        coterie.run(method, federation, "linear", rounds=9) for method in (Halves(local=local), FedAvg(local=local))
    )
    assert torch.equal(ours.state.centers[0], theirs.state)


def test_clusters_that_are_too_small_are_not_made() -> None:
    state, _, told = first_round(Halves(local=LOCAL, smallest=3))
    assert state.labels.values.tolist() == [0, 0, 0, 0]
    assert not state.trial.on
    assert told == []


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_the_demo_is_recovered_with_the_defaults(share: float) -> None:
    federation = coterie.federate(Digits(), Rotated(clients=40), seed=0)
    rounds = 4 if share == 1 else 12
    result = coterie.run(Halves(), federation, "mlp", rounds=rounds, participation=share, engine="batched", workers=1)
    assert result.summary.clusters == 4
    assert result.summary.ari == 1


def test_alike_clients_stay_together() -> None:
    federation = coterie.federate(Digits(), IID(clients=30), seed=1)
    result = coterie.run(Halves(), federation, "mlp", rounds=12, seed=1, engine="batched", workers=1)
    assert result.summary.clusters == 1


# -------------------------------------------------------------------------------------------------------------- pins

GROUPS = ByClient(torch.tensor([0, 4, 7, 9]), torch.tensor([1, 1, 0, 0]))


def test_pinned_clients_stay_together_and_apart_and_are_not_tried() -> None:
    """By their halves 0 and 3, 4 and 7 are alike; 0 and 4 are pinned to one group, 7 to another."""
    method, roster = Halves(local=LOCAL, pinned=True), dataclasses.replace(ROSTER, groups=GROUPS)
    state = method.init(TWO, roster, np.random.default_rng(0))
    ask = ScriptedAsk([models(0, 3, 4, 7), looks(PAIRS), looks(OTHERS)])
    state = method.round(state, make_cohort([0, 3, 4, 7], roster), ask)
    assert state.labels.at(torch.tensor([0, 3, 4, 7])).tolist() == [0, 0, 0, 1]
    assert not state.trial.on
    # A client that is met later is in its group's cluster, whatever its loss; nobody asks.
    state = method.admit(state, make_cohort([9], roster, 1), ScriptedAsk())
    assert state.labels.at(torch.tensor([9])).tolist() == [1]


def test_pins_without_groups_are_refused() -> None:
    with raises("groups-missing", match="data.group=COLUMN"):
        Halves(pinned=True).init(TWO, ROSTER, np.random.default_rng(0))


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


def met_before(many: int) -> Halved:
    """So many clients, ids 0, 2, 4, ...: the first half looks like (0, 0), the others like (10, 0)."""
    ids = 2 * torch.arange(many)
    labels = (torch.arange(many) >= many // 2).long()
    points = torch.stack([10.0 * labels, torch.zeros(many)], 1)
    state = Halved.begin(torch.zeros(2), torch.arange(2), 2, 10.0)
    return dataclasses.replace(
        state,
        centers=torch.tensor([[1.0, 1.0], [2.0, 2.0]]),
        labels=ByClient(ids, labels),
        group_of=torch.zeros(2, dtype=torch.int64),
        looks=ByClient(ids, torch.stack([points, points], 1)),
        samples=ByClient(ids, torch.ones(many, dtype=torch.int64)),
    )


def joined(state: Halved, ids: Tensor, points: Tensor) -> Halved:
    """These clients are in cluster 0, by loss, and were looked at."""
    return dataclasses.replace(
        state,
        labels=state.labels.put(ids, torch.zeros_like(ids)),
        looks=state.looks.put(ids, torch.stack([points, points], 1)),
        samples=state.samples.put(ids, torch.ones_like(ids)),
    )


def test_a_few_among_many_join_the_cluster_that_they_look_like() -> None:
    new = torch.tensor([1, 5, 7])
    state = joined(met_before(2 * MOST), new, torch.tensor([[9.0, 0.0], [4.0, 0.0], [11.0, 0.0]]))
    assert not state.is_due(0, new)
    placed = state.joined_nearest(0, new, np.random.default_rng(0))
    assert placed.labels.at(new).tolist() == [1, 0, 1]
    others = met_before(2 * MOST).labels
    assert torch.equal(placed.labels.at(others.ids), others.values)
    assert torch.equal(placed.centers, state.centers)


def test_few_clients_are_divided_anew_with_every_look_and_many_after_a_tenth_more() -> None:
    one = torch.tensor([1])
    assert joined(met_before(MOST), one, torch.zeros(1, 2)).is_due(0, one)
    assert not joined(met_before(MOST + 1), one, torch.zeros(1, 2)).is_due(0, one)
    tenth = 1 + 2 * torch.arange(MOST // 10 + 2)
    assert joined(met_before(MOST + 1), tenth, torch.zeros(len(tenth), 2)).is_due(0, tenth)


def test_who_was_looked_at_again_counts_as_new_and_another_group_does_not_count() -> None:
    state = dataclasses.replace(met_before(3 * MOST), group_of=torch.tensor([0, 1]))
    assert not state.is_due(0, torch.tensor([0]))
    small = dataclasses.replace(met_before(MOST), group_of=torch.tensor([0, 1]))
    assert small.is_due(1, torch.tensor([2 * MOST - 2]))
