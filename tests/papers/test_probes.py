"""What is looked at once a run is trained: numbers of known models on tiny federations."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie
from conftest import linear, make_federation, raises
from coterie.core.registry import DATASETS, NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient
from coterie.data.federation import Federation
from coterie.data.sets.synthetic import SyntheticRegression
from coterie.training.build import build
from coterie.training.config import RunConfig, read
from coterie.training.execute import execute
from papers.cell import Probe
from papers.probes import (
    alike,
    centers_on_distributions,
    clusters_on_tests,
    look,
    majority,
    mixtures,
    proximity,
    tsne,
)
from papers.tables import TABLES

# The label is whether the first feature is positive (in the second cluster: negative).
RIGHT = torch.tensor([-1.0, 0.0, 1.0, 0.0])
WRONG = -RIGHT
ALWAYS_0 = torch.zeros(4)


def wecfl(federation: Federation, centers: list[Tensor], labels: list[int]) -> coterie.Result[Any]:
    """A run whose models and clusters are then set by hand."""
    result = coterie.run(coterie.WeCFL(k=2), federation, linear(), rounds=1)
    table = ByClient(torch.arange(len(labels)), torch.tensor(labels))
    state = dataclasses.replace(result.state, centers=torch.stack(centers), labels=table)
    clients = dataclasses.replace(result.clients, choice=torch.tensor(labels))
    return dataclasses.replace(result, state=state, placed=state, clients=clients)


def ones(federation: Federation, kind: int | None = None) -> float:
    """The share of label 0 among the test samples (of a kind of client)."""
    assert federation.truth is not None
    labels = [
        federation.samples(c, "test")[1] for c in range(len(federation)) if kind is None or federation.truth[c] == kind
    ]
    return float((torch.cat(labels) == 0).double().mean())


# ---------------------------------------------------------------------------------------------- cluster models


def test_clusters_on_the_tests_of_their_kind() -> None:
    federation = make_federation(4)
    found = clusters_on_tests(wecfl(federation, [RIGHT, WRONG], [0, 0, 1, 1]), whole=False)
    assert found == {"clusters": 1.0, "each": [1.0, 1.0]}
    swapped = clusters_on_tests(wecfl(federation, [WRONG, RIGHT], [0, 0, 1, 1]), whole=False)
    assert swapped == {"clusters": 0.0, "each": [0.0, 0.0]}


def test_clusters_on_everyones_tests() -> None:
    federation = make_federation(4, samples=20)
    found = clusters_on_tests(wecfl(federation, [RIGHT, ALWAYS_0], [0, 0, 1, 1]), whole=True)
    assert found["each"] == pytest.approx([0.5, ones(federation)])  # right on one half, which is as large
    assert found["clusters"] == pytest.approx(np.mean(found["each"]))


def test_the_kind_is_that_of_most_members_and_the_mean_is_over_clusters() -> None:
    """Three of cluster 0's members are of kind 0; cluster 1 is one client of kind 1, with as much say."""
    federation = make_federation(6, samples=20)
    result = wecfl(federation, [RIGHT, ALWAYS_0], [0, 0, 0, 0, 0, 1])
    found = clusters_on_tests(result, whole=False)
    assert found["each"] == pytest.approx([1.0, ones(federation, 1)])
    assert found["clusters"] == pytest.approx((1.0 + ones(federation, 1)) / 2)


def test_unused_clusters_and_clients_that_were_not_evaluated_have_no_say() -> None:
    federation = make_federation(4)
    result = wecfl(federation, [RIGHT, ALWAYS_0, WRONG], [0, 0, 2, 2])
    assert clusters_on_tests(result, whole=False)["each"] == [1.0, 1.0]
    some = dataclasses.replace(result.clients, ids=torch.tensor([0, 1]), choice=torch.tensor([0, 0]))
    assert clusters_on_tests(dataclasses.replace(result, clients=some), whole=False)["each"] == [1.0]


def test_stocfls_global_model_is_tested_on_all_kinds() -> None:
    federation = make_federation(4, samples=20)
    result = coterie.run(coterie.StoCFL(tau=0.3), federation, linear(), rounds=2)
    found = clusters_on_tests(
        dataclasses.replace(result, state=dataclasses.replace(result.state, omega=RIGHT)), whole=False
    )
    assert found["global"] == 0.5  # 1 on the first kind, 0 on the second
    assert len(found["each"]) == result.summary.clusters
    assert clusters_on_tests(wecfl(federation, [RIGHT, WRONG], [0, 0, 1, 1]), whole=False).get("global") is None


def test_without_known_kinds_there_is_one() -> None:
    rng = np.random.default_rng(0)
    arrays = [(x := rng.normal(size=(10, 2)), (x[:, 0] > 0).astype(np.int64)) for _ in range(3)]
    found = clusters_on_tests(
        wecfl(
            Federation.from_arrays(arrays, outputs=2, standardise=False, standardise_y=False), [RIGHT, WRONG], [0, 0, 1]
        ),
        whole=False,
    )
    assert found["each"] == [1.0, 0.0]


def test_clients_that_evaluation_gave_a_cluster_of_their_own() -> None:
    """StoCFL: whoever was never drawn and is like nobody is a cluster of its own, which the trained state has not."""
    result = coterie.run(coterie.StoCFL(tau=0.9), make_federation(8), linear(), rounds=1, participation=2)
    assert result.assignments.max() >= len(result.state.centers)
    found = clusters_on_tests(result, whole=False)
    assert len(found["each"]) == result.summary.clusters


PROBED = sorted({(run.probe, run.config["method"]["name"]) for table in TABLES for run in table.runs()})


@pytest.mark.parametrize(("probe", "method"), [pair for pair in PROBED if pair[0].startswith("clusters")])
def test_whatever_a_table_asks_for_its_method_has(probe: Probe, method: str) -> None:
    result = coterie.run(method, make_federation(4), linear(), rounds=1)
    assert 0 <= look(probe, result, RunConfig())["clusters"] <= 1


@pytest.mark.parametrize("method", ["fedsoft", "ifca", "fedem"])
def test_centers_on_domains(method: str) -> None:
    """Every center on the test digits as every distribution sees them, whatever the method keeps them in."""
    words = ["data.name=digits", "data.partition.name=mixture", "data.partition.clients=6", "model.name=linear"]
    words += ["data.partition.pattern=10:90", "data.partition.angles=[0, 90]", "data.partition.samples=[60, 80]"]
    job = build(read(None, [*words, f"method.name={method}", "method.k=2", "rounds=3", "local.lr=0.5"]))
    result = coterie.run(job.method, job.federation, job.model, rounds=3)
    found = look("letters", result, RunConfig())
    assert np.shape(found["each"]) == (2, 2)
    assert found["best"] == [max(row) for row in found["each"]]
    x, y = result.federation.seen_through(1, "test")
    centers = result.state.centers if hasattr(result.state, "centers") else result.state
    said = result.model.replica().load(centers[1]).logits(x).argmax(1)
    assert found["each"][1][1] == pytest.approx(float((said == y).double().mean()))
    assert 0.1 < found["own"] <= 1  # on the clients' own training data
    if method == "fedem":  # by the one center of the largest weight, where the method itself mixes them
        assert result.clients.shares is not None
        right = []
        for client, share in zip(result.clients.ids.tolist(), result.clients.shares, strict=True):
            x, y = result.federation.samples(client, "train")
            said = result.model.replica().load(centers[int(share.argmax())]).logits(x).argmax(1)
            right.append(float((said == y).double().mean()))
        assert found["own"] == pytest.approx(np.mean(right))


def test_personal_models_are_not_those_of_clusters() -> None:
    result = coterie.run("ditto", make_federation(4), linear(), rounds=1)
    with raises("method-invalid"):
        look("clusters", result, RunConfig())


# -------------------------------------------------------------------------------------------- FedSoft's centers


def regression(pattern: str = "linear") -> tuple[RunConfig, np.ndarray[Any, Any]]:
    words = ["data.name=synthetic-regression", "data.clients=6", "data.clusters=2", f"data.pattern={pattern}"]
    words += ["data.dimension=4", "data.samples=[30, 40]", "data.noise=0.5", "model.name=linear", "model.bias=false"]
    words += ["method.name=fedsoft", "method.k=2", "local.lr=0.01", "rounds=1", "seed=3"]
    config = read(None, words)
    made = DATASETS.build(config.data.name, config.data.params, NO_CODE)
    assert isinstance(made, SyntheticRegression)
    return config, made.thetas(generator(3, Purpose.PARTITION))


def test_thetas_are_those_of_the_federation() -> None:
    """Least squares on the data of a client of one distribution finds that theta."""
    config, thetas = regression("clusters")
    federation = build(config).federation
    for client, kind in ((0, 0), (5, 1)):
        x, y = federation.samples(client, "train")
        found = np.linalg.lstsq(x.double().numpy(), y.double().numpy()[:, 0], rcond=None)[0]
        np.testing.assert_allclose(found, thetas[kind], atol=0.5)
    np.testing.assert_array_equal(thetas, regression()[1])  # mixtures are made of the same


def test_errors_of_known_centers(tmp_path: Path) -> None:
    """E (<x, c> - <x, theta> - noise)^2 = |theta - c|^2 + noise^2, for x of unit variance."""
    config, thetas = regression()
    result = execute(config, tmp_path / "run")
    centers = np.stack([thetas[0], np.zeros(4)])
    state = dataclasses.replace(result.state, centers=torch.from_numpy(centers).float())
    found = centers_on_distributions(dataclasses.replace(result, state=state), config)
    wanted = ((thetas[:, None] - centers[None]) ** 2).sum(2) + 0.5**2
    np.testing.assert_allclose(found["mse"], wanted, rtol=0.2)
    assert found["mse"][0][0] == pytest.approx(0.25, rel=0.2)  # noise alone
    assert found["apart"] == pytest.approx(((thetas[0] - thetas[1]) ** 2).sum())
    assert np.shape(found["found"]) == np.shape(found["true"]) == (6, 2)
    np.testing.assert_allclose(np.sum(found["true"], 1), 1.0)
    again = look("centers", dataclasses.replace(result, state=state), config)
    assert again == found  # fresh samples, but the same ones


def test_one_model_on_every_distribution(tmp_path: Path) -> None:
    config, thetas = regression()
    config = read(None, ["method.name=fedavg"], base=config.dump())
    zero = torch.zeros(4)
    result = dataclasses.replace(execute(config, tmp_path / "run"), state=zero, placed=zero)
    found = centers_on_distributions(result, config)
    np.testing.assert_allclose(found["mse"], (thetas**2).sum(1)[:, None] + 0.25, rtol=0.2)
    assert "found" not in found


def test_mixtures_where_there_are_none() -> None:
    result = coterie.run(coterie.FedAvg(), make_federation(), linear(), rounds=1)
    assert mixtures(result) == {}
    assert look("", result, RunConfig()) == {}


# ------------------------------------------------------------------------------------------------ alike or not


def test_alike_of_separated_clusters() -> None:
    federation = make_federation(8, samples=30)
    truth = [0, 0, 0, 0, 1, 1, 1, 1]
    result = wecfl(federation, [0.1 * RIGHT, 0.1 * WRONG], truth)
    found = alike(result)
    matrix = np.array(found["clients"])
    assert matrix.shape == (8, 8)
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(np.diag(matrix), 1.0)
    assert found["labels"] == truth
    same = np.equal.outer(truth, truth)
    assert found["within"] == pytest.approx(matrix[same & ~np.eye(8, dtype=bool)].mean(), abs=1e-3)
    assert found["between"] == pytest.approx(matrix[~same].mean(), abs=1e-3)
    assert found["within"] > 0.5 > 0 > found["between"]
    np.testing.assert_allclose(found["centers"], [[1, -1], [-1, 1]], atol=1e-5)


def test_alike_is_ordered_by_cluster() -> None:
    """The first row is the first client of cluster 0 and so on, whatever their ids."""
    federation = make_federation(4, samples=30).take([2, 0, 3, 1])
    result = wecfl(federation, [0.1 * RIGHT, 0.1 * WRONG], [1, 0, 1, 0])
    found = alike(result)
    assert found["labels"] == [0, 0, 1, 1]
    assert found["within"] > 0.5 > 0 > found["between"]
    assert min(found["clients"][0][1], found["clients"][2][3]) > 0.5 > 0 > found["clients"][1][2]


def test_alike_of_one_model_for_all() -> None:
    result = coterie.run(coterie.WeCFL(k=1), make_federation(4), linear(), rounds=1)
    found = alike(result)
    assert found["between"] is None
    assert np.isfinite(found["within"])
    alone = coterie.run(coterie.WeCFL(k=1), make_federation(4).take([0]), linear(), rounds=1)
    assert alike(alone)["within"] is None


def test_tsne_keeps_separated_clusters_apart() -> None:
    federation = make_federation(12, samples=30)
    truth = [0] * 6 + [1] * 6
    found = tsne(wecfl(federation, [0.1 * RIGHT, 0.1 * WRONG], truth))
    assert found["labels"] == truth
    points = np.column_stack([found["x"], found["y"]])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    nearest = np.where(np.eye(12, dtype=bool), np.inf, apart).argmin(1)
    assert np.array(truth)[nearest].tolist() == truth


def test_looking_leaves_the_result_as_it_was() -> None:
    result = coterie.run(coterie.WeCFL(k=2), make_federation(6), linear(), rounds=2)
    before = result.state.centers.clone()
    first = look("alike", result, RunConfig())
    assert look("alike", result, RunConfig()) == first
    assert torch.equal(result.state.centers, before)


def test_proximity() -> None:
    """Both measures tell the two kinds apart, so they go together."""
    result = coterie.run(coterie.FedGroup(k=2), make_federation(10, samples=30), linear(), rounds=1)
    found = proximity(result)
    assert len(found["edc"]) == len(found["madc"]) == 10 * 9 // 2
    assert np.isfinite(found["edc"]).all()
    assert np.isfinite(found["madc"]).all()
    assert (np.array(found["edc"]) >= 0).all()
    assert found["correlation"] == pytest.approx(np.corrcoef(found["edc"], found["madc"])[0, 1])
    assert found["correlation"] > 0.5
    assert look("proximity", result, RunConfig()) == found


# ---------------------------------------------------------------------------------------------- a constant answer


def uneven() -> Federation:
    """Client 0: three of class 0, one of class 1; client 1: one of class 0, seven of class 2 (training and test)."""
    arrays = []
    for labels in ([0, 0, 0, 1], [0, *[2] * 7]):
        x = np.zeros((len(labels), 2))
        arrays.append((x, np.array(labels), x, np.array(labels)))
    return Federation.from_arrays(arrays, outputs=3, standardise=False, standardise_y=False)


@pytest.mark.parametrize(("weigh", "accuracy"), [("equal", (0.75 + 0.875) / 2), ("train", (4 * 0.75 + 8 * 0.875) / 12)])
def test_always_the_clients_own_majority_class(weigh: str, accuracy: float) -> None:
    federation = uneven()
    assert len(federation.train.numbers) == len(federation.test.numbers) == 12
    result = coterie.run(coterie.LocalOnly(), federation, "linear", rounds=1)
    found = majority(result, read(None, base=RunConfig().dump() | {"weigh_clients": weigh}))["majority"]
    assert found["accuracy"] == pytest.approx(accuracy)
    # F1 of the class that is answered is 6/7 and 14/15, that of the other 0; the mean is over the two classes there.
    if weigh == "equal":
        assert found["macro_f1"] == pytest.approx((3 / 7 + 7 / 15) / 2)
