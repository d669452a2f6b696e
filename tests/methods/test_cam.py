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
    assert_same,
    by_client,
    close,
    fitted,
    kept,
    make_cohort,
    make_roster,
    on,
    pick_of,
    scored,
    starts,
    table,
)
from torch import Tensor

import coterie
from coterie.data.federation import Federation
from coterie.errors import CoterieError
from coterie.methods.cam import CAM, IFCACAM, Additive, FeSEMCAM
from coterie.methods.cfl import CFL
from coterie.methods.clusters import Clusters
from coterie.methods.composed import Composed
from coterie.methods.fedem import FedEM
from coterie.methods.fedgroup import FedGroup, Groups
from coterie.methods.fedsoft import FedSoft
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.methods.stocfl import StoCFL, Stochastic
from coterie.model import Model
from coterie.rows import Rows
from coterie.seeds import Purpose, generator
from coterie.tasks import All, Best, Local, Own, Ref, Score

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20})
SHARED = torch.tensor([1.0, 1.0])
CENTERS = torch.tensor([[0.0, 0.0], [3.0, 3.0], [9.0, 9.0]])
OTHER = Local(steps=2, lr=0.5)  # how the global model is trained
BEFORE = Additive(SHARED, CENTERS, torch.tensor([7.0, 7.0]), 0)
COHORT = make_cohort([3, 7, 11], ROSTER)


def ifca_cam(**options: Any) -> CAM:
    return CAM(base=IFCA(k=3, local=LOCAL), **{"warmup": 0, "local": OTHER, **options})


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
        Rows.empty(),
    )


@pytest.mark.parametrize("update", ["parallel", "chain"])
def test_eq6_looks_at_those_who_trained_cluster_models(update: Any) -> None:
    """Clusters {3} and {11} of shares 1/3 and 2/3, moved by [3, 0] each: by 1 and by 2, however omega is trained."""
    base = stochastic([[0.0, 0.0], [5.0, 5.0]], {3: 0, 11: 1}, [[1.0, 0.0], [0.0, 1.0]])
    cohort = make_cohort([3, 11], ROSTER)
    cam = CAM(base=StoCFL(global_update=update, local=LOCAL), warmup=0, cluster_update="eq6", local=OTHER)
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
    cam = CAM(base=StoCFL(lam=0.05, local=LOCAL), warmup=0, lam=0.9, local=OTHER)
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
        cam: Any = CAM(base=base, warmup=0, score=score, local=OTHER)  # type: ignore[arg-type]
        state = cam.init(TWO, ROSTER, np.random.default_rng(0))
        ask = ScriptedAsk([scored({3: [0.1, 0.2, 0.3]})], [NOBODY, NOBODY])
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
    assert cam.round(state, COHORT, ScriptedAsk(NOBODY)) is state
    state = cam.round(state, COHORT, ScriptedAsk(fitted({3: [2.0, 3.0]}, n=[30])))
    ask = answers()
    state = cam.round(state, COHORT, ask)
    assert len(ask.asked[0]) == 2
    assert len(cam.predictor(state).models) == 2


def fesem_before() -> Additive:
    return dataclasses.replace(BEFORE, base=Clusters(torch.tensor([[5.0, 5.0]]), by_client({}), torch.arange(2)))


LOCALLY = CAM(base=FeSEM(k=2, local=LOCAL), warmup=1, warmup_by="local", local=OTHER)


def test_in_a_local_warm_up_each_client_trains_alone_first_and_goes_on_from_there_once() -> None:
    reply = fitted({3: [0.0, 0.0], 7: [10.0, 0.0], 11: [0.0, 2.0]}, n=[30, 10, 60])
    ask = ScriptedAsk([kept(3, 7, 11), reply, NOBODY])
    state = LOCALLY.round(fesem_before(), COHORT, ask)
    alone, cluster, shared = (a_fit(task) for task in ask.asked[0])
    assert all_of(alone.start) == [7.0, 7.0]  # one common start
    assert (alone.send, alone.offset, alone.local) == (False, None, LOCALLY.alone())
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
    ask = ScriptedAsk([NOBODY, NOBODY])
    LOCALLY.round(state, COHORT, ask)
    pick_of(a_fit(ask.asked[0][0]).start)
    pick_of(a_fit(ask.asked[0][1]).offset)


@pytest.mark.parametrize(
    ("local", "longer"),
    [(Local(), Local(epochs=3)), (Local(epochs=2), Local(epochs=6)), (Local(steps=10), Local(steps=30))],
)
def test_a_local_warm_up_is_as_long_as_that_many_rounds(local: Local, longer: Local) -> None:
    assert CAM(base=FeSEM(k=2), warmup=3, warmup_by="local", local=local).alone() == longer


def test_a_local_warm_up_that_nobody_answered_is_still_to_come() -> None:
    before = fesem_before()
    state = LOCALLY.round(before, COHORT, ScriptedAsk([kept(), NOBODY, NOBODY]))
    assert state.rounds == before.rounds
    ask = ScriptedAsk([kept(), NOBODY, NOBODY])
    LOCALLY.round(state, COHORT, ask)
    assert len(ask.asked[0]) == 3


@pytest.mark.parametrize("base", [IFCA(k=2), CFL(), FeSEM(k=2), FedGroup(k=2, alpha=2), StoCFL()])
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
    with pytest.raises(CoterieError, match="hard clusters"):
        CAM(base=base).init(TWO, ROSTER, np.random.default_rng(0))


def test_newcomers_follow_the_rule_of_the_base_on_residuals() -> None:
    base = Clusters(torch.tensor([[0.0, 0.0], [10.0, 0.0]]), by_client({3: 0, 11: 1}), torch.arange(2))
    state = dataclasses.replace(BEFORE, base=base, rounds=1)
    cam = CAM(base=FeSEM(k=2, local=LOCAL), warmup=0, lam=0.5, local=OTHER)
    ask = ScriptedAsk([fitted({7: [8.0, 0.0]})])
    known = cam.admit(state, make_cohort([3, 7, 11, 19], ROSTER, round=5), ask)
    (visit,) = ask.asked
    assert len(visit) == 1  # nobody is retrained, the global model neither
    fit = a_fit(visit[0])
    assert on(fit) == [7, 19]
    assert all_of(fit.start) == [5.0, 0.0]  # FeSEM's rule: from the mean of the centers
    assert is_shared(fit.offset)
    assert table(known.base.labels) == {3: 0, 7: 1, 11: 1}
    close(known.base.centers, base.centers)
    close(known.shared, [1.0, 1.0])


def test_newcomers_that_start_from_a_row_train_no_global_model() -> None:
    base = Composed(k=2, local=LOCAL)
    cam = CAM(base=base, warmup=0, local=OTHER)
    state = cam.init(TWO, ROSTER, np.random.default_rng(0))
    cohort = make_cohort([3, 11], ROSTER)
    state = cam.round(state, cohort, Imagined(lambda i, start: [float(i), 0.0], cohort))
    ask = Imagined(lambda i, start: [3.0, 0.0], make_cohort([7], ROSTER))
    known = cam.admit(state, make_cohort([7], ROSTER, round=1), ask)
    (visit,) = ask.visits
    assert len(visit) == 1
    pick_of(a_fit(visit[0]).start)
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
    state = ifca_cam().round(BEFORE, COHORT, ScriptedAsk([NOBODY, NOBODY]))
    assert_same(dataclasses.replace(state, rounds=0), BEFORE)
    state = ifca_cam(cluster_update="eq6").round(BEFORE, COHORT, ScriptedAsk([NOBODY, NOBODY]))
    assert_same(dataclasses.replace(state, rounds=0), BEFORE)
    state = ifca_cam(warmup=1).round(BEFORE, COHORT, ScriptedAsk(NOBODY))
    assert_same(dataclasses.replace(state, rounds=0), BEFORE)


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
    state = IFCACAM(base=IFCA(k=2)).init(TWO, ROSTER, np.random.default_rng(0))
    assert len({tuple(t.tolist()) for t in [state.shared, state.warm, *state.base]}) == 4
