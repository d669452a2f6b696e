"""After training: a run is read back, newcomers find their place, predictions are made, and nobody is retrained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie import CoterieError, Federation, Local, WeCFL

LOCAL = Local(epochs=5, batch="full", lr=0.5)
RULES = np.array([[4.0, 0.0], [-4.0, 0.0]])  # the two groups label by the sign of the first number, in opposite ways


def federation(groups: list[int], seed: int) -> Federation:
    """Clients of forty samples each, labelled by the rule of their group."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(40, 2)).astype(np.float32) for _ in groups]
    return Federation.from_arrays(
        [(xs, (xs @ RULES[g] > 0).astype(np.int64)) for xs, g in zip(x, groups, strict=True)], truth=groups
    )


def test_newcomers_join_the_cluster_of_their_kind_and_nobody_changes() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 0, 1, 1, 0], 0), "linear", rounds=5)
    before = result.state.centers.clone()
    placed = result.admit(federation([1, 0, 1], 7))
    of_zero, of_one = result.assignments[0], result.assignments[2]
    assert of_zero != of_one
    assert placed.assignments.tolist() == [of_one, of_zero, of_one]
    assert placed.clients.ids.tolist() == [5, 6, 7]  # behind the five that were trained on
    assert torch.equal(result.state.centers, before)
    assert float(placed.clients.accuracy.min()) > 0.8
    # The newcomer of group 1 says 1 where the first number is negative, that of group 0 where it is positive.
    x = np.array([[3.0, 0.0], [-3.0, 0.0]], dtype=np.float32)
    assert placed.predict(0, x).tolist() == [0, 1]
    assert placed.predict(1, x).tolist() == [1, 0]


def test_a_newcomer_with_bad_data_is_refused_by_number() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 1], 0), "linear", rounds=1)
    bad = Federation.from_arrays([(np.full((5, 2), np.nan), np.zeros(5, dtype=np.int64))])
    with pytest.raises(CoterieError, match="client 0 has NaN"):
        result.admit(bad)


def test_a_run_is_read_back_as_it_ended(tmp_path: Path) -> None:
    from coterie.cli import _run
    from coterie.config import read

    words = ["data.partition.clients=8", "rounds=3", "method.name=ditto", "local.epochs=1"]
    result = _run(read(None, words), tmp_path / "run", False, True)
    again = coterie.load(tmp_path / "run")
    assert torch.equal(again.state, result.state)
    assert again.summary == result.summary  # Ditto's personal models are in the checkpoint too
    assert again.assignments.tolist() == result.assignments.tolist()


def test_a_run_made_in_python_is_read_back_with_what_it_was_made_of(tmp_path: Path) -> None:
    data, method = federation([0, 0, 1, 1], 0), WeCFL(k=2, local=LOCAL)
    result = coterie.run(method, data, "linear", rounds=3, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run", method=method, federation=data, model="linear")
    assert torch.equal(again.state.centers, result.state.centers)
    assert again.history == result.history
    with pytest.raises(CoterieError, match="made in Python"):
        coterie.load(tmp_path / "run")
    with pytest.raises(CoterieError, match="another run: its data"):
        coterie.load(tmp_path / "run", method=method, federation=federation([0, 0, 1, 1], 5), model="linear")


def test_trained_clients_predict_and_clusters_give_their_networks() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 0, 1, 1], 0), "linear", rounds=5)
    x = np.array([[3.0, 0.0], [-3.0, 0.0]], dtype=np.float32)
    assert result.predict(0, x).tolist() == [1, 0]
    assert result.predict(3, x).tolist() == [0, 1]
    network = result.network(int(result.assignments[3]))
    assert network(torch.from_numpy(x)).argmax(1).tolist() == [0, 1]
    for wrong, message in ((lambda: result.predict(4, x), r"0\.\.3"), (lambda: result.network(2), r"0\.\.1")):
        with pytest.raises(CoterieError, match=message):
            wrong()
    with pytest.raises(CoterieError, match="expected inputs of shape"):
        result.predict(0, x[:, :1])


def test_personal_models_predict_for_their_clients_and_are_no_network_of_a_cluster() -> None:
    result = coterie.run(coterie.Ditto(lam=0.0, local=LOCAL), federation([0, 1], 0), "linear", rounds=5)
    x = np.array([[3.0, 0.0], [-3.0, 0.0]], dtype=np.float32)
    assert (result.predict(0, x).tolist(), result.predict(1, x).tolist()) == ([1, 0], [0, 1])
    with pytest.raises(CoterieError, match="no single network"):
        result.network()


def test_lists_of_arrays_are_federations_too() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    clients = [(x, (x[:, 0] > 0).astype(np.int64))] * 2
    result = coterie.run(coterie.FedAvg(local=LOCAL), clients, "linear", rounds=2)
    assert repr(result.admit(clients)) == "<2 newcomers: clusters [0, 0]>"
    assert "2 clients" in repr(result.federation)
    with pytest.raises(CoterieError, match="from_arrays"):
        coterie.run(coterie.FedAvg(), {"a": 1}, "linear")  # type: ignore[arg-type]


def test_what_is_no_run_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"no config\.yaml"):
        coterie.load(tmp_path)
