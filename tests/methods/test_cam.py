"""CAM by hand: every task of the base becomes one on residuals, and the global model trains beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
    kept,
    make_cohort,
    make_roster,
    on,
    pick_of,
    played,
    scored,
    silence,
    starts,
    table,
    variant,
)
from torch import Tensor, nn

import coterie
from conftest import raises
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Best, Own, Ref
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Fit, Fitted, Score
from coterie.data.federation import Federation
from coterie.methods.cam import CAM, IFCACAM, Additive, FeSEMCAM, References, stretched
from coterie.methods.cfl import CFL, Tree
from coterie.methods.composed import Composed
from coterie.methods.fedem import FedEM
from coterie.methods.fedgroup import FedGroup, Groups
from coterie.methods.fedsoft import FedSoft
from coterie.methods.fesem import FeSEM
from coterie.methods.hard_clusters import Clusters
from coterie.methods.ifca import IFCA
from coterie.methods.stocfl import StoCFL, Stochastic

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20})
SHARED = torch.tensor([1.0, 1.0])
CENTERS = torch.tensor([[0.0, 0.0], [3.0, 3.0], [9.0, 9.0]])
OTHER = Local(steps=2, lr=0.5)  # how the global model is trained
BEFORE = Additive(SHARED, CENTERS, torch.tensor([7.0, 7.0]), 0)
COHORT = make_cohort([3, 7, 11], ROSTER)


def ifca_cam(**options: Any) -> CAM:
    made: CAM = variant(CAM, base=IFCA(k=3, local=LOCAL), **{"warmup": 0, "local": OTHER, **options})
    return made


def answers(order: str = "simultaneous") -> ScriptedAsk:
    """7 is missing; 3 chose center 0 and 11 center 1. Their models, and their copies of the global one."""
    clusters = fitted({3: [3.0, 0.0], 11: [0.0, 6.0]}, n=[30, 60], choice=[0, 1])
    shared = fitted({3: [4.0, 1.0], 11: [1.0, 4.0]}, n=[30, 60])
    return ScriptedAsk([shared, clusters] if order == "global_first" else [clusters, shared])


def is_shared(ref: Ref | None) -> bool:
    return isinstance(ref, All) and torch.equal(ref.theta, SHARED)


def best(ref: Ref | None) -> Best:
    assert isinstance(ref, Best)
    assert torch.equal(ref.centers, CENTERS)
    return ref


@pytest.mark.parametrize("order", ["simultaneous", "cluster_first", "global_first"])
def test_a_round_trains_both_on_what_the_other_leaves_over(order: Any) -> None:
    ask = answers(order)
    state = ifca_cam(order=order).round(BEFORE, COHORT, ask)
    close(state.base, [[3.0, 0.0], [0.0, 6.0], [9.0, 9.0]])  # a mean per cluster, an empty one stays
    close(state.shared, [2.0, 3.0])  # (30 * [4, 1] + 60 * [1, 4]) / 90
    assert state.rounds == 1

    (visit,) = ask.asked
    first, second = a_fit(visit[0]), a_fit(visit[1])
    cluster, shared = (second, first) if order == "global_first" else (first, second)
    assert is_shared(best(cluster.start).given)  # Eq. 2: the choice is by the loss of the sum
    assert is_shared(shared.start)
    assert (cluster.local, shared.local) == (LOCAL, OTHER)
    assert cluster.optimizer_slot != shared.optimizer_slot
    assert cluster.anchor is None
    assert shared.anchor is None
    assert cluster.send
    assert shared.send
    match order:
        case "simultaneous":  # Eq. 5 and 8: both from the round's start
            assert is_shared(cluster.offset)
            assert is_shared(best(shared.offset).given)
            assert (cluster.save, shared.save) == (None, None)
        case "cluster_first":  # the global model sees the cluster model that was just trained
            assert is_shared(cluster.offset)
            assert isinstance(shared.offset, Own)
            assert shared.offset.slot == cluster.save is not None
        case "global_first":
            assert is_shared(best(shared.offset).given)
            assert isinstance(cluster.offset, Own)
            assert cluster.offset.slot == shared.save is not None


def test_clusters_may_be_chosen_without_the_global_model() -> None:
    ask = answers()
    cam = ifca_cam(score="alone")
    state = cam.round(BEFORE, COHORT, ask)
    cluster = a_fit(ask.asked[0][0])
    assert best(cluster.start).given is None
    assert is_shared(cluster.offset)  # but they are trained with it
    model = cam.predictor(state).models[1]
    assert isinstance(model, Best)
    assert model.given is None


def test_lambda_pulls_a_client_to_its_cluster() -> None:
    ask = answers()
    ifca_cam(lam=0.4).round(BEFORE, COHORT, ask)
    cluster, shared = (a_fit(task) for task in ask.asked[0])
    assert cluster.mu == 0.4
    assert torch.equal(best(cluster.anchor).centers, best(cluster.start).centers)
    assert is_shared(best(cluster.anchor).given)  # the very row it starts from
    assert (shared.anchor, shared.mu) == (None, 0.0)


def test_eq6_moves_a_center_by_the_share_of_its_clients() -> None:
    """Shares 30/90 and 60/90: [0, 0] goes a third of the way to [3, 0], [3, 3] two thirds of the way to [0, 6]."""
    state = ifca_cam(cluster_update="eq6").round(BEFORE, COHORT, answers())
    close(state.base, [[1.0, 0.0], [1.0, 5.0], [9.0, 9.0]])
    close(state.shared, [2.0, 3.0])


@pytest.mark.parametrize("k", [2, 3])
def test_eq6_leaves_the_first_clustering_alone(k: int) -> None:
    """There were no centers before it that could have moved, whatever k is."""
    clusters = fitted({3: [0.0, 0.0], 7: [20.0, 0.0], 11: [0.0, 40.0]}, n=[30, 10, 60], choice=[0, 0, 0])
    cam = CAM(base=FeSEM(k=k, local=LOCAL), warmup=0, cluster_update="eq6")
    state = cam.round(fesem_before(), make_cohort([3, 7, 11], ROSTER), ScriptedAsk([clusters, NOBODY]))
    plain = dataclasses.replace(cam, cluster_update="mean")
    same = plain.round(fesem_before(), make_cohort([3, 7, 11], ROSTER), ScriptedAsk([clusters, NOBODY]))
    close(state.base.centers, same.base.centers.tolist())


def test_eq6_of_a_base_with_labels() -> None:
    """FeSEM: 3 and 7 are nearest to [0, 0], 11 to [10, 0]; shares 0.4 and 0.6.

    [0, 0] + 0.4 ([2, 0] - [0, 0]) and [10, 0] + 0.6 ([15, 0] - [10, 0]).
    """
    base = Clusters(torch.tensor([[0.0, 0.0], [10.0, 0.0]]), by_client({3: 0, 7: 0, 11: 1}), torch.arange(2))
    clusters = fitted({3: [2.0, 1.0], 7: [2.0, -3.0], 11: [15.0, 0.0]}, n=[30, 10, 60], choice=[0, 0, 1])
    cam = CAM(base=FeSEM(k=2, weights="size", local=LOCAL), warmup=0, cluster_update="eq6")
    state = cam.round(dataclasses.replace(BEFORE, base=base), COHORT, ScriptedAsk([clusters, NOBODY]))
    close(state.base.centers, [[0.8, 0.0], [13.0, 0.0]])  # (30 * 1 + 10 * (-3)) / 40 = 0 in the second number


def stochastic(centers: list[list[float]], labels: dict[int, int], psi: list[list[float]]) -> Stochastic:
    k = len(centers)
    members = torch.bincount(torch.tensor(list(labels.values())), minlength=k).float()
    omega = torch.tensor([2.0, 2.0])
    return Stochastic(
        torch.tensor(centers),
        by_client(labels),
        torch.arange(2),
        omega,
        omega,
        torch.tensor(psi),
        members,
        members,
    )


@pytest.mark.parametrize("update", ["parallel", "chain"])
def test_eq6_looks_at_those_who_trained_cluster_models(update: Any) -> None:
    """Clusters {3} and {11} of shares 1/3 and 2/3, moved by [3, 0] each: by 1 and by 2, however omega is trained."""
    base = stochastic([[0.0, 0.0], [5.0, 5.0]], {3: 0, 11: 1}, [[1.0, 0.0], [0.0, 1.0]])
    cohort = make_cohort([3, 11], ROSTER)
    cam = CAM(base=variant(StoCFL, global_update=update, local=LOCAL), warmup=0, cluster_update="eq6", local=OTHER)
    ask = Imagined(lambda i, start: [3.0, 0.0], cohort)
    state = cam.round(dataclasses.replace(BEFORE, base=base), cohort, ask)
    close(state.base.centers, [[1.0, 0.0], [7.0, 5.0]])


def test_eq6_where_clusters_merge_while_another_comes() -> None:
    """0 and 1 become one and 7 founds another: two clusters before and after, but not the same two.

    A cluster that was not there before has nothing to be interpolated with; 11's cluster began at omega_0 = [2, 2].
    """
    base = stochastic([[0.0, 0.0], [6.0, 6.0]], {3: 0, 11: 1}, [[1.0, 0.0], [1.0, 0.1]])
    cohort = make_cohort([3, 7, 11], ROSTER)

    def step(i: int, start: Tensor) -> list[float]:
        return [0.0, -1.0] if i == 7 else [0.0, 0.0]  # 7's gradient is [0, 1]; nobody else moves at all

    cam = CAM(base=StoCFL(tau=0.5, local=LOCAL), warmup=0, cluster_update="eq6", local=OTHER)
    state = cam.round(dataclasses.replace(BEFORE, base=base), cohort, Imagined(step, cohort))
    assert table(state.base.labels) == {3: 0, 7: 1, 11: 0}
    # The merged model is [3, 3] and stays there; 7's is near [2, 2], and nothing of cluster 1's old [6, 6] is in it.
    close(state.base.centers[0], [3.0, 3.0])
    assert float(state.base.centers[1].max()) <= 2.0


def test_the_anchor_of_the_base_stays() -> None:
    base = stochastic([[0.0, 0.0]], {3: 0}, [[1.0, 0.0]])
    cohort = make_cohort([3], ROSTER)
    cam = CAM(base=StoCFL(tau=0.5, lam=0.05, local=LOCAL), warmup=0, lam=0.9, local=OTHER)
    ask = Imagined(lambda i, start: [0.0, 0.0], cohort)
    cam.round(dataclasses.replace(BEFORE, base=base), cohort, ask)
    fits = [a_fit(task) for task in ask.visits[0]]
    assert len(fits) == 3  # theta_k, Theta_g, omega
    assert all_of(fits[0].anchor) == [2.0, 2.0]
    assert fits[0].mu == 0.05
    assert is_shared(fits[0].offset)
    assert is_shared(fits[1].start)
    assert starts(fits[1].offset, 3) == [[0.0, 0.0]]
    assert all_of(fits[2].start) == [2.0, 2.0]  # StoCFL's own global model, a residual as well
    assert is_shared(fits[2].offset)


def test_a_score_of_the_base_is_one_of_the_sum() -> None:
    base = Composed(representation="losses", clustering="argmin", k=3, local=LOCAL)
    for score, given in (("additive", True), ("alone", False)):
        cam: Any = variant(CAM, base=base, warmup=0, score=score, local=OTHER)
        state = cam.init(TWO, ROSTER, np.random.default_rng(0))
        ask = ScriptedAsk([scored({3: [0.1, 0.2, 0.3]})], [fitted({3: [1.0, 1.0]}, choice=[0]), NOBODY])
        cam.round(state, COHORT, ask)
        task = ask.asked[0][0]
        assert isinstance(task, Score)
        assert (task.given is not None) is given
        if given:
            assert all_of(task.given) == state.shared.tolist()


# -------------------------------------------------------------------------------------------------------- warm-up


def test_a_global_warm_up_is_fedavg() -> None:
    cam = ifca_cam(warmup=2)
    ask = ScriptedAsk(fitted({3: [4.0, 1.0], 11: [1.0, 4.0]}, n=[30, 60]))
    state = cam.round(BEFORE, COHORT, ask)
    close(state.shared, [2.0, 3.0])
    assert torch.equal(state.base, CENTERS)
    fit = a_fit(ask.asked[0])
    assert is_shared(fit.start)
    assert (fit.offset, fit.local, fit.on) == (None, OTHER, None)
    (model,) = cam.predictor(state).models
    close(torch.tensor(all_of(model)), [2.0, 3.0])
    # A round that nobody answers does not count; the second that does is the last of the warm-up, the next one joins.
    assert played(cam, state, COHORT, ScriptedAsk(silence)) is state
    state = cam.round(state, COHORT, ScriptedAsk(fitted({3: [2.0, 3.0]}, n=[30])))
    ask = answers()
    state = cam.round(state, COHORT, ask)
    assert len(ask.asked[0]) == 2
    assert len(cam.predictor(state).models) == 2


def fesem_before() -> Additive:
    return dataclasses.replace(BEFORE, base=Clusters(torch.tensor([[5.0, 5.0]]), by_client({}), torch.arange(2)))


LOCALLY = CAM(base=FeSEM(k=2, weights="size", local=LOCAL), warmup=3, warmup_by="local", lam=0.5, local=OTHER)
ALONE = variant(CAM, base=FeSEM(k=2, local=LOCAL), warmup=1, warmup_by="local_unclustered", local=OTHER)


def test_a_local_warm_up_is_clustered_and_the_joint_round_starts_from_the_clusters() -> None:
    """Algorithm 1: everyone trains alone from one start, k-means makes Theta_1:K of it, which theta_i starts from."""
    warm = fitted({3: [0.0, 0.0], 7: [10.0, 0.0], 11: [0.0, 3.0], 19: [10.0, 3.0]}, n=[30, 10, 60, 20])
    ask = ScriptedAsk([warm], silence)
    played(LOCALLY, fesem_before(), COHORT, ask)
    alone, cluster, shared = (a_fit(task) for visit in ask.asked for task in visit)
    assert on(alone) == [3, 7, 11, 19]  # all clients, though only three take part in the round
    assert starts(alone.start, 3, 7, 11, 19) == [[5.0, 5.0]] * 4
    assert (alone.send, alone.offset, alone.anchor) == (True, None, None)
    assert alone.local == dataclasses.replace(LOCAL, steps=(LOCAL.steps or 0) * 3)
    # 3 and 11: (30 * [0, 0] + 60 * [0, 3]) / 90; 7 and 19: (10 * [10, 0] + 20 * [10, 3]) / 30.
    assert starts(cluster.start, 3, 7, 11) == [[0.0, 2.0], [10.0, 2.0], [0.0, 2.0]]
    assert starts(shared.offset, 3, 7, 11) == [[0.0, 2.0], [10.0, 2.0], [0.0, 2.0]]
    assert starts(cluster.anchor, 3, 7, 11) == [[0.0, 2.0], [10.0, 2.0], [0.0, 2.0]]
    assert cluster.mu == 0.5
    assert is_shared(cluster.offset)
    assert is_shared(shared.start)


def test_a_local_warm_up_happens_once_and_whoever_missed_it_is_a_newcomer() -> None:
    warm = fitted({3: [0.0, 0.0], 11: [10.0, 0.0], 19: [10.0, 0.0]}, n=[30, 60, 20])  # 7 is missing
    joint = fitted({3: [0.0, 0.0], 11: [10.0, 0.0]}, n=[30, 60], choice=[0, 1])
    shared = fitted({3: [1.0, 1.0], 11: [1.0, 1.0]})
    state = LOCALLY.round(fesem_before(), COHORT, ScriptedAsk([warm], [scored({})], [joint, shared]))
    assert state.rounds == 1
    assert sorted(table(state.base.labels)) == [3, 11, 19]
    best = 1 - table(state.base.labels)[3]
    ask = ScriptedAsk([scored({7: [0.5, 0.1] if best else [0.1, 0.5]})], silence)
    played(LOCALLY, state, COHORT, ask)
    cluster, _ = (a_fit(task) for task in ask.asked[1])
    assert starts(cluster.start, 7) == [[10.0, 0.0]]  # from the center of least loss, as in FeSEM


def test_a_local_warm_up_that_nobody_answered_is_still_to_come() -> None:
    before = fesem_before()
    assert played(LOCALLY, before, COHORT, ScriptedAsk(silence)) is before
    warm = fitted({3: [0.0, 0.0], 11: [10.0, 0.0]}, n=[30, 60])
    assert played(LOCALLY, before, COHORT, ScriptedAsk([warm], silence, silence)) is before


def test_a_warm_up_without_clusters_goes_on_from_each_clients_own_model() -> None:
    reply = fitted({3: [0.0, 0.0], 7: [10.0, 0.0], 11: [0.0, 2.0]}, n=[30, 10, 60])
    ask = ScriptedAsk([kept(3, 7, 11), reply, NOBODY])
    state = ALONE.round(fesem_before(), COHORT, ask)
    alone, cluster, shared = (a_fit(task) for task in ask.asked[0])
    assert all_of(alone.start) == [7.0, 7.0]  # one common start
    assert (alone.send, alone.offset, alone.local) == (False, None, OTHER)
    assert isinstance(cluster.start, Own)
    assert cluster.start.slot == alone.save
    assert cluster.anchor is None  # nothing to be held near yet
    assert is_shared(cluster.offset)
    assert is_shared(shared.start)
    # Eq. 14: the global model is trained on what theta_i leaves over, which is now the client's own warm model.
    assert isinstance(shared.offset, Own)
    assert shared.offset.slot == cluster.start.slot
    labels = table(state.base.labels)
    assert labels[3] == labels[11] != labels[7]
    close(state.shared, [1.0, 1.0])
    # From then on everyone starts from the cluster's model.
    ask = ScriptedAsk(silence)
    played(ALONE, state, COHORT, ask)
    pick_of(a_fit(ask.asked[0][0]).start)
    pick_of(a_fit(ask.asked[0][1]).offset)
    # One that nobody answered is still to come.
    state = played(ALONE, fesem_before(), COHORT, ScriptedAsk(silence))
    ask = ScriptedAsk(silence)
    played(ALONE, state, COHORT, ask)
    assert len(ask.asked[0]) == 3


@pytest.mark.parametrize(
    ("local", "longer"),
    [(Local(), Local(epochs=3)), (Local(epochs=2), Local(epochs=6)), (Local(steps=10), Local(steps=30))],
)
def test_a_local_warm_up_is_as_long_as_that_many_rounds(local: Local, longer: Local) -> None:
    assert stretched(local, 3) == longer
    assert stretched(dataclasses.replace(local, keep_optimizer=True), 3) == longer


@pytest.mark.parametrize("base", [IFCA(k=2), CFL(), FeSEM(k=2), FedGroup(k=2, alpha=2), StoCFL(tau=0.5)])
def test_every_base_survives_a_local_warm_up(
    base: Any, tiny_federation: Callable[..., Federation], tiny_model: Model
) -> None:
    """Clients that start from a model of their own still say which row they stand for: clusters move in the first
    joint round, and nothing breaks."""
    cam = CAM(base=base, warmup=1, warmup_by="local")
    result = coterie.run(cam, tiny_federation(), model=tiny_model, rounds=1, seed=0)
    start = cam.init(tiny_model, tiny_federation().roster, generator(0, Purpose.INIT)).base
    assert result.state.rounds == 1
    moved = result.state.base if isinstance(start, Tensor) else result.state.base.centers
    before = start if isinstance(start, Tensor) else start.centers
    assert moved.shape != before.shape or not torch.equal(moved, before)


# --------------------------------------------------------------------------------- prediction, newcomers, ablation


def test_the_prediction_is_the_sum_of_both() -> None:
    cam = ifca_cam()
    task = cam.predictor(dataclasses.replace(BEFORE, rounds=1))
    first, second = task.models
    assert is_shared(first)
    assert is_shared(best(second).given)
    assert not task.average
    assert task.mixture is None


@pytest.mark.parametrize("base", [FedEM(k=2), FedSoft(k=2)], ids=["fedem", "fedsoft"])
def test_soft_clusters_are_refused(base: Any) -> None:
    with raises("method-invalid"):
        CAM(base=base).init(TWO, ROSTER, np.random.default_rng(0))


def test_newcomers_follow_the_rule_of_the_base_on_residuals() -> None:
    base = Clusters(torch.tensor([[0.0, 0.0], [10.0, 0.0]]), by_client({3: 0, 11: 1}), torch.arange(2))
    state = dataclasses.replace(BEFORE, base=base, rounds=1)
    cam = CAM(base=FeSEM(k=2, local=LOCAL), warmup=0, lam=0.5, local=OTHER)
    ask = ScriptedAsk([scored({7: [0.8, 0.6]})])
    known = cam.admit(state, make_cohort([3, 7, 11, 19], ROSTER, round=5), ask)
    ((task,),) = ask.asked  # nobody is retrained, the global model neither
    assert isinstance(task, Score)  # FeSEM's rule: the center of least loss, with the global logits
    assert on(task) == [7, 19]
    assert is_shared(task.given)
    assert table(known.base.labels) == {3: 0, 7: 1, 11: 1}
    close(known.base.centers, base.centers)
    close(known.shared, [1.0, 1.0])


def test_newcomers_train_against_the_current_global_model() -> None:
    """Centers are residuals of the current Theta_g, however different the first one was."""
    base = Clusters(torch.tensor([[0.0, 0.0], [10.0, 0.0]]), by_client({3: 0, 11: 1}), torch.arange(2))
    cam = CAM(base=FeSEM(k=2, local=LOCAL), warmup=0, local=OTHER)
    first = torch.tensor([[-50.0, 50.0]])
    for reference in (first, first[0], None):  # a checkpoint of before holds a vector
        state = dataclasses.replace(BEFORE, base=base, rounds=8, reference=reference)
        ask = ScriptedAsk([scored({})])
        cam.admit(state, make_cohort([7], ROSTER, round=8), ask)
        tasks = [task for visit in ask.asked for task in visit]
        assert tasks
        for task in tasks:
            assert is_shared(task.given if isinstance(task, Score) else a_fit(task).offset)


def test_newcomers_of_a_kit_are_scored_on_residuals_and_train_no_global_model() -> None:
    base = Composed(k=2, local=LOCAL)
    cam = CAM(base=base, warmup=0, local=OTHER)
    state = cam.init(TWO, ROSTER, np.random.default_rng(0))
    cohort = make_cohort([3, 11], ROSTER)
    state = cam.round(state, cohort, Imagined(lambda i, start: [float(i), 0.0], cohort))
    ask = Imagined(lambda i, start: [3.0, 0.0], make_cohort([7], ROSTER))
    known = cam.admit(state, make_cohort([7], ROSTER, round=1), ask)
    ((task,),) = ask.visits
    assert isinstance(task, Score)
    assert isinstance(task.given, All)
    assert torch.equal(task.given.theta, state.shared)
    close(known.shared, state.shared.tolist())


def test_newcomers_of_fedgroup_are_pretrained_on_residuals() -> None:
    w0 = torch.tensor([1.0, 1.0])
    base = Groups(
        torch.tensor([[5.0, 1.0], [1.0, 9.0]]),
        by_client({3: 0, 11: 1}),
        torch.arange(2),
        w0,
        torch.tensor([[3.0, 0.0], [0.0, 4.0]]),
        torch.tensor([3, 11]),
    )
    cam = CAM(base=FedGroup(k=2, local=LOCAL), warmup=0, local=OTHER)
    ask = ScriptedAsk([fitted({7: [1.1, 4.0]})])
    known = cam.admit(dataclasses.replace(BEFORE, base=base, rounds=1), make_cohort([7], ROSTER, round=5), ask)
    fit = a_fit(ask.asked[0][0])
    assert all_of(fit.start) == [1.0, 1.0]
    assert is_shared(fit.offset)
    assert table(known.base.labels)[7] == 1


def test_before_clusters_exist_and_where_the_base_has_no_rule_nobody_is_asked() -> None:
    base = Clusters(torch.tensor([[0.0, 0.0], [10.0, 0.0]]), by_client({3: 0}), torch.arange(2))
    cam = CAM(base=FeSEM(k=2, local=LOCAL), warmup=3)
    warming = dataclasses.replace(BEFORE, base=base, rounds=3)
    assert cam.admit(warming, COHORT, ScriptedAsk()) is warming
    done = dataclasses.replace(BEFORE, rounds=9)
    assert ifca_cam().admit(done, COHORT, ScriptedAsk()) is done


def test_nobody_answers() -> None:
    for cam in (ifca_cam(), ifca_cam(cluster_update="eq6"), ifca_cam(warmup=1)):
        assert played(cam, BEFORE, COHORT, ScriptedAsk(silence)) is BEFORE


def test_without_the_global_model_the_base_is_alone() -> None:
    cam = ifca_cam(without_global=True)
    state = cam.init(TWO, make_roster(dict.fromkeys(range(9), 1)), np.random.default_rng(0))
    assert state.shared.tolist() == [0.0, 0.0]
    ask = ScriptedAsk([fitted({3: [3.0, 0.0]}, choice=[0])])
    state = cam.round(state, COHORT, ask)
    assert len(ask.asked[0]) == 1
    assert state.shared.tolist() == [0.0, 0.0]


def test_without_the_global_model_it_stays_zero_in_a_warm_up_too() -> None:
    cam = ifca_cam(without_global=True, warmup=1)
    zero = dataclasses.replace(BEFORE, shared=torch.zeros(2))
    ask = Imagined(lambda i, start: [1.0, 1.0], COHORT, losses={i: [0.1, 0.2, 0.3] for i in (3, 7, 11)})
    state = cam.round(zero, COHORT, ask)
    assert state.shared.tolist() == [0.0, 0.0]


def test_the_named_ones() -> None:
    assert isinstance(IFCACAM().base, IFCA)
    assert IFCACAM().warmup_by == "global"
    assert isinstance(FeSEMCAM().base, FeSEM)
    assert FeSEMCAM().warmup_by == "local"
    assert (FeSEMCAM().base.kmeans_weights, FeSEMCAM().base.weights) == ("size", "size")  # Eq. 10 and 11
    state = IFCACAM(base=IFCA(k=2)).init(TWO, ROSTER, np.random.default_rng(0))
    assert len({tuple(t.tolist()) for t in [state.shared, state.warm, *state.base]}) == 4


MEASURED = Roster(torch.tensor([3, 7, 11]), torch.tensor([10, 10, 10]))


class Moving:
    """Clients that move every start by their own step; remembers the offsets of what began at one model for all."""

    def __init__(self) -> None:
        self.measured: list[torch.Tensor] = []
        self.trained: list[torch.Tensor] = []

    def __call__(self, task: Any) -> Any:
        return [self.one(t) for t in task] if isinstance(task, list) else self.one(task)

    def one(self, task: Fit) -> Fitted:
        ids = MEASURED.ids if task.on is None else task.on
        if isinstance(task.offset, All):
            (self.measured if isinstance(task.start, All) else self.trained).append(task.offset.theta)
        theta = torch.stack([torch.full((2,), float(i)) for i in ids.tolist()])
        return Fitted(ids, torch.full((len(ids),), 10), torch.zeros(len(ids)), theta, torch.zeros_like(ids))


def test_newcomers_of_later_rounds_are_measured_given_the_global_model_that_the_first_were() -> None:
    """FedGroup(k=1) pre-trains 3 in round 0 and meets 7 in round 1, when the global model has moved on."""
    cam = CAM(base=FedGroup(k=1, alpha=1, local=Local()), warmup=0)
    ask: Any = Moving()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), MEASURED, np.random.default_rng(0))
    first = state.shared
    for t, ids in enumerate(([3], [7], [11])):
        state = cam.round(state, Cohort(torch.tensor(ids), t, MEASURED, np.random.default_rng(t)), ask)
    assert not torch.equal(state.shared, first)
    assert len(ask.measured) >= 3
    assert all(torch.equal(offset, first) for offset in ask.measured)
    assert any(not torch.equal(offset, first) for offset in ask.trained)  # cluster models follow the current one


def test_what_stocfl_trains_is_a_residual_of_the_current_global_model() -> None:
    """Representations of later clients stay comparable; omega, which cluster models are pulled to, moves with them."""
    cam = CAM(base=StoCFL(tau=0.5, local=Local()), warmup=0)
    ask: Any = Moving()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), MEASURED, np.random.default_rng(0))
    first, anchor = state.shared, state.base.anchor
    state = cam.round(state, Cohort(torch.tensor([3]), 0, MEASURED, np.random.default_rng(0)), ask)
    assert not torch.equal(state.shared, first)
    assert not torch.equal(state.base.omega, anchor)
    now, ask.measured, ask.trained = state.shared, [], []
    cam.round(state, Cohort(torch.tensor([7]), 1, MEASURED, np.random.default_rng(1)), ask)
    psi, omega = ask.measured
    assert torch.equal(psi, first)
    assert torch.equal(omega, now)


class Settled(Moving):
    """The same clients, to whom omega is perfect as it is: its training brings back the model that was sent."""

    def one(self, task: Fit) -> Fitted:
        reply = super().one(task)
        if task.optimizer_slot != "stocfl.global":
            return reply
        assert isinstance(task.start, All)
        return dataclasses.replace(reply, sent=task.start.theta.expand(len(reply.ids), -1))


def test_a_training_from_the_model_that_is_measured_from_is_given_the_current_global_model() -> None:
    """StoCFL's omega is still its anchor in round 1, when the global model has moved to client 3's (3, 3)."""
    cam = CAM(base=StoCFL(tau=0.5, local=Local()), warmup=0)
    ask: Any = Settled()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), MEASURED, np.random.default_rng(0))
    first = state.shared
    state = cam.round(state, Cohort(torch.tensor([3]), 0, MEASURED, np.random.default_rng(0)), ask)
    assert torch.equal(state.base.omega, state.base.anchor)
    assert state.shared.tolist() == [3.0, 3.0]
    ask.measured = []
    cam.round(state, Cohort(torch.tensor([7]), 1, MEASURED, np.random.default_rng(1)), ask)
    psi, omega = ask.measured  # both begin at the anchor: one is measured, the other trained
    assert psi.tolist() == first.tolist()
    assert omega.tolist() == [3.0, 3.0]


def test_each_fork_of_cfl_is_measured_given_the_global_model_of_its_own_round() -> None:
    stems = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    tree = Tree(stems, ByClient.empty(), torch.arange(2), torch.tensor([0, 0]), torch.tensor([1, 2]), stems, stems)
    early, late, now = torch.tensor([5.0, 5.0]), torch.tensor([6.0, 6.0]), torch.tensor([7.0, 7.0])
    found = References.of(tree, early[None], late)  # the second fork came in the round that began with `late`
    kept = Additive(now, tree, now, 2, found.shared)
    residual = CAM(base=CFL(), warmup=0).residual(kept, None, train=False)
    offsets = [residual.rewrite(Fit(All(model), local=Local(), keep=False))[0][0].offset for model in (*stems, now)]  # type: ignore[union-attr]
    assert [o.theta.tolist() for o in offsets] == [[5.0, 5.0], [6.0, 6.0], [7.0, 7.0]]  # type: ignore[union-attr]


def test_a_local_warm_up_measures_without_a_global_model_and_so_do_later_rounds() -> None:
    cam = CAM(base=FedGroup(k=1, alpha=1, local=Local()), warmup=2, warmup_by="local")
    ask: Any = Moving()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), MEASURED, np.random.default_rng(0))
    for t, ids in enumerate(([3], [7])):
        state = cam.round(state, Cohort(torch.tensor(ids), t, MEASURED, np.random.default_rng(t)), ask)
    newcomer = Cohort(torch.tensor([13]), 2, MEASURED, np.random.default_rng(2))
    cam.admit(state, newcomer, ask)
    assert all(not offset.any() for offset in ask.measured)
    assert any(offset.any() for offset in ask.trained)
