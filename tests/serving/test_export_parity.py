"""An exported model says what `result.predict` says: every method, every zoo model, one graph for every batch size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from trained import CLIENTS, MODELS, inputs, run_onnx, trained, translations_read_once

from conftest import few, raises
from coterie.core.registry import METHODS
from coterie.core.registry import MODELS as ZOO
from coterie.serving.export.selection import select

__all__ = ["translations_read_once"]  # a fixture of every test here
NAMES = [name for name in METHODS.places if name not in ("given", "oracle")] + ["given", "oracle"]
# One model, a row per cluster, sums, averages, mixtures, models of clients' own.
KINDS = ("fedavg", "wecfl", "ifca-cam", "fedavg+", "fedem", "fedsoft", "ditto")
PERSONAL = {"fedem", "fedrc", "fedsoft", "ditto", "local", "fedper", "fedrep", "personal", "ifca-personal"}


def test_every_model_of_the_zoo_is_exported_here() -> None:
    pretrained = {"transformer", "torchvision"}  # need extras and weights: see tests/test_zoo_pretrained.py
    assert set(MODELS) == set(ZOO.places) - pretrained


@pytest.mark.covering
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("name", few(NAMES, *KINDS))
def test_onnx_agrees_with_predict(name: str, model: str, tmp_path: Path) -> None:
    result = trained(name, model)
    client = 1
    own = name in PERSONAL or (name == "fedbn" and model == "cnn")  # the only one with norms
    cluster = None if own else int(result.assignments[client])
    made = result.export(
        tmp_path / "model.onnx", cluster=cluster, client=client if cluster is None else None, format="onnx"
    )
    assert made.difference is not None
    assert made.difference < 1e-5
    for size in (1, 7):
        x = inputs(model, size, seed=size)
        given = x if model == "lstm" else x.float()
        logits, probabilities, label = run_onnx(made.path, given)
        np.testing.assert_allclose(probabilities, result.predict(client, x, proba=True), atol=1e-5)
        np.testing.assert_array_equal(label, result.predict(client, x))
        assert logits.shape == (size, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_has_a_model_with_every_method(name: str) -> None:
    result = trained(name, "linear")
    x = inputs("linear", 5, seed=9)
    for client in range(CLIENTS):
        chosen = select(result, client=client)
        assert chosen.scale is not None
        with torch.inference_mode():
            said = torch.softmax(chosen.network(chosen.scale(x)).double(), 1)
        np.testing.assert_allclose(said, result.predict(client, x, proba=True), atol=1e-6)


@pytest.mark.parametrize("name", sorted(PERSONAL))
def test_methods_without_a_model_per_cluster_name_the_client_option(name: str) -> None:
    with raises("result-ambiguous", match="no single model per cluster.*each client.*--client ID"):
        select(trained(name, "linear"), cluster=0)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PERSONAL])
def test_the_model_of_a_cluster_is_that_of_its_clients(name: str) -> None:
    result = trained(name, "linear")
    x = inputs("linear", 5, seed=9)
    for client, cluster in enumerate(result.assignments.tolist()):
        chosen = select(result, cluster=cluster)
        assert client in chosen.clients
        assert chosen.scale is not None
        with torch.inference_mode():
            said = chosen.network(chosen.scale(x)).argmax(1)
        np.testing.assert_array_equal(said, result.predict(client, x))
