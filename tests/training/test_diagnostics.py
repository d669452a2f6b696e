"""Discrepancy (FedGroup, Eq. 4) and clusterability (WeCFL, Definition 6.4): by hand, and against a slow twin."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie
from conftest import linear, make_federation, vector
from coterie.core.tables import ByClient
from coterie.core.tasks import All, Best, Evaluate, Fit, Fitted, Local, Mix, Own, Pick
from coterie.methods.cam import IFCACAM
from coterie.training.diagnostics import Diagnosis, diagnose, models_of, training
from papers.methods.cam import CAMAuthors
from papers.methods.stocfl import StoCFLAuthors

ZERO = vector(0, 0)
NOBODY = torch.empty(0, dtype=torch.int64)


def fitted(models: Sequence[Sequence[float]], n: Sequence[int], choice: Sequence[int] | None = None) -> Fitted:
    """Clients 1, 3, 5, ...: ids that are no positions."""
    ids = 2 * torch.arange(len(models)) + 1
    rows = None if choice is None else torch.tensor(choice)
    return Fitted(ids, torch.tensor(n), torch.zeros(len(models)), torch.tensor(models, dtype=torch.float32), rows)


def labels(*rows: int) -> ByClient:
    return ByClient(2 * torch.arange(len(rows)) + 1, torch.tensor(rows))


def fit(start: Any, **more: Any) -> Fit:
    return Fit(start, Local(), **more)


# ------------------------------------------------------------------------------------------------------ by hand


def test_one_model_for_all() -> None:
    reply = fitted([[1, 0], [0, 1], [1, 1]], [1, 1, 2])
    found = diagnose([(fit(All(ZERO)), reply)], Evaluate((All(vector(0.75, 0.75)),)))
    # Distances from (3/4, 3/4): sqrt(10)/4 twice, sqrt(2)/4.
    assert found.discrepancy == pytest.approx((2 * sqrt(10) / 4 + sqrt(2) / 4) / 3)
    # The mean update is (3/4, 3/4), of length sqrt(9/8); the farthest client is sqrt(5/8) away from it.
    assert found.clusterability == pytest.approx(sqrt(5 / 8) / sqrt(9 / 8))


def test_clusterability_is_a_ratio_of_norms() -> None:
    """Definition 6.4: updates 1 and 3 have mean 2, and both are 1 away from it. The square would be 1/4."""
    found = diagnose([(fit(All(vector(0))), fitted([[1], [3]], [1, 1]))], Evaluate((All(vector(2)),)))
    assert found.clusterability == pytest.approx(0.5)


def test_sizes_weigh_in_the_mean_update() -> None:
    """n = (3, 1): the mean of 0 and 4 is 1, so that B = max(1, 3) / 1; with equal weights it would be 1."""
    found = diagnose([(fit(All(vector(0))), fitted([[0], [4]], [3, 1]))], Evaluate((All(vector(1)),)))
    assert found.clusterability == pytest.approx(3.0)
    assert found.discrepancy == pytest.approx(2.0)


def test_updates_count_not_models() -> None:
    """Everyone moves by (1, 0) from where they were: perfectly alike, whatever their models."""
    start = Pick(torch.tensor([[0.0, 0.0], [10.0, 10.0]]), labels(0, 1, 1))
    reply = fitted([[1, 0], [11, 10], [11, 10]], [1, 2, 3], [0, 1, 1])
    after = Evaluate((Pick(torch.tensor([[1.0, 0.0]]), labels(0, 0, 0)),))
    found = diagnose([(fit(start), reply)], after)
    assert found.clusterability == pytest.approx(0.0, abs=1e-9)
    assert found.discrepancy == pytest.approx(2 * sqrt(200) / 3)


def test_clusters_are_those_after_the_round() -> None:
    """Two clients start from one model and end in two clusters: each is its own mean, B = 0."""
    start = Pick(torch.zeros(1, 1), labels(0, 0))
    reply = fitted([[1], [-3]], [1, 1], [0, 0])
    apart = Evaluate((Pick(torch.tensor([[1.0], [-3.0]]), labels(0, 1)),))
    assert diagnose([(fit(start), reply)], apart) == Diagnosis(0.0, 0.0)
    together = Evaluate((Pick(torch.tensor([[-1.0]]), labels(0, 0)),))
    # The mean update is -1; both are 2 away from it.
    assert diagnose([(fit(start), reply)], together) == Diagnosis(2.0, 2.0)


def test_the_worst_client_of_the_worst_cluster() -> None:
    """Cluster 0 is of one client (0). Cluster 1: updates 1 and 3, mean 2: B = 1/2; cluster 2: 1, 5, mean 3: 2/3."""
    start = Pick(torch.zeros(3, 1), labels(0, 1, 1, 2, 2))
    reply = fitted([[7], [1], [3], [1], [5]], [1, 1, 1, 1, 1], [0, 1, 1, 2, 2])
    after = Evaluate((Pick(torch.tensor([[7.0], [2.0], [3.0]]), labels(0, 1, 1, 2, 2)),))
    found = diagnose([(fit(start), reply)], after)
    assert found.clusterability == pytest.approx(2 / 3)
    assert found.discrepancy == pytest.approx((0 + 1 + 1 + 2 + 2) / 5)


def test_the_row_that_clients_chose_themselves() -> None:
    centers = torch.tensor([[0.0], [10.0]])
    reply = fitted([[1], [13], [12]], [1, 1, 1], [0, 1, 1])
    found = diagnose([(fit(Best(centers)), reply)], Evaluate((Best(torch.tensor([[1.0], [12.5]])),)))
    # The second cluster's updates are 3 and 2, their mean 2.5.
    assert found.clusterability == pytest.approx(0.5 / 2.5)
    assert found.discrepancy == pytest.approx((0 + 0.5 + 0.5) / 3)


def test_a_mean_of_nothing_has_no_direction() -> None:
    found = diagnose([(fit(All(vector(0))), fitted([[1], [-1]], [2, 2]))], Evaluate((All(vector(0)),)))
    assert found == Diagnosis(1.0, None)


def test_nobody_answered() -> None:
    empty = Fitted(NOBODY, NOBODY, torch.empty(0))
    no_models = Fitted(NOBODY, NOBODY, torch.empty(0), torch.empty(0, 2))
    for fits in (
        [],
        [(fit(All(ZERO)), no_models)],
        [(fit(All(ZERO)), empty)],
        [(fit(Best(ZERO[None])), empty), (fit(All(ZERO)), empty)],
    ):
        assert training(fits) is None
        assert diagnose(fits, Evaluate((All(ZERO),))) == Diagnosis(None, None)


def test_models_that_stay_with_clients() -> None:
    kept = Fitted(torch.tensor([1]), torch.tensor([1]), torch.zeros(1))
    assert diagnose([(fit(Own("v", All(ZERO)), send=False), kept)], Evaluate((All(ZERO),))) == Diagnosis()
    sent = fitted([[1, 0]], [1])
    mixed = Evaluate((Own("w", Mix(ZERO[None], labels(0))),))
    assert diagnose([(fit(Own("w", All(ZERO))), sent)], mixed) == Diagnosis()


def test_a_start_of_ones_own_leaves_the_discrepancy() -> None:
    found = diagnose([(fit(Own("w", All(ZERO))), fitted([[3, 4]], [1]))], Evaluate((All(ZERO),)))
    assert found == Diagnosis(5.0, None)


@pytest.mark.parametrize("cluster_first", [True, False])
def test_cluster_models_go_before_the_shared_one(cluster_first: bool) -> None:
    """CAM trains both in one visit, in either order, and clients predict with their sum."""
    clustered = fit(Pick(torch.zeros(2, 1), labels(0, 1))), fitted([[2], [4]], [1, 1], [0, 1])
    shared = fit(All(vector(0))), fitted([[100], [-50]], [1, 1])
    fits = [clustered, shared] if cluster_first else [shared, clustered]
    after = Evaluate((All(vector(25)), Pick(torch.tensor([[1.0], [1.0]]), labels(0, 1))))
    chosen, given = training(fits), models_of(after)
    assert chosen is not None
    assert chosen[1] is clustered[1]
    assert diagnose(fits, after) == Diagnosis(2.0, 0.0)
    assert given is not None
    assert given.tolist() == [[1.0], [1.0]]


def test_models_that_clients_are_given() -> None:
    assert models_of(Evaluate((Own("w", All(ZERO)),))) is None
    shared = models_of(Evaluate((All(vector(1, 2)),)))
    assert shared is not None
    assert shared.tolist() == [[1.0, 2.0]]


def test_all_models_of_an_ensemble_are_given() -> None:
    shared = models_of(Evaluate((All(vector(1, 2)), All(vector(3, 4))), average=True))
    assert shared is not None
    assert shared.tolist() == [[1.0, 2.0], [3.0, 4.0]]


# --------------------------------------------------------------------------------------------- against a slow twin


def slowly(task: Fit, reply: Fitted, after: Any) -> tuple[float, float | None]:
    """Both numbers in float64, client by client; `after` is the Pick, Best or All that clients are given."""

    def row(ref: Any, i: int) -> int:
        if isinstance(ref, All):
            return 0
        if isinstance(ref, Best):
            assert reply.choice is not None
            return int(reply.choice[i])
        return {int(c): int(k) for c, k in zip(ref.labels.ids, ref.labels.values, strict=True)}[int(reply.ids[i])]

    def vector_of(ref: Any, i: int) -> np.ndarray[Any, Any]:
        theta: Tensor = ref.theta if isinstance(ref, All) else ref.centers[row(ref, i)]
        return theta.double().numpy()

    clients = range(len(reply.ids))
    models = [reply.models[i].double().numpy() for i in clients]
    discrepancy = float(np.mean([np.linalg.norm(models[i] - vector_of(after, i)) for i in clients]))
    updates = [models[i] - vector_of(task.start, i) for i in clients]
    worst = 0.0
    for i in clients:
        mine = [j for j in clients if row(after, j) == row(after, i)]
        total = sum(int(reply.n[j]) for j in mine)
        mean = sum(int(reply.n[j]) * updates[j] for j in mine) / total
        worst = max(worst, float(np.linalg.norm(mean - updates[i]) / np.linalg.norm(mean)))
    return discrepancy, worst


METHODS: dict[str, tuple[Any, int]] = {  # and which training of the round's last visit counts
    "fedavg": (coterie.FedAvg(), 0),
    "ifca": (coterie.IFCA(k=2), 0),
    "wecfl": (coterie.WeCFL(k=2), 0),
    "fedgroup": (coterie.FedGroup(k=2), 0),
    "stocfl": (coterie.StoCFL(tau=0.3), 0),
    "cfl": (coterie.CFL(), 0),
    "fl+hc": (coterie.FLHC(k=2, warmup=1), 0),
    "ifca-cam": (IFCACAM(base=coterie.IFCA(k=2), warmup=1), 0),
    "fesem-cam": (CAMAuthors(base=coterie.FeSEM(k=2), warmup=0, lam=0.01, order="global_first"), 1),
}


@pytest.mark.parametrize("name", METHODS)
def test_against_a_slow_twin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, which = METHODS[name]
    rounds: list[Diagnosis] = []

    def spy(fits: Any, after: Evaluate) -> Diagnosis:
        found = diagnose(fits, after)
        number = which if len(fits) > which else 0  # a warm-up trains one model only
        given: Any = after.models[-1]
        discrepancy, clusterability = slowly(fits[number][0], fits[number][1], given)
        assert found.discrepancy == pytest.approx(discrepancy, rel=1e-4, abs=1e-6)
        assert found.clusterability == pytest.approx(clusterability, rel=1e-3, abs=1e-6)
        rounds.append(found)
        return found

    monkeypatch.setattr("coterie.training.loop.diagnose", spy)
    federation = make_federation(clients=8, samples=12)
    result = coterie.run(method, federation, linear(), rounds=4, participation=6)
    assert [event.discrepancy for event in result.history] == [found.discrepancy for found in rounds]
    assert [event.clusterability for event in result.history] == [found.clusterability for found in rounds]
    assert len(rounds) == 4
    assert any(found.discrepancy for found in rounds)


@pytest.mark.parametrize("method", [coterie.FedSoft(k=2), coterie.Ditto()], ids=lambda m: type(m).__name__)
def test_methods_without_models_to_give(method: Any) -> None:
    result = coterie.run(method, make_federation(), linear(), rounds=2)
    assert [(e.discrepancy, e.clusterability) for e in result.history] == [(None, None)] * 2


def test_only_evaluated_rounds_are_diagnosed() -> None:
    result = coterie.run(coterie.FedAvg(), make_federation(), linear(), rounds=5, evaluate_every=2)
    assert [event.discrepancy is not None for event in result.history] == [False, True, False, True, True]


def test_stocfl_with_the_authors_chain_is_diagnosed_by_its_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spy(fits: Any, after: Evaluate) -> Diagnosis:
        found = training(fits)
        assert found is not None
        seen.append(len(found[1].ids))
        assert found[1].choice is not None
        return diagnose(fits, after)

    monkeypatch.setattr("coterie.training.loop.diagnose", spy)
    coterie.run(StoCFLAuthors(tau=0.3, global_update="chain"), make_federation(), linear(), rounds=1)
    assert seen == [4]
