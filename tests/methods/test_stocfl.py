"""StoCFL by hand: representations, merges, the two models of a visit, the authors' variants, newcomers."""

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
    assert_same,
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
from torch import Tensor

from coterie.core.tasks import Fitted, Local
from coterie.methods.stocfl import StoCFL, Stochastic, representing, with_tau
from papers.methods.rows import Rows
from papers.methods.stocfl import Sampled

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20, 23: 20, 31: 40})
ANCHOR = torch.tensor([1.0, 1.0])
GRADIENT = Local(epochs=1, batch="full", lr=1.0, clip="off")


def state_of(
    centers: list[list[float]],
    labels: dict[int, int],
    psi: list[list[float]],
    members: list[int],
    trained: list[int],
    seen: dict[int, list[float]] | None = None,
    omega: tuple[float, float] = (2.0, 2.0),
) -> Stochastic:
    plain = Stochastic(
        torch.tensor(centers).reshape(-1, 2),
        by_client(labels),
        torch.arange(2),
        torch.tensor(omega),
        ANCHOR,
        torch.tensor(psi).reshape(-1, 2),
        torch.tensor(members, dtype=torch.float32),
        torch.tensor(trained, dtype=torch.float32),
    )
    if seen is None:
        return plain
    rows = Rows(torch.tensor(list(seen), dtype=torch.int64), tuple(torch.tensor(row) for row in seen.values()))
    return Sampled(**vars(plain), seen=rows)


FRESH = state_of([], {}, [], [], [])
# Clusters {3, 7} and {11}, representations pointing right and up; both have trained.
BEGUN = state_of([[5.0, 1.0], [1.0, 9.0]], {3: 0, 7: 0, 11: 1}, [[4.0, 0.0], [0.0, 1.0]], [2, 1], [2, 1])


def test_a_first_round() -> None:
    """Gradients at [1, 1] (where the anchor went, negated): 3 has [1, 0], 7 has [0, 2], 11 has [3, 1]; 19 is silent.

    cos(3, 11) = 3 / sqrt(10) = 0.949, cos(7, 11) = 0.316, cos(3, 7) = 0: with tau = 0.5 the clusters are {3, 11}, {7}.
    """
    ask = ScriptedAsk(
        fitted({3: [0.0, 1.0], 7: [1.0, -1.0], 11: [-2.0, 0.0]}),
        [
            fitted({3: [4.0, 0.0], 7: [7.0, 7.0]}, n=[30, 10], choice=[0, 1]),
            fitted({3: [0.0, 4.0], 7: [8.0, 0.0]}, n=[30, 10]),
        ],
    )
    state = StoCFL(tau=0.5, lam=0.3, local=LOCAL).round(FRESH, make_cohort([3, 7, 11, 19], ROSTER), ask)
    assert table(state.labels) == {3: 0, 7: 1, 11: 0}  # 19 was not met
    close(state.psi, [[4.0, 1.0], [0.0, 2.0]])
    close(state.members, [2, 1])
    close(state.trained, [2, 1])
    close(state.centers, [[4.0, 0.0], [7.0, 7.0]])
    close(state.omega, [2.0, 3.0])  # (30 * [0, 4] + 10 * [8, 0]) / 40
    close(state.anchor, [1.0, 1.0])

    look = a_fit(ask.asked[0])
    assert all_of(look.start) == [1.0, 1.0]
    assert (on(look), look.local, look.anchor) == ([3, 7, 11, 19], GRADIENT, None)
    cluster, shared = (a_fit(task) for task in ask.asked[1])  # one visit
    assert on(cluster) == on(shared) == [3, 7, 11]
    assert starts(cluster.start, 3, 7, 11) == [[1.0, 1.0]] * 3  # all clusters begin at omega_0
    assert all_of(cluster.anchor) == [2.0, 2.0]  # the global model of the round's start
    assert cluster.mu == 0.3
    assert all_of(shared.start) == [2.0, 2.0]
    assert shared.anchor is None
    assert cluster.optimizer_slot != shared.optimizer_slot
    assert cluster.local == shared.local == LOCAL


def test_three_clusters_become_one_within_one_round() -> None:
    """Directions of 0, 40 and 80 degrees, tau = 0.7 (45.6 degrees): 0-40 and 40-80 are alike, 0-80 are not.

    The chain makes one of all three. Its model is the mean by members that have trained: 2, 1 and none.
    """
    turn = [np.deg2rad(a) for a in (0, 40, 80)]
    psi = [[4 * float(np.cos(a)), 4 * float(np.sin(a))] for a in turn]
    before = state_of([[3.0, 0.0], [0.0, 6.0], [99.0, 99.0]], {3: 0, 7: 0, 11: 1, 19: 2}, psi, [2, 1, 1], [2, 1, 0])
    method = StoCFL(tau=0.7, local=LOCAL)
    ask = ScriptedAsk([NOBODY, NOBODY])
    state = method.round(before, make_cohort([3], ROSTER, round=5), ask)  # clusters merge, sampled or not
    assert table(state.labels) == {3: 0, 7: 0, 11: 0, 19: 0}
    close(state.centers, [[2.0, 2.0]])  # (2 * [3, 0] + [0, 6]) / 3: one that has not trained has no say
    close(state.psi, np.sum(psi, 0)[None], within=1e-5)
    close(state.members, [4])
    close(state.trained, [3])
    # Looked at anew after each merge: 0 and 40 become 20 degrees (their sums are equally long), and 80 is 60 away.
    # (By first come, 40 with 80 would be as good: 0-40 and 40-80 tie, the lower pair is first.)
    anew = variant(StoCFL, tau=0.7, recompute_after_merge=True, local=LOCAL)
    exact = dataclasses.replace(before, psi=torch.tensor([[4.0, 0.0], psi[1], [0.7, 4.0]]))
    state = anew.round(exact, make_cohort([3], ROSTER, round=5), ScriptedAsk([NOBODY, NOBODY]))
    assert table(state.labels) == {3: 0, 7: 0, 11: 0, 19: 1}
    close(state.centers, [[2.0, 2.0], [99.0, 99.0]])


def test_clusters_that_have_not_trained_merge_to_where_all_begin() -> None:
    before = state_of([[1.0, 1.0], [1.0, 1.0]], {3: 0, 7: 1}, [[1.0, 0.0], [1.0, 0.1]], [1, 1], [0, 0])
    state = StoCFL(tau=0.5, local=LOCAL).round(before, make_cohort([3], ROSTER), ScriptedAsk([NOBODY, NOBODY]))
    close(state.centers, [[1.0, 1.0]])
    close(state.trained, [0])


def test_the_larger_part_may_give_its_model() -> None:
    before = state_of(
        [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]],
        {3: 0, 7: 1, 11: 1, 19: 2, 23: 3},
        [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 2.0]],
        [1, 2, 1, 1],
        [1, 2, 1, 1],
    )
    method = variant(StoCFL, merge_model="larger", local=LOCAL)
    state = method.round(before, make_cohort([3], ROSTER), ScriptedAsk([NOBODY, NOBODY]))
    # {0, 1}: cluster 1 has two members. {2, 3}: a tie, the lowest number.
    assert table(state.labels) == {3: 0, 7: 0, 11: 0, 19: 1, 23: 1}
    close(state.centers, [[2.0, 0.0], [3.0, 0.0]])
    # A larger part that has not trained has nothing to give.
    untrained = dataclasses.replace(before, trained=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    state = method.round(untrained, make_cohort([3], ROSTER), ScriptedAsk([NOBODY, NOBODY]))
    close(state.centers, [[1.0, 0.0], [3.0, 0.0]])


def test_members_that_answer_are_averaged_and_the_rest_stays() -> None:
    clusters = fitted({3: [4.0, 0.0], 7: [0.0, 8.0]}, n=[30, 10], choice=[0, 0])
    shared = fitted({3: [1.0, 1.0], 7: [5.0, 5.0]}, n=[30, 10])
    cohort = make_cohort([3, 7, 11], ROSTER, round=3)
    state = StoCFL(tau=0.5, local=LOCAL).round(BEGUN, cohort, ScriptedAsk([clusters, shared]))
    close(state.centers, [[3.0, 2.0], [1.0, 9.0]])  # (30 * [4, 0] + 10 * [0, 8]) / 40; 11 was missing
    close(state.omega, [2.0, 2.0])  # (30 * 1 + 10 * 5) / 40
    equal = StoCFL(tau=0.5, local=LOCAL, weights="equal").round(BEGUN, cohort, ScriptedAsk([clusters, shared]))
    close(equal.centers[0], [2.0, 4.0])
    close(equal.omega, [3.0, 3.0])


def test_nobody_is_represented_twice() -> None:
    ask = ScriptedAsk([NOBODY, NOBODY])
    StoCFL(tau=0.5, local=LOCAL).round(BEGUN, make_cohort([3, 11], ROSTER, round=3), ask)
    assert len(ask.asked) == 1
    ask = ScriptedAsk(silence, [NOBODY, NOBODY])
    StoCFL(tau=0.5, local=LOCAL, psi=Local(epochs=10)).round(BEGUN, make_cohort([3, 11, 19], ROSTER, round=3), ask)
    assert on(ask.asked[0]) == [19]
    assert a_fit(ask.asked[0]).local == Local(epochs=10)


@pytest.mark.parametrize(("new_cluster", "begin"), [("anchor", [1.0, 1.0]), ("global", [2.0, 2.0])])
def test_where_a_cluster_of_one_begins(new_cluster: Any, begin: list[float]) -> None:
    ask = ScriptedAsk(fitted({19: [2.0, 1.0]}), [NOBODY, NOBODY])  # its gradient points left: [-1, 0]
    method = variant(StoCFL, tau=0.5, new_cluster=new_cluster, local=LOCAL)
    state = method.round(BEGUN, make_cohort([3, 19], ROSTER, round=3), ask)
    assert table(state.labels) == {3: 0, 7: 0, 11: 1, 19: 2}
    close(state.centers, [[5.0, 1.0], [1.0, 9.0], begin])
    close(state.trained, [2, 1, 0])


def test_a_chain_of_clients_updates_the_global_model() -> None:
    """3 goes on from omega = [2, 2], 7 is silent, 11 goes on from 3's result, 19 from 11's; the plain mean of all."""
    before = dataclasses.replace(BEGUN, labels=by_client({3: 0, 7: 0, 11: 1, 19: 1}))
    ask = ScriptedAsk(
        NOBODY,  # the cluster models
        fitted({3: [3.0, 0.0]}, n=[30]),
        silence,
        fitted({11: [6.0, 3.0]}, n=[60]),
        fitted({19: [0.0, 9.0]}, n=[20]),
    )
    method = variant(StoCFL, global_update="chain", local=LOCAL)
    state = method.round(before, make_cohort([3, 7, 11, 19], ROSTER, round=3), ask)
    assert ask.done
    assert [on(task) for task in ask.asked[1:]] == [[3], [7], [11], [19]]
    assert [all_of(task.start) for task in ask.asked[1:]] == [[2.0, 2.0], [3.0, 0.0], [3.0, 0.0], [6.0, 3.0]]
    assert all_of(ask.asked[0].anchor) == [2.0, 2.0]  # clusters are held near the round's start
    close(state.omega, [3.0, 4.0])  # [9, 12] / 3


# ------------------------------------------------------------------------------------- cluster_vector="sampled"

# Cluster 0 = {3, 7}: [1, 0] and [0, 3]; cluster 1 = {11}: [1, 0]; cluster 2 = {19}: [1, 0].
SAMPLED = state_of(
    [[5.0, 1.0], [1.0, 9.0], [7.0, 7.0]],
    {3: 0, 7: 0, 11: 1, 19: 2},
    [[1.0, 3.0], [1.0, 0.0], [1.0, 0.0]],
    [2, 1, 1],
    [2, 1, 1],
    seen={3: [1.0, 0.0], 7: [0.0, 3.0], 11: [1.0, 0.0], 19: [1.0, 0.0]},
)


def test_only_sampled_members_speak_for_their_cluster() -> None:
    method = variant(StoCFL, tau=0.5, cluster_vector="sampled", local=LOCAL)
    # With 3 and 11: both [1, 0], merged; 2 is not sampled and stays, though its vector is the same.
    state = method.round(SAMPLED, make_cohort([3, 11], ROSTER, round=3), ScriptedAsk([NOBODY, NOBODY]))
    assert table(state.labels) == {3: 0, 7: 0, 11: 0, 19: 1}
    close(state.centers, [[11 / 3, 11 / 3], [7.0, 7.0]])  # (2 * [5, 1] + [1, 9]) / 3
    # With 7 and 11: [0, 3] against [1, 0].
    state = method.round(SAMPLED, make_cohort([7, 11], ROSTER, round=3), ScriptedAsk([NOBODY, NOBODY]))
    assert table(state.labels) == table(SAMPLED.labels)
    # By all members cos([1, 3], [1, 0]) = 0.316: 0 stays alone, 1 and 2 are merged, sampled or not.
    whole = StoCFL(tau=0.5, local=LOCAL)
    state = whole.round(SAMPLED, make_cohort([3, 11], ROSTER, round=3), ScriptedAsk([NOBODY, NOBODY]))
    assert table(state.labels) == {3: 0, 7: 0, 11: 1, 19: 1}


@pytest.mark.parametrize("recompute", [False, True])
def test_unsampled_clusters_stay_apart_at_any_tau(recompute: bool) -> None:
    """With tau below 0 too: nothing is known of an unsampled cluster in this round, so it is merged with nobody."""
    method = variant(StoCFL, tau=-0.5, cluster_vector="sampled", recompute_after_merge=recompute, local=LOCAL)
    state = method.round(SAMPLED, make_cohort([3, 11], ROSTER, round=3), ScriptedAsk([NOBODY, NOBODY]))
    assert table(state.labels) == {3: 0, 7: 0, 11: 0, 19: 1}


def test_representations_are_kept_for_the_sampled_vector_only() -> None:
    reply = fitted({19: [0.0, 1.0]})
    cohort = make_cohort([19], ROSTER)
    method = variant(StoCFL, cluster_vector="sampled", local=LOCAL)
    begun = method.init(TWO, ROSTER, np.random.default_rng(0))
    assert isinstance(begun, Sampled)
    assert begun.seen.ids.tolist() == []
    state = method.round(begun, cohort, ScriptedAsk(reply, [NOBODY, NOBODY]))
    assert state.seen.ids.tolist() == [19]
    state = method.admit(Sampled(**vars(BEGUN), seen=Rows.empty()), cohort, ScriptedAsk(reply))
    assert state.seen.ids.tolist() == [19]
    for plain in (StoCFL(tau=0.5, local=LOCAL), variant(StoCFL, global_update="chain", local=LOCAL)):
        assert type(plain.init(TWO, ROSTER, np.random.default_rng(0))) is Stochastic


# ------------------------------------------------------------------------------------------------ the ends of tau


def step(i: int, start: Tensor) -> list[float]:
    """Gradients 3: [1, 0], 7: [-1, 0], exactly opposite."""
    return [-1.0, 0.0] if i == 3 else [1.0, 0.0]


def test_tau_of_minus_one_merges_everyone() -> None:
    """ "-1 always": StoCFL(tau=-1, lambda=0) is FedAvg, also where two gradients are exactly opposite."""
    cohort = make_cohort([3, 7], ROSTER)
    state = StoCFL(tau=-1, lam=0, local=LOCAL).round(FRESH, cohort, Imagined(step, cohort))
    assert table(state.labels) == {3: 0, 7: 0}


def test_tau_of_one_merges_nobody() -> None:
    cohort = make_cohort([3, 7, 11], ROSTER)
    ask = Imagined(lambda i, start: [1.0, 0.5], cohort)
    state = StoCFL(tau=1, local=LOCAL).round(FRESH, cohort, ask)
    assert table(state.labels) == {3: 0, 7: 1, 11: 2}


# ----------------------------------------------------------------------------------------------------- newcomers


def test_newcomers_join_or_found_a_cluster_with_the_closest_model() -> None:
    """Clusters point right ([4, 0], two members) and up; tau = 0.5.

    19 at 45 degrees, a little flatter: cos 0.71 with the right, joins 0. 23 straight left: cos -1 and 0, so the
    closest is 1 and it is not close enough: a cluster of its own with the model of 1. 31 down: cos -1 with
    1 and 0 with 23's new cluster, the closest: a cluster of its own with that model. The cosine at the very tau is
    close enough.
    """
    gradients = {19: [3.0, 2.9], 23: [-2.0, 0.0], 31: [0.0, -1.0]}
    ask = ScriptedAsk(fitted({i: [1 - g[0], 1 - g[1]] for i, g in gradients.items()}))
    state = StoCFL(tau=0.5, local=LOCAL).admit(BEGUN, make_cohort([3, 19, 23, 31], ROSTER, round=9), ask)
    task = a_fit(ask.asked[0])
    assert on(task) == [19, 23, 31]
    assert all_of(task.start) == [1.0, 1.0]
    assert task.local == GRADIENT
    assert table(state.labels) == {3: 0, 7: 0, 11: 1, 19: 0, 23: 2, 31: 3}
    close(state.centers, [[5.0, 1.0], [1.0, 9.0], [1.0, 9.0], [1.0, 9.0]])
    close(state.psi, [[7.0, 2.9], [0.0, 1.0], [-2.0, 0.0], [0.0, -1.0]])
    close(state.members, [3, 1, 1, 1])
    assert state.trained.tolist()[:2] == [2, 1]
    close(state.omega, [2.0, 2.0])


def test_a_cosine_at_the_very_tau_is_like_enough() -> None:
    ask = ScriptedAsk(fitted({19: [1.0 - 3.0, 1.0 - 4.0]}))  # gradient [3, 4]: cos 0.8 with up
    state = StoCFL(tau=0.8, local=LOCAL).admit(BEGUN, make_cohort([19], ROSTER, round=9), ask)
    assert table(state.labels)[19] == 1


def test_it_does_not_matter_how_many_newcomers_come_at_once() -> None:
    """19 and 23 point left alike, 31 down: together they found two clusters, one by one as well."""
    gradients = {19: [-2.0, 0.0], 23: [-2.0, 0.1], 31: [0.0, -1.0], 37: [3.0, 0.1]}
    replies = {i: [1 - g[0], 1 - g[1]] for i, g in gradients.items()}
    method = StoCFL(tau=0.5, local=LOCAL)
    together = method.admit(BEGUN, make_cohort([19, 23, 31, 37], ROSTER, round=9), ScriptedAsk(fitted(replies)))
    single = BEGUN
    for i, theta in replies.items():
        single = method.admit(single, make_cohort([i], ROSTER, round=9), ScriptedAsk(fitted({i: theta})))
    assert table(together.labels) == table(single.labels) == {3: 0, 7: 0, 11: 1, 19: 2, 23: 2, 31: 3, 37: 0}
    assert_same(together, single)
    close(together.members, [3, 1, 2, 1])


def test_a_tau_of_one_takes_nobody_in() -> None:
    """As documented; not even a newcomer of the very direction."""
    ask = ScriptedAsk(fitted({19: [1.0, 0.0], 23: [1.0, -1.0]}))  # gradients [0, 1] and [0, 2], as cluster 1's
    state = StoCFL(tau=1.0, local=LOCAL).admit(BEGUN, make_cohort([19, 23], ROSTER, round=9), ask)
    assert table(state.labels) == {3: 0, 7: 0, 11: 1, 19: 2, 23: 3}
    close(state.centers[2:], [[1.0, 9.0], [1.0, 9.0]])


@pytest.mark.parametrize(("tau", "labels"), [(0.5, {19: 2, 23: 3}), (-0.5, {19: 1, 23: 0})])
def test_a_newcomer_without_a_gradient_goes_by_loss(tau: float, labels: dict[int, int]) -> None:
    """It is like nothing: at tau = 0.5 it founds a cluster with the model that fits it, at -0.5 it joins that one."""
    ask = ScriptedAsk(
        fitted({19: [1.0, 1.0], 23: [1.0, 1.0], 31: [1.0, 1.0]}), scored({19: [0.9, 0.1], 23: [0.2, 0.3]})
    )
    state = StoCFL(tau=tau, local=LOCAL).admit(BEGUN, make_cohort([19, 23, 31], ROSTER, round=9), ask)
    assert on(ask.asked[1]) == [19, 23, 31]
    assert table(state.labels) == {3: 0, 7: 0, 11: 1, **labels}  # 31 did not answer and stays unmet
    assert starts(state.predictor().models[0], 19, 23) == [[1.0, 9.0], [5.0, 1.0]]


def test_those_admitted_before_anyone_was_met_are_asked_once() -> None:
    reply = fitted({3: [0.0, 1.0], 7: [-1.0, 1.0]})
    state = StoCFL(tau=0.5, local=LOCAL).admit(FRESH, make_cohort([3, 7], ROSTER), ScriptedAsk(reply))
    assert table(state.labels) == {3: 0, 7: 0}
    close(state.centers, [[1.0, 1.0]])


def test_nobody_answers() -> None:
    method = StoCFL(tau=0.5, local=LOCAL)
    assert played(method, FRESH, make_cohort([3], ROSTER), ScriptedAsk(silence, silence)) is FRESH
    assert played(method, BEGUN, make_cohort([3], ROSTER), ScriptedAsk(silence)) is BEGUN
    assert_same(method.admit(BEGUN, make_cohort([19], ROSTER), ScriptedAsk(silence)), BEGUN)
    assert_same(method.admit(BEGUN, make_cohort([3], ROSTER), ScriptedAsk()), BEGUN)
    chain = variant(StoCFL, global_update="chain", local=LOCAL)
    assert played(chain, BEGUN, make_cohort([3, 7], ROSTER), ScriptedAsk(silence)) is BEGUN


def test_one_model_to_begin_with_and_members_predict_with_their_cluster() -> None:
    state = StoCFL(tau=0.5).init(TWO, ROSTER, np.random.default_rng(0))
    assert state.centers.shape == (0, 2)
    close(state.omega, state.anchor)
    (model,) = StoCFL(tau=0.5).predictor(BEGUN).models
    assert starts(model, 7, 11) == [[5.0, 1.0], [1.0, 9.0]]


# ------------------------------------------------------------------------------------------------------- tau: auto


def looks(*kinds: int) -> Any:
    """Everyone's sketch is a corner of the square, by kind; halves differ from it a little, in opposite ways."""

    def answer(tasks: Any) -> Any:
        assert [(task.half, task.sketch, task.send, task.keep) for task in tasks] == [
            (half, 256, False, False) for half in (None, 0, 1)
        ]
        ids = tasks[0].on
        corners = torch.eye(2)[torch.tensor(kinds)]
        apart = 0.05 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])[torch.arange(len(kinds)) % 2]
        sketches = (corners, corners + apart, corners - apart)
        return [Fitted(ids, torch.full((len(ids),), 10), torch.zeros(len(ids)), sketch=s) for s in sketches]

    return answer


def test_halves_say_what_tau_is_once() -> None:
    # Two kinds at a right angle: every tau of the grid from 0 on merges as the halves say; the middle one is taken.
    method, cohort = StoCFL(local=LOCAL), make_cohort([3], ROSTER)
    state = method.init(TWO, ROSTER, np.random.default_rng(0))
    first = ScriptedAsk(looks(0, 1, 0, 1, 0, 1), silence)
    found = with_tau(state, "auto", LOCAL, cohort, first)
    assert found.tau == 0.5
    assert first.asked[0][0].on.tolist() == ROSTER.ids.tolist()  # more than the round's
    assert (cohort.counted[0].k, cohort.counted[0].clients) == (2, 6)
    assert with_tau(found, "auto", LOCAL, cohort, ScriptedAsk()) is found  # nobody is asked again


def test_where_clients_are_alike_everyone_is_merged() -> None:
    state = StoCFL().init(TWO, ROSTER, np.random.default_rng(0))
    found = with_tau(state, "auto", LOCAL, make_cohort([3], ROSTER), ScriptedAsk(looks(0, 0, 0, 0, 0, 0)))
    assert found.tau is not None
    assert found.tau < 0.9


def test_a_tau_that_is_given_asks_nothing_and_is_represented_by_one_gradient() -> None:
    state = StoCFL(tau=0.3).init(TWO, ROSTER, np.random.default_rng(0))
    assert with_tau(state, 0.3, LOCAL, make_cohort([3], ROSTER), ScriptedAsk()) is state
    assert representing(None, 0.3, LOCAL) == GRADIENT
    assert representing(None, "auto", LOCAL) == dataclasses.replace(LOCAL, steps=50)
    assert representing(Local(epochs=3), "auto", LOCAL) == Local(epochs=3)
