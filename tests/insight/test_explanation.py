"""Why a client is in its cluster: from losses, sketches, or models alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import coterie
from conftest import raises
from coterie import IFCA
from coterie.core.registry import METHODS, NO_CODE
from coterie.insight.explain import Explanation

NAMES = tuple(f"ward {chr(97 + i)}" for i in range(8))


def federation() -> coterie.Federation:
    """Two kinds of clients: what is 1 for one kind is 0 for the other."""
    rng = np.random.default_rng(0)
    clients = []
    for client in range(8):
        x = rng.normal(size=(40, 4)).astype(np.float32)
        clients.append((x, ((x[:, 0] > 0) ^ (client % 2 == 1)).astype(np.int64)))
    return coterie.Federation.from_arrays(clients, names=NAMES, standardise=False, standardise_y=False)


@pytest.fixture(scope="module")
def wecfl() -> coterie.Result[object]:
    return coterie.run(coterie.WeCFL(k=2), federation(), "linear", rounds=4)


def test_the_margin_is_the_difference_of_two_losses(wecfl: coterie.Result[object]) -> None:
    found = wecfl.explain("ward c")
    assert (found.client, found.name, found.measure) == (2, "ward c", "losses")
    assert found.cluster == wecfl.assignments[2]
    assert found.runner_up == 1 - found.cluster
    x, y = federation().samples(2, "train")
    losses = []
    for cluster in (0, 1):
        network = wecfl.network(cluster)
        logits = network(x).detach()
        losses.append(float(-logits.log_softmax(1)[range(len(y)), y].mean()))
    assert found.scores == pytest.approx(losses, rel=1e-4)
    assert found.margin == pytest.approx(losses[found.runner_up] - losses[found.cluster], rel=1e-4)
    assert found.margin is not None
    assert found.margin > 0


def test_the_nearest_clients_are_those_of_its_kind(wecfl: coterie.Result[object]) -> None:
    found = wecfl.explain(2)
    assert found.nearest_by == "losses"
    assert {one.name for one in found.nearest[:3]} == {"ward a", "ward e", "ward g"}
    distances = [one.distance for one in found.nearest]
    assert distances == sorted(distances)
    assert "Nearest clients, by losses of these models: client 'ward" in str(found)
    assert "client 2" not in str(found)


def test_it_says_what_distinguishes_the_cluster(wecfl: coterie.Result[object]) -> None:
    found = wecfl.explain(2)
    assert found.contrast is not None
    assert found.contrast.cluster == found.cluster
    assert sum(found.sizes) == 8
    assert f"is in cluster {found.cluster} of 2, with 3 other clients." in str(found)
    assert f"The runner-up is cluster {found.runner_up}, with" in str(found)


def test_less_loss_elsewhere_is_said(wecfl: coterie.Result[object]) -> None:
    found = dataclasses.replace(wecfl.explain(2), margin=-0.25)
    assert f"Cluster {found.runner_up} has 0.250 less loss" in str(found)


def test_halves_compares_sketches() -> None:
    local = coterie.Local(batch=8)
    result = coterie.run(coterie.Halves(local=local), federation(), "linear", rounds=2)
    assert result.summary.clusters == 2
    found = result.explain("ward a")
    assert found.nearest_by == "sketches"
    assert {one.name for one in found.nearest[:3]} == {"ward c", "ward e", "ward g"}
    looks = result.state.looks
    apart = looks.get(0) - looks.get(found.nearest[0].client)
    assert found.nearest[0].distance == pytest.approx(float(apart[0].double() @ apart[1].double()), rel=1e-4)


def test_one_model_has_nothing_to_compare() -> None:
    found = coterie.run("fedavg", federation(), "linear", rounds=1).explain(0)
    assert (found.runner_up, found.margin, found.nearest) == (None, None, ())
    assert str(found) == "client 'ward a' is with everyone else: this run has one model."


@pytest.mark.parametrize("name", ["ifca", "ifca-cam", "fedsoft", "fedem", "cfl"])
def test_other_methods_can_be_explained(name: str) -> None:
    result = coterie.run(name, federation(), "linear", rounds=2)
    found = result.explain(1)
    assert isinstance(found, Explanation)
    assert found.scores
    assert str(found)


@pytest.mark.parametrize("tune", [2, 0])  # a section fitted to each model to compare, or the one that a client keeps
@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_one_body_with_heads_of_the_clients_own(name: str, tune: int) -> None:
    params = {"tune": tune} | ({"head_epochs": 1} if name == "fedrep" else {})
    result = coterie.run(
        METHODS.build(name, params | {"section": ("*bias",)}, NO_CODE), federation(), "linear", rounds=2
    )
    found = result.explain("ward a")
    assert (found.section, found.runner_up, found.nearest) == ("*bias", None, ())
    assert np.isfinite(found.scores).all()
    assert str(found) == (
        "client 'ward a' is with everyone else: this run has one model for all but the section that is each client's "
        "own (*bias)."
    )


@pytest.mark.parametrize("tune", [2, 0])
def test_clusters_whose_clients_have_heads_of_their_own(tune: int) -> None:
    method = METHODS.build("ifca-personal", {"section": ("*bias",), "tune": tune, "base": IFCA(k=2)}, NO_CODE)
    result = coterie.run(method, federation(), "linear", rounds=4)
    found = result.explain("ward a")
    assert len(found.scores) == 2
    assert found.margin == pytest.approx(found.scores[found.runner_up or 0] - found.scores[found.cluster])
    assert len(found.nearest) == 5
    assert "Loss of the clusters' models, each with a section (*bias) of the client's own, on" in str(found)
    if tune:  # IFCA's own choice is by this loss
        assert found.margin is not None
        assert found.margin >= 0


def test_personal_models_have_no_clusters() -> None:
    found = coterie.run("ditto", federation(), "linear", rounds=1).explain(1)
    assert (found.scores, found.sizes, found.runner_up) == ((), (8,), None)
    assert str(found) == (
        "client 'ward b' is in no cluster: the method of this run has none. Each client is served by a model of its "
        "own. A newcomer gets the model that clients start their own from; to train one of its own, add it: "
        "coterie run --resume DIR --with FILE."
    )


def test_only_the_nearest_of_many_clusters_are_listed(wecfl: coterie.Result[object]) -> None:
    """38 losses in a line are read by nobody: the five least, and the client's own wherever it is."""
    scores = tuple(float(abs(k - 3)) for k in range(38))
    found = dataclasses.replace(wecfl.explain(2), scores=scores, cluster=3, sizes=(1,) * 38)
    said = next(line for line in str(found).splitlines() if line.startswith("Loss"))
    assert said.count("cluster ") == 5
    assert said.endswith("cluster 5 2.000 and 33 more, all larger.")
    far = dataclasses.replace(found, cluster=30)
    said = next(line for line in str(far).splitlines() if line.startswith("Loss"))
    assert said.endswith("cluster 30 27.000 (its own); the 32 others are larger than the first 5.")


def test_what_serves_the_client_is_said(wecfl: coterie.Result[object]) -> None:
    assert "Each client is served by its cluster's model." in str(wecfl.explain(2))


def test_without_the_data_models_are_compared(tmp_path: Path) -> None:
    coterie.run(coterie.WeCFL(k=2), federation(), "linear", rounds=2, out=tmp_path / "run")
    result = coterie.load(tmp_path / "run")
    found = result.explain("ward a")
    assert (found.measure, found.margin, found.contrast, found.nearest) == ("models", None, None, ())
    assert found.scores[found.cluster] == 0
    own, other = (result.state.centers[c].double() for c in (found.cluster, 1 - found.cluster))
    assert found.scores[1 - found.cluster] == pytest.approx(float((own - other).norm()))
    assert "Without the clients' data only the clusters' models are compared" in str(found)
    with_data = coterie.load(tmp_path / "run", federation=federation()).explain("ward a")
    assert with_data.measure == "losses"


@pytest.mark.parametrize("targets", [1, 2])
def test_the_loss_of_a_regression_is_in_the_targets_own_units(targets: int) -> None:
    rng, data = np.random.default_rng(0), []
    for sign in (1, -1) * 3:
        x = rng.normal(size=(40, 2))
        y = np.stack([1000.0 * sign * x[:, 0] + 10 * rng.normal(size=40), sign * x[:, 1]], 1)
        data.append((x, y[:, 0] if targets == 1 else y))
    local = coterie.Local(steps=30, batch="full", lr=0.3)
    federated = coterie.Federation.from_arrays(data, standardise=False, standardise_y=False).prepared(targets=True)
    result = coterie.run(coterie.WeCFL(k=2, local=local), federated, "linear", rounds=6)
    found = result.explain(0)
    assert found.standardised == (targets == 2)
    assert ("(of standardised targets)" in str(found)) == (targets == 2)
    if targets == 1:
        inputs, wanted = result.federation.samples(0, "train")
        scale = result.target_scale
        assert scale is not None
        off = scale.undo(result.network(cluster=found.cluster)(inputs).detach()) - scale.undo(wanted)
        assert found.scores[found.cluster] == pytest.approx(float(off.square().mean()), rel=1e-3)


def test_a_client_that_does_not_exist(wecfl: coterie.Result[object]) -> None:
    with raises("client-unknown", match="ward a"):
        wecfl.explain("ward aa")
    with raises("client-unknown", match="there are 8"):
        wecfl.explain(8)
