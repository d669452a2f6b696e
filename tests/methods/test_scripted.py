"""Whole rounds of each method by hand: a scripted `ask` checks the task it gets and gives made-up models.

A model here is two numbers (a linear layer without bias), so that everything can be worked out on paper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from scripted import played, silence, variant
from torch import Tensor, nn

from coterie.core.model import Model
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import All, Best, Fit, Fitted, Local, Pick, Score, Scored
from coterie.methods.contract import Ask
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.fesem import FeSEM
from coterie.methods.hard_clusters import Clusters
from coterie.methods.ifca import IFCA
from coterie.methods.wecfl import WeCFL

LOCAL = Local(steps=7, lr=0.25)
MODEL = Model(lambda: nn.Linear(2, 1, bias=False))
ROSTER = Roster(torch.arange(9), torch.tensor([10, 20, 30, 40, 50, 60, 70, 80, 90]))


def cohort(*ids: int, round: int = 0) -> Cohort:
    return Cohort(torch.tensor(ids), round, ROSTER, np.random.default_rng(0))


def fitted(models: dict[int, list[float]], n: list[int], choice: list[int] | None = None) -> Fitted:
    """The answers of these clients."""
    return Fitted(
        torch.tensor(list(models), dtype=torch.int64),
        torch.tensor(n),
        torch.zeros(len(models)),
        torch.tensor(list(models.values())) if models else None,
        None if choice is None or not models else torch.tensor(choice),
    )


def script(*answers: Callable[[Any], Any], local: Local = LOCAL) -> Ask:
    """An `ask` that expects exactly these questions."""
    left = list(answers)

    def ask(task: Fit | Score) -> Any:
        assert left, "one question too many"
        if isinstance(task, Score):
            return left.pop(0)(task)
        assert task.local == local
        assert task.send
        assert task.save is None
        assert task.offset is None
        assert task.weights is None
        return left.pop(0)(task)

    return cast(Ask, ask)


def close(actual: Tensor, expected: list[Any]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------- one model for all


def test_fedavg() -> None:
    w = torch.tensor([1.0, 2.0])

    def answer(task: Fit) -> Fitted:
        assert isinstance(task.start, All)
        close(task.start.theta, [1.0, 2.0])
        assert task.anchor is None
        assert task.on is None
        # Clients 2, 3, 5, 7 were asked; 3 and 7 are missing.
        return fitted({2: [4.0, 0.0], 5: [0.0, 8.0]}, n=[30, 10])

    # (30 * [4, 0] + 10 * [0, 8]) / 40 = [3, 2]: those who answered, by their own sizes, and nothing of w.
    close(FedAvg(local=LOCAL).round(w, cohort(2, 3, 5, 7), script(answer)), [3.0, 2.0])
    # Everyone counted alike: ([4, 0] + [0, 8]) / 2 = [2, 4].
    close(FedAvg(local=LOCAL, weights="equal").round(w, cohort(2, 3, 5, 7), script(answer)), [2.0, 4.0])


def test_fedavg_predicts_with_the_one_model() -> None:
    task = FedAvg().predictor(torch.tensor([1.0, 2.0]))
    (model,) = task.models
    assert isinstance(model, All)
    close(model.theta, [1.0, 2.0])
    assert (task.mixture, task.split, task.on) == (None, "test", None)


def test_fedprox_asks_for_the_proximal_term() -> None:
    w = torch.tensor([1.0, 2.0])

    def answer(task: Fit) -> Fitted:
        assert isinstance(task.start, All)
        assert isinstance(task.anchor, All)
        close(task.start.theta, [1.0, 2.0])
        close(task.anchor.theta, [1.0, 2.0])
        assert task.mu == 0.5
        return fitted({0: [0.0, 0.0], 8: [4.0, 4.0]}, n=[10, 90])

    # (10 * [0, 0] + 90 * [4, 4]) / 100 = [3.6, 3.6].
    close(FedProx(local=LOCAL, mu=0.5).round(w, cohort(0, 8), script(answer)), [3.6, 3.6])


@pytest.mark.parametrize("method", [FedAvg(local=LOCAL), FedProx(local=LOCAL)])
def test_one_model_stays_when_nobody_answers(method: FedAvg) -> None:
    w = torch.tensor([1.0, 2.0])
    assert torch.equal(method.round(w, cohort(1, 2), script(lambda task: fitted({}, n=[]))), w)


# ------------------------------------------------------------------------------------------------------- IFCA


def test_ifca() -> None:
    centers = torch.tensor([[0.0, 0.0], [5.0, 5.0], [9.0, 9.0]])

    def answer(task: Fit) -> Fitted:
        assert isinstance(task.start, Best)
        assert torch.equal(task.start.centers, centers)
        assert task.start.given is None
        # Of 1, 3, 5, 7, 8 the clients 3 and 7 are missing; nobody chose center 1.
        return fitted({1: [8.0, 8.0], 5: [4.0, 12.0], 8: [1.0, 0.0]}, n=[10, 30, 20], choice=[2, 2, 0])

    # Center 0: client 8 alone, [1, 0]. Center 1: nobody, it keeps [5, 5].
    # Center 2: (10 * [8, 8] + 30 * [4, 12]) / 40 = [5, 11].
    found = IFCA(k=3, local=LOCAL).round(centers, cohort(1, 3, 5, 7, 8), script(answer))
    close(found, [[1.0, 0.0], [5.0, 5.0], [5.0, 11.0]])
    # The authors' code counts clients alike: ([8, 8] + [4, 12]) / 2 = [6, 10].
    found = IFCA(k=3, local=LOCAL, weights="equal").round(centers, cohort(1, 3, 5, 7, 8), script(answer))
    close(found, [[1.0, 0.0], [5.0, 5.0], [6.0, 10.0]])


def test_ifca_stays_when_nobody_answers() -> None:
    centers = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    found = IFCA(k=2, local=LOCAL).round(centers, cohort(1, 2), script(lambda task: fitted({}, n=[], choice=[])))
    assert torch.equal(found, centers)


def test_ifca_starts_from_different_models_and_predicts_with_the_best() -> None:
    centers = IFCA(k=3).init(MODEL, ROSTER, np.random.default_rng(0))
    assert centers.shape == (3, 2)
    assert len({tuple(c) for c in centers.tolist()}) == 3
    (model,) = IFCA(k=3).predictor(centers).models
    assert isinstance(model, Best)
    assert model.centers is centers


# ------------------------------------------------------------------------------------------------ FeSEM and WeCFL

KNOWN = ByClient(torch.tensor([1, 2, 7]), torch.tensor([0, 1, 1]))


def clusters(centers: list[list[float]], labels: ByClient = KNOWN) -> Clusters:
    return Clusters(torch.tensor(centers), labels, torch.arange(2))


def table(labels: ByClient) -> dict[int, int]:
    return dict(zip(labels.ids.tolist(), labels.values.tolist(), strict=True))


def losses(rows: dict[int, list[float]], *, of: list[int]) -> Callable[[Score], Scored]:
    """These clients, out of those meant, say how well both centers fit their data."""

    def answer(task: Score) -> Scored:
        assert task.rule == "loss"
        close(task.centers, [[0.0, 0.0], [10.0, 0.0]])
        assert task.on is not None
        assert task.on.tolist() == of
        return Scored(torch.tensor(list(rows)), torch.full((len(rows),), 10), torch.tensor(list(rows.values())))

    return answer


def warm_answer(task: Fit) -> Fitted:
    """Clients 1, 2, 3, 7 are asked, 3 is new; 2 does not answer."""
    assert isinstance(task.start, Pick)
    # Everyone starts from the own cluster's center; the new client 3 has joined that of least loss, 0.
    close(task.start.centers[:2], [[0.0, 0.0], [10.0, 0.0]])
    assert table(task.start.labels) == {1: 0, 2: 1, 3: 0, 7: 1}
    return fitted({1: [1.0, 0.0], 3: [9.0, 0.0], 7: [1.0, 2.0]}, n=[30, 10, 10], choice=[0, 0, 1])


def nearest_answer(task: Fit) -> Fitted:
    """The same with join="nearest": the new client 3 starts from the mean of the centers, row 2."""
    assert isinstance(task.start, Pick)
    close(task.start.centers, [[0.0, 0.0], [10.0, 0.0], [5.0, 0.0]])
    assert table(task.start.labels) == {1: 0, 2: 1, 3: 2, 7: 1}
    return fitted({1: [1.0, 0.0], 3: [9.0, 0.0], 7: [1.0, 2.0]}, n=[30, 10, 10], choice=[0, 2, 1])


@pytest.mark.parametrize(
    ("method", "first"),
    [
        # Nearest centers: 1 -> 0; 3 -> 1 (81 to the one, 1 to the other); 7 -> 0 (1 + 4 against 81 + 4).
        # Nobody moves afterwards. Center 0: ([1, 0] + [1, 2]) / 2 = [1, 1]; center 1 is client 3's model.
        ((FeSEM, {"local": LOCAL}), [1.0, 1.0]),
        # WeCFL weighs by size: (30 * [1, 0] + 10 * [1, 2]) / 40 = [1, 0.5].
        ((WeCFL, {"local": LOCAL}), [1.0, 0.5]),
        # In batches of 8, sizes 30 and 10 are 4 and 2: (4 * [1, 0] + 2 * [1, 2]) / 6 = [1, 2/3].
        ((WeCFL, {"local": Local(batch=8), "size_unit": "batches"}), [1.0, 2 / 3]),
        ((WeCFL, {"local": Local(batch="full"), "size_unit": "batches"}), [1.0, 1.0]),
        ((FeSEM, {"local": Local(batch=8), "size_unit": "batches"}), [1.0, 1.0]),  # of clients that count alike
    ],
    ids=["fesem", "wecfl", "wecfl-batches", "wecfl-full-batches", "fesem-batches"],
)
def test_a_warm_round(method: tuple[type[FeSEM], dict[str, Any]], first: list[float]) -> None:
    kind, options = method
    scripts: dict[Any, Any] = {"loss": (losses({3: [0.5, 0.7]}, of=[3]), warm_answer), "nearest": (nearest_answer,)}
    for join, answers in scripts.items():
        state = variant(kind, k=2, join=join, **options).round(
            clusters([[0.0, 0.0], [10.0, 0.0]]), cohort(1, 2, 3, 7), script(*answers, local=options["local"])
        )
        close(state.centers, [first, [9.0, 0.0]])
        assert table(state.labels) == {1: 0, 2: 1, 3: 1, 7: 0}, "client 2 did not answer and stays where it was"


def test_a_new_client_whose_losses_are_not_known_does_not_train() -> None:
    def answer(task: Fit) -> Fitted:
        assert task.on is not None
        assert task.on.tolist() == [1, 6]  # 3 and 8 were asked too, and did not answer
        return fitted({1: [1.0, 0.0], 6: [9.0, 0.0]}, n=[30, 10], choice=[0, 1])

    script_ = script(losses({6: [0.9, 0.2]}, of=[3, 6, 8]), answer)
    state = FeSEM(k=2, local=LOCAL).round(clusters([[0.0, 0.0], [10.0, 0.0]]), cohort(1, 3, 6, 8), script_)
    assert table(state.labels) == {1: 0, 2: 1, 6: 1, 7: 1}


def test_sizes_decide_the_clusters_of_wecfl_but_not_of_fesem() -> None:
    """Points 0, 4.9 | 10, 6 on a line, from centers 0 and 10 (4.9 is nearer to 0 by a hair).

    FeSEM: the means are 2.45 and 8; 4.9 is 2.45 from the one and 3.1 from the other: it stays.
    WeCFL, sizes 97, 1 | 1, 99: the means are 0.05 and 6.04; 4.9 is 4.85 from the one and 1.14 from the other: it
    moves, the means become 0 and (4.9 + 10 + 99 * 6) / 101 = 608.9 / 101 = 6.028713, and nobody moves any more.
    """
    labels = ByClient(torch.tensor([0, 3, 4, 6]), torch.tensor([0, 0, 1, 1]))
    before = clusters([[0.0, 0.0], [10.0, 0.0]], labels)

    def answer(task: Fit) -> Fitted:
        return fitted({0: [0.0, 0.0], 3: [4.9, 0.0], 4: [10.0, 0.0], 6: [6.0, 0.0]}, n=[97, 1, 1, 99])

    fesem = FeSEM(k=2, local=LOCAL).round(before, cohort(0, 3, 4, 6), script(answer))
    assert table(fesem.labels) == {0: 0, 3: 0, 4: 1, 6: 1}
    close(fesem.centers, [[2.45, 0.0], [8.0, 0.0]])
    wecfl = WeCFL(k=2, local=LOCAL).round(before, cohort(0, 3, 4, 6), script(answer))
    assert table(wecfl.labels) == {0: 0, 3: 1, 4: 1, 6: 1}
    close(wecfl.centers, [[0.0, 0.0], [608.9 / 101, 0.0]])


def test_an_empty_cluster_keeps_its_model() -> None:
    before = clusters([[0.0, 0.0], [10.0, 0.0], [50.0, 50.0]])

    def answer(task: Fit) -> Fitted:
        return fitted({1: [1.0, 0.0], 7: [9.0, 0.0]}, n=[20, 80])

    for method in (FeSEM(k=3, local=LOCAL), WeCFL(k=3, local=LOCAL)):
        state = method.round(before, cohort(1, 2, 7), script(answer))
        close(state.centers, [[1.0, 0.0], [9.0, 0.0], [50.0, 50.0]])
        assert table(state.labels) == {1: 0, 2: 1, 7: 1}


def test_only_the_features_decide_and_the_whole_model_is_averaged() -> None:
    before = Clusters(torch.tensor([[0.0, 0.0], [10.0, 100.0]]), KNOWN, torch.tensor([1]))  # the second number

    def answer(task: Fit) -> Fitted:
        # By the first number both are nearest to center 1, by the second to center 0.
        return fitted({1: [9.0, 1.0], 2: [11.0, 3.0]}, n=[10, 30])

    state = WeCFL(k=2, local=LOCAL).round(before, cohort(1, 2), script(answer))
    # (10 * [9, 1] + 30 * [11, 3]) / 40 = [10.5, 2.5]
    assert table(state.labels) == {1: 0, 2: 0, 7: 1}
    close(state.centers, [[10.5, 2.5], [10.0, 100.0]])


def test_the_first_round_parts_clients_by_what_they_learn() -> None:
    method = WeCFL(k=2, local=LOCAL)
    before = method.init(MODEL, ROSTER, np.random.default_rng(0))
    common = before.centers[0]
    assert all(torch.equal(center, common) for center in before.centers), "clients part from one common start"
    assert not len(before.labels.ids)

    def answer(task: Fit) -> Fitted:
        assert isinstance(task.start, Pick)
        rows = task.start.labels.at(torch.tensor([2, 4, 6, 8]))
        torch.testing.assert_close(task.start.centers[rows], common.repeat(4, 1))
        return fitted({2: [0.0, 1.0], 4: [8.0, 0.0], 8: [0.0, 5.0]}, n=[30, 50, 90])

    state = method.round(before, cohort(2, 4, 6, 8), script(answer))
    labels = table(state.labels)
    assert state.centers.shape == (2, 2)
    assert set(labels) == {2, 4, 8}
    assert labels[2] == labels[8] != labels[4]
    close(state.centers[labels[4]], [8.0, 0.0])
    # (30 * [0, 1] + 90 * [0, 5]) / 120 = [0, 4]
    close(state.centers[labels[2]], [0.0, 4.0])


@pytest.mark.parametrize("seed", range(4))
def test_fresh_clusters_take_the_numbers_of_the_old_ones_they_are_nearest_to(seed: int) -> None:
    """Whatever numbers k-means gives: {1, 2} around [10, 0] is cluster 1, {5, 8} around [0, 0] is cluster 0."""
    before = clusters([[0.0, 0.0], [10.0, 0.0]])
    these = Cohort(torch.tensor([1, 2, 5, 8]), 3, ROSTER, np.random.default_rng(seed))

    def answer(task: Fit) -> Fitted:
        return fitted({1: [9.0, 0.0], 2: [11.0, 0.0], 5: [-1.0, 0.0], 8: [1.0, 0.0]}, n=[20, 30, 60, 20])

    places = losses({5: [0.1, 0.9], 8: [0.2, 0.8]}, of=[5, 8])
    state = variant(WeCFL, k=2, local=LOCAL, kmeans="fresh").round(before, these, script(places, answer))
    assert table(state.labels) == {1: 1, 2: 1, 5: 0, 7: 1, 8: 0}
    # (60 * -1 + 20 * 1) / 80 = -0.5 and (20 * 9 + 30 * 11) / 50 = 10.2
    close(state.centers, [[-0.5, 0.0], [10.2, 0.0]])


def test_fresh_clusters_forget_where_the_old_centers_were_and_warm_ones_do_not() -> None:
    """Points 0, 1 and 100, all nearest to the old center 0: warm k-means leaves center 1 empty, fresh does not."""
    before = clusters([[40.0, 0.0], [500.0, 0.0]])

    def answer(task: Fit) -> Fitted:
        return fitted({1: [0.0, 0.0], 2: [1.0, 0.0], 7: [100.0, 0.0]}, n=[10, 10, 10])

    warm = FeSEM(k=2, local=LOCAL).round(before, cohort(1, 2, 7), script(answer))
    assert table(warm.labels) == {1: 0, 2: 0, 7: 0}
    close(warm.centers, [[101 / 3, 0.0], [500.0, 0.0]])
    fresh = variant(FeSEM, k=2, local=LOCAL, kmeans="fresh").round(before, cohort(1, 2, 7), script(answer))
    assert table(fresh.labels) == {1: 0, 2: 0, 7: 1}
    close(fresh.centers, [[0.5, 0.0], [100.0, 0.0]])


@pytest.mark.parametrize("kmeans", ["warm", "fresh"])
def test_fewer_answers_than_clusters(kmeans: Any) -> None:
    before = clusters([[0.0, 0.0], [10.0, 0.0], [20.0, 0.0]])
    method = variant(FeSEM, k=3, local=LOCAL, kmeans=kmeans)
    state = method.round(before, cohort(1, 7), script(lambda task: fitted({7: [19.0, 0.0]}, n=[80])))
    assert table(state.labels) == {1: 0, 2: 1, 7: 2}
    close(state.centers, [[0.0, 0.0], [10.0, 0.0], [19.0, 0.0]])


@pytest.mark.parametrize("method", [FeSEM(k=2, local=LOCAL), variant(WeCFL, k=2, local=LOCAL, kmeans="fresh")])
def test_clusters_stay_when_nobody_answers(method: FeSEM) -> None:
    before = clusters([[0.0, 0.0], [10.0, 0.0]])
    assert played(method, before, cohort(1, 7), script(silence)) is before


def test_newcomers_join_the_center_of_least_loss_and_change_no_model() -> None:
    """3 does not answer; 0 finds both centers alike: the lowest index wins a tie."""
    before = clusters([[0.0, 0.0], [10.0, 0.0]])
    places = losses({0: [0.4, 0.4], 6: [0.9, 0.3]}, of=[0, 3, 6])
    for method in (FeSEM(k=2, local=LOCAL), WeCFL(k=2, local=LOCAL)):
        state = method.admit(before, cohort(0, 1, 2, 3, 6, 7), script(places))
        assert table(state.labels) == {0: 0, 1: 0, 2: 1, 6: 1, 7: 1}
        assert torch.equal(state.centers, before.centers)


def test_newcomers_of_one_cluster_are_not_asked() -> None:
    alone = clusters([[3.0, 4.0]], ByClient(torch.tensor([1]), torch.tensor([0])))
    assert table(FeSEM(k=1, local=LOCAL).admit(alone, cohort(1, 5), script()).labels) == {1: 0, 5: 0}


def test_newcomers_may_join_the_center_nearest_to_what_they_train_from_the_mean() -> None:
    before = clusters([[0.0, 0.0], [10.0, 0.0]])

    def answer(task: Fit) -> Fitted:
        assert isinstance(task.start, All)
        close(task.start.theta, [5.0, 0.0])  # the mean of the centers
        assert task.on is not None
        assert task.on.tolist() == [0, 3, 6]  # those not met yet
        # 3 does not answer. 6 has moved towards [10, 0], 0 sits in the middle: the lowest index wins a tie.
        return fitted({0: [5.0, 3.0], 6: [6.0, 0.0]}, n=[10, 70])

    for method in (variant(FeSEM, k=2, join="nearest", local=LOCAL), variant(WeCFL, k=2, join="nearest", local=LOCAL)):
        state = method.admit(before, cohort(0, 1, 2, 3, 6, 7), script(answer))
        assert table(state.labels) == {0: 0, 1: 0, 2: 1, 6: 1, 7: 1}
        assert torch.equal(state.centers, before.centers)


def test_nobody_new_nobody_asked() -> None:
    before = clusters([[0.0, 0.0], [10.0, 0.0]])
    state = FeSEM(k=2, local=LOCAL).admit(before, cohort(1, 2, 7), script())
    assert state is before


def test_a_member_predicts_with_its_center() -> None:
    before = clusters([[0.0, 0.0], [10.0, 0.0]])
    (model,) = FeSEM(k=2).predictor(before).models
    assert isinstance(model, Pick)
    assert model.centers is before.centers
    assert table(model.labels) == {1: 0, 2: 1, 7: 1}
