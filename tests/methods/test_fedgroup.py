"""FedGroup and FedGrouProx by hand: cold starts, grouping, Eq. 9, inter-group aggregation, the two ablations."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scripted import (
    LOCAL,
    NOBODY,
    TWO,
    Imagined,
    ScriptedAsk,
    a_fit,
    all_of,
    by_client,
    close,
    fitted,
    make_cohort,
    make_roster,
    on,
    played,
    scored,
    silence,
    starts,
    table,
    variant,
)

from conftest import raises
from coterie.core.local import Local
from coterie.core.tasks import Fit, Fitted, Score
from coterie.methods.fedgroup import FedGroup, FedGrouProx, Groups

SIX = [3, 7, 11, 19, 23, 31]
ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20, 23: 20, 31: 40})
LARGER = make_roster({3: 30, 7: 10, 11: 60, 19: 20, 23: 20, 31: 40, 42: 10, 57: 10})
W0 = torch.tensor([1.0, 1.0])
NOT_BEGUN = Groups(W0[None], by_client({}), torch.arange(2), W0, torch.empty(0, 2), torch.empty(0, dtype=torch.int64))
# Updates from [1, 1]: 3, 11, 23 to the right and 7, 19, 31 up, of very different lengths.
UPDATES = {3: [2.0, 0.0], 7: [0.0, 1.0], 11: [4.0, 0.3], 19: [0.3, 3.0], 23: [0.1, 0.0], 31: [0.0, 20.0]}
PRETRAIN = Local(steps=50, batch=10)
BEGUN = Groups(
    torch.tensor([[5.0, 1.0], [1.0, 9.0]]),
    by_client({3: 0, 7: 1, 11: 0}),
    torch.arange(2),
    W0,
    torch.tensor([[3.0, 0.0], [0.0, 4.0]]),
    torch.tensor([3, 7, 11]),
)


def first_updates(task: Fit) -> Fitted:
    """What those who are asked learn from w0."""
    assert all_of(task.start) == [1.0, 1.0]
    ids = on(task) or []
    return fitted({i: [1 + UPDATES[i][0], 1 + UPDATES[i][1]] for i in ids}, n=[int(10 * i) for i in ids])


@pytest.mark.parametrize("grouping", ["edc", "madc"])
def test_the_group_cold_start(grouping: Any) -> None:
    """{3, 11, 23} and {7, 19, 31}; a group starts at w0 + the unweighted mean update.

    [1, 1] + [6.1, 0.3] / 3 = [3.033333, 1.1] and [1, 1] + [0.3, 24] / 3 = [1.1, 9].
    """
    method = variant(FedGroup, k=2, alpha=3, grouping=grouping, pretrain=PRETRAIN, local=LOCAL)
    ask = ScriptedAsk(first_updates, NOBODY)
    state = method.round(NOT_BEGUN, make_cohort([3, 7], ROSTER), ask)
    assert table(state.labels) == {3: 0, 7: 1, 11: 0, 19: 1, 23: 0, 31: 1}
    close(state.centers, [[1 + 6.1 / 3, 1.1], [1.1, 9.0]])
    close(state.updates, [[6.1 / 3, 0.1], [0.1, 8.0]])
    close(state.w0, [1.0, 1.0])
    assert state.clustered.tolist() == SIX

    cold, train = a_fit(ask.asked[0]), a_fit(ask.asked[1])
    assert on(cold) == SIX  # alpha * m clients of the roster, whoever is in the cohort
    assert cold.local == PRETRAIN
    assert on(train) == [3, 7]
    assert train.local == LOCAL
    assert train.anchor is None
    close(torch.tensor(starts(train.start, 3, 7)), [[1 + 6.1 / 3, 1.1], [1.1, 9.0]])


def test_the_group_cold_start_draws_its_clients() -> None:
    drawn = set()
    for seed in range(10):
        ask = ScriptedAsk(silence)
        played(FedGroup(k=2, alpha=2, local=LOCAL), NOT_BEGUN, make_cohort([3], LARGER, seed=seed), ask)
        ids = on(ask.asked[0]) or []
        assert len(ids) == 4
        assert ids == sorted(set(ids))
        assert set(ids) <= set(LARGER.ids.tolist())
        assert a_fit(ask.asked[0]).local == LOCAL  # like the training, where nothing else is said
        drawn.add(tuple(ids))
    assert len(drawn) > 2


def test_those_who_do_not_answer_the_cold_start_are_newcomers() -> None:
    """31 is missing from the cold start: the second group is [0.15, 2]. In the cohort it is pre-trained alone."""
    gone = {i: u for i, u in UPDATES.items() if i != 31}
    cold = fitted({i: [1 + u[0], 1 + u[1]] for i, u in gone.items()})
    ask = ScriptedAsk(cold, first_updates, NOBODY)
    state = FedGroup(k=2, alpha=3, local=LOCAL).round(NOT_BEGUN, make_cohort([3, 31], ROSTER), ask)
    close(state.updates[1], [0.15, 2.0])
    assert state.clustered.tolist() == [3, 7, 11, 19, 23]
    assert on(ask.asked[1]) == [31]
    assert table(state.labels)[31] == 1


def train_answer(task: Fit) -> Fitted:
    assert on(task) == [3, 7, 11]
    assert starts(task.start, 3, 7, 11) == [[5.0, 1.0], [1.0, 9.0], [5.0, 1.0]]
    # 7 is missing: group 1 keeps its model.
    return fitted({3: [8.0, 0.0], 11: [2.0, 3.0]}, n=[30, 60], choice=[0, 0])


def test_a_round_within_the_groups() -> None:
    ask = ScriptedAsk(train_answer)
    state = FedGroup(k=2, local=LOCAL).round(BEGUN, make_cohort([3, 7, 11], ROSTER, round=4), ask)
    close(state.centers, [[4.0, 2.0], [1.0, 9.0]])  # (30 * [8, 0] + 60 * [2, 3]) / 90
    close(state.updates, BEGUN.updates)  # newcomers are measured against the first updates, for good
    assert table(state.labels) == {3: 0, 7: 1, 11: 0}


def test_fedgrouprox_holds_members_near_their_group() -> None:
    ask = ScriptedAsk(train_answer)
    state = FedGrouProx(k=2, mu=0.7, local=LOCAL).round(BEGUN, make_cohort([3, 7, 11], ROSTER, round=4), ask)
    close(state.centers, [[4.0, 2.0], [1.0, 9.0]])
    fit = a_fit(ask.asked[0])
    assert fit.mu == 0.7
    assert starts(fit.anchor, 3, 7) == [[5.0, 1.0], [1.0, 9.0]]


def test_aggregation_between_groups() -> None:
    """After training the groups are at [3, 4], [0, 2] and [-8, 6], of directions [0.6, 0.8], [0, 1], [-0.8, 0.6].

    eta_g = 0.5: [3, 4] + 0.5 [-0.8, 1.6], [0, 2] + 0.5 [-0.2, 1.4], [-8, 6] + 0.5 [0.6, 1.8]. The third is absent
    and is moved by the others all the same (line 18 goes over all groups).
    """
    before = dataclasses.replace(
        BEGUN,
        centers=torch.tensor([[5.0, 1.0], [1.0, 9.0], [-8.0, 6.0]]),
        updates=torch.tensor([[3.0, 0.0], [0.0, 4.0], [-1.0, 0.0]]),
    )
    ask = ScriptedAsk(fitted({3: [3.0, 4.0], 7: [0.0, 2.0]}, choice=[0, 1]))
    state = FedGroup(k=3, eta_g=0.5, local=LOCAL).round(before, make_cohort([3, 7], ROSTER, round=4), ask)
    close(state.centers, [[2.6, 4.8], [-0.1, 2.7], [-7.7, 6.9]])


def test_aggregation_between_groups_leaves_running_statistics_alone() -> None:
    """The third number is a statistic: it has no direction, and is no part of a length. The rest is as above."""
    before = dataclasses.replace(
        BEGUN,
        centers=torch.tensor([[5.0, 1.0, 7.0], [1.0, 9.0, 8.0], [-8.0, 6.0, 9.0]]),
        updates=torch.tensor([[3.0, 0.0], [0.0, 4.0], [-1.0, 0.0]]),
    )
    ask = ScriptedAsk(fitted({3: [3.0, 4.0, 7.5], 7: [0.0, 2.0, 8.5]}, choice=[0, 1]))
    state = FedGroup(k=3, eta_g=0.5, local=LOCAL).round(before, make_cohort([3, 7], ROSTER, round=4), ask)
    close(state.centers, [[2.6, 4.8, 7.5], [-0.1, 2.7, 8.5], [-7.7, 6.9, 9.0]])


def test_newcomers_join_the_group_whose_update_is_most_alike() -> None:
    """Eq. 9 looks at angles, not at distances, to [3, 0] and [0, 4].

    [30, 20] is flatter than 45 degrees: group 0. [0.1, 0.2] is steeper: group 1, though it is nearer to [3, 0]
    (2.91 against 3.80).
    """
    ask = ScriptedAsk(fitted({19: [31.0, 21.0], 31: [1.1, 1.2]}))
    method = FedGroup(k=2, pretrain=PRETRAIN, local=LOCAL)
    state = method.admit(BEGUN, make_cohort([3, 7, 19, 23, 31], ROSTER, round=4), ask)
    fit = a_fit(ask.asked[0])
    assert on(fit) == [19, 23, 31]
    assert all_of(fit.start) == [1.0, 1.0]  # w0, not the group's present model
    assert fit.local == PRETRAIN
    assert table(state.labels) == {3: 0, 7: 1, 11: 0, 19: 0, 31: 1}
    close(state.centers, BEGUN.centers)
    close(state.updates, BEGUN.updates)


def test_a_newcomer_that_did_not_move_goes_by_loss() -> None:
    """19 has an update of zero and no angle to any group: not group 0, but the one whose model fits its data."""
    ask = ScriptedAsk(fitted({19: [1.0, 1.0], 31: [3.0, 1.0]}), scored({19: [0.9, 0.1]}))
    state = FedGroup(k=2, local=LOCAL).admit(BEGUN, make_cohort([19, 31], ROSTER, round=4), ask)
    task = ask.asked[1]
    assert isinstance(task, Score)
    assert on(task) == [19]
    assert torch.equal(task.centers, BEGUN.centers)
    assert table(state.labels) == {3: 0, 7: 1, 11: 0, 19: 1, 31: 0}


@pytest.mark.parametrize("grouping", ["edc", "madc", "rcc"])
def test_too_few_answers_do_not_make_the_groups(grouping: Any) -> None:
    """Two of six answer: four groups would be two, for good. The round is tried again instead."""
    method = variant(FedGroup, k=4, grouping=grouping, local=LOCAL)
    ask = ScriptedAsk(fitted({11: [5.0, 1.0], 19: [1.0, 4.0]}))
    with raises("quorum", match="round 1: 2 clients answered, too few to find 4 clusters"):
        method.round(NOT_BEGUN, make_cohort([11, 19], ROSTER), ask)


def test_all_before_asks_the_whole_roster() -> None:
    """Four of eight make the groups; the other four join before the first round, though only 3 and 7 take part."""
    steps = UPDATES | {42: [5.0, 0.0], 57: [0.0, 5.0]}
    cohort = make_cohort([3, 7], LARGER)
    ask = Imagined(lambda i, start: steps[i], cohort)
    state = variant(FedGroup, k=2, alpha=2, cold_start="all_before", local=LOCAL).round(NOT_BEGUN, cohort, ask)
    asked = [on(visit[0]) or [] for visit in ask.visits]
    assert len(asked[0]) == len(asked[1]) == 4
    assert sorted(asked[0] + asked[1]) == LARGER.ids.tolist()
    assert asked[2:] == [[3, 7]]
    labels = table(state.labels)
    assert sorted(labels) == LARGER.ids.tolist()
    right = {i for i, label in labels.items() if label == labels[3]}
    assert right == {3, 11, 23, 42}


def test_on_selection_asks_the_cohort_only() -> None:
    steps = UPDATES | {42: [5.0, 0.0], 57: [0.0, 5.0]}
    cohort = make_cohort([42, 57], LARGER)
    ask = Imagined(lambda i, start: steps[i], cohort)
    state = FedGroup(k=2, alpha=2, local=LOCAL).round(NOT_BEGUN, cohort, ask)
    assert set(table(state.labels)) == set(on(ask.visits[0][0]) or []) | {42, 57}


def test_rcc_makes_the_groups_of_single_random_clients() -> None:
    steps = UPDATES | {42: [5.0, 0.0], 57: [0.0, 5.0]}
    cohort = make_cohort(LARGER.ids.tolist(), LARGER, seed=1)
    ask = Imagined(lambda i, start: steps[i], cohort)
    state = variant(FedGroup, k=3, grouping="rcc", local=LOCAL).round(NOT_BEGUN, cohort, ask)
    seeds = on(ask.visits[0][0]) or []
    assert len(seeds) == 3
    assert [table(state.labels)[i] for i in seeds] == [0, 1, 2]
    close(state.updates, [steps[i] for i in seeds])
    # Everyone else joins by cosine.
    for i, label in table(state.labels).items():
        cosines = [np.dot(steps[i], steps[s]) / np.linalg.norm(steps[i]) / np.linalg.norm(steps[s]) for s in seeds]
        assert cosines[label] == pytest.approx(max(cosines))


def test_rac_draws_the_group_of_the_unclustered_anew_each_time() -> None:
    method = variant(FedGroup, k=2, grouping="rac", local=LOCAL)
    state, drawn = BEGUN, []
    for t in range(12):
        cohort = make_cohort([3, 7, 19], ROSTER, round=4 + t, seed=t)
        ask = Imagined(lambda i, start: [0.0, 0.0], cohort)
        state = method.round(state, cohort, ask)
        labels = table(state.labels)
        assert (labels[3], labels[7], labels[11]) == (0, 1, 0)  # those who made the groups stay
        last = a_fit(ask.visits[-1][0])
        assert starts(last.start, 19) == [state.centers[labels[19]].tolist()]
        drawn.append(labels[19])
    assert set(drawn) == {0, 1}
    assert len(set(drawn[:6])) == 2 or len(set(drawn[6:])) == 2


def test_rac_clusters_before_it_draws() -> None:
    cohort = make_cohort(SIX, ROSTER)
    ask = Imagined(lambda i, start: UPDATES[i], cohort)
    state = variant(FedGroup, k=2, alpha=3, grouping="rac", local=LOCAL).round(NOT_BEGUN, cohort, ask)
    assert table(state.labels) == {3: 0, 7: 1, 11: 0, 19: 1, 23: 0, 31: 1}


@pytest.mark.parametrize("grouping", ["edc", "madc", "rcc", "rac"])
@pytest.mark.parametrize("cold_start", ["on_selection", "all_before"])
def test_nobody_answers(grouping: Any, cold_start: Any) -> None:
    method = variant(FedGroup, k=2, grouping=grouping, cold_start=cold_start, local=LOCAL)
    assert played(method, NOT_BEGUN, make_cohort([3, 7], ROSTER), ScriptedAsk(silence)) is NOT_BEGUN
    assert played(method, BEGUN, make_cohort([3, 7], ROSTER, round=1), ScriptedAsk(silence)) is BEGUN


def test_a_member_predicts_with_its_group() -> None:
    (model,) = FedGroup(k=2).predictor(BEGUN).models
    assert starts(model, 7, 11) == [[1.0, 9.0], [5.0, 1.0]]


def test_the_groups_come_with_the_first_round() -> None:
    state = FedGroup(k=2).init(TWO, ROSTER, np.random.default_rng(0))
    assert state.centers.shape == (1, 2)
    close(state.w0, state.centers[0])
    assert len(state.updates) == 0
