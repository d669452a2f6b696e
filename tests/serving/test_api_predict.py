"""POST /predict answers what `Result.predict` gives, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import api_calls as calls
import numpy as np
import pytest
import torch

import coterie
from coterie.core.tasks import Local
from coterie.data.federation import Federation
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.predictor import ReadyNetworks
from coterie.zoo import MLP

METHODS: dict[str, Any] = {
    "wecfl": lambda: coterie.WeCFL(k=2, local=calls.LOCAL),
    "cam": lambda: coterie.CAM(base=coterie.IFCA(k=2, local=calls.LOCAL), warmup=1, local=calls.LOCAL),
    "fedem": lambda: coterie.FedEM(k=2, local=calls.LOCAL),
    "halves": lambda: coterie.Halves(local=calls.LOCAL),
    "ditto": lambda: coterie.Ditto(local=calls.LOCAL),
    "fedavg": lambda: coterie.FedAvg(local=calls.LOCAL),
}
GROUPS = [0, 0, 1, 1, 0, 1]
X = np.random.default_rng(7).normal(size=(9, 2))


@pytest.mark.parametrize("name", METHODS)
def test_predictions_are_those_of_the_result(name: str, tmp_path: Path) -> None:
    calls.train(tmp_path / "run", METHODS[name](), calls.federation(GROUPS), model="mlp")
    result, app = coterie.load(tmp_path / "run"), calls.app_of(tmp_path / "run")
    for client in range(len(GROUPS)):
        for _ in range(2):  # the second time the network is ready
            said = calls.ask(app, "/predict", {"client": client, "rows": X.tolist()}).json()
            assert said["predictions"] == result.predict(client, X).tolist()
            assert said["cluster"] == int(result.assignments[client])
        said = calls.ask(app, "/predict", {"client": client, "rows": X.tolist(), "proba": True}).json()
        assert said["probabilities"] == result.predict(client, X, proba=True).tolist()
        assert said["classes"] == [0, 1]


def test_a_hand_made_answer(tmp_path: Path) -> None:
    """Group 0 labels by the sign of the first number, group 1 the other way round."""
    calls.train(tmp_path / "run", METHODS["wecfl"](), calls.federation(GROUPS))
    app, rows = calls.app_of(tmp_path / "run"), [[3.0, 0.0], [-3.0, 0.0]]
    assert calls.ask(app, "/predict", {"client": 0, "rows": rows}).json()["predictions"] == [1, 0]
    assert calls.ask(app, "/predict", {"client": 3, "rows": rows}).json()["predictions"] == [0, 1]
    cluster = calls.ask(app, "/predict", {"client": 3, "rows": rows}).json()["cluster"]
    said = calls.ask(app, "/runs/run/predict", {"cluster": cluster, "rows": rows}).json()
    assert said == {"run": "run", "cluster": cluster, "predictions": [0, 1]}


def test_many_rows_and_images_are_predicted_in_a_thread_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(12, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 12)) for _ in range(3)]
    calls.train(tmp_path / "run", coterie.WeCFL(k=2, local=Local(epochs=1, lr=0.1)), Federation.of(clients), 1, "cnn")
    result, app = coterie.load(tmp_path / "run"), calls.app_of(tmp_path / "run")
    x = rng.normal(size=(150, 1, 8, 8))  # more than one batch of images
    said = calls.ask(app, "/predict", {"client": 1, "rows": x.tolist(), "proba": True}).json()
    assert said["probabilities"] == result.predict(1, x, proba=True).tolist()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clients with names, columns with names (one of them categories, one with holes), classes with names."""
    path = tmp_path_factory.mktemp("runs") / "table"
    rng = np.random.default_rng(0)
    clients: list[Any] = []
    for group in (0, 1, 0, 1):
        age, dose = rng.normal(50, 10, 40), rng.normal(size=40)
        dose[3] = np.nan
        ward = np.where(rng.random(40) > 0.5, "north", "south")
        sick = np.where((age > 50) != bool(group), "yes", "no")
        clients.append(({"age": age, "dose": dose, "ward": ward}, sick))
    with pytest.warns(coterie.CoterieWarning, match="values are missing"):
        data = Federation.from_arrays(clients, names=["Ada", "Bea", "Cleo", "Dora"], standardise=True)
    calls.train(path, coterie.WeCFL(k=2, local=calls.LOCAL), data)
    return path


def test_columns_classes_and_clients_by_name(table: Path) -> None:
    result, app = coterie.load(table), calls.app_of(table)
    columns: dict[str, list[Any]] = {"ward": ["north", "south"], "other": [1, 2], "dose": [None, 1.5], "age": [70, 30]}
    names = result.class_names
    assert names is not None
    wanted = [names[i] for i in result.predict("Bea", columns)]
    assert sorted(wanted) == ["no", "yes"]
    rows = [{key: values[i] for key, values in columns.items()} for i in range(2)]
    in_order = [[70, None, "north"], [30, 1.5, "south"]]
    for given in (columns, rows, in_order):
        said = calls.ask(app, "/predict", {"client": "Bea", "rows": given}).json()
        assert said["predictions"] == wanted
    assert calls.ask(app, "/predict", {"client": "Bea", "rows": rows, "proba": True}).json()["classes"] == list(names)


def test_a_value_that_no_training_row_has_is_told(table: Path) -> None:
    rows = [{"age": 70, "dose": 0, "ward": "nroth"}]
    said = calls.ask(calls.app_of(table), "/predict", {"client": "Ada", "rows": rows}).json()
    assert "'nroth' is in no training row" in said["warnings"][0]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([{"age": 1, "dose": 1}], "data-column-unknown"),
        ([{"age": "old", "dose": 1, "ward": "north"}], "data-cell"),
        ([[1, 2]], "data-shape"),
        ({"age": [1, 2], "dose": [1], "ward": ["north"]}, "data-column-invalid"),
        ([{"age": 1, "dose": 1, "ward": "north"}, {"age": 1}], "data-column-unknown"),
        ([{"age": {"a": 1}, "dose": 1, "ward": "north"}], "data-cell"),
    ],
)
def test_wrong_columns_are_refused_with_the_field(table: Path, rows: Any, code: str) -> None:
    response = calls.ask(calls.app_of(table), "/predict", {"client": "Ada", "rows": rows})
    assert calls.problem(response) == (422, code, "rows")


def test_errors_have_the_words_of_the_library(table: Path) -> None:
    result, app = coterie.load(table), calls.app_of(table)
    with pytest.raises(coterie.CoterieError) as caught:
        result.predict("Ada", {"age": [1]})
    said = calls.ask(app, "/predict", {"client": "Ada", "rows": {"age": [1]}}).json()["error"]
    assert said == {"code": caught.value.code, "message": str(caught.value), "field": "rows"}


def test_regressions_answer_in_the_units_of_their_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(30, 2)) for _ in range(4)]
    clients = [(xs, 100 + 10 * xs[:, 0] * (1 if i < 2 else -1)) for i, xs in enumerate(x)]
    data = Federation.from_arrays(clients, task="regression", standardise=True)
    calls.train(tmp_path / "run", coterie.WeCFL(k=2, local=Local(epochs=5, batch="full", lr=0.1)), data)
    result, app = coterie.load(tmp_path / "run"), calls.app_of(tmp_path / "run")
    said = calls.ask(app, "/predict", {"client": 1, "rows": X.tolist()}).json()
    assert np.array_equal(np.float32(said["predictions"]), result.predict(1, X))
    response = calls.ask(app, "/predict", {"client": 1, "rows": X.tolist(), "proba": True})
    assert calls.problem(response) == (422, "argument-conflict", "proba")


def test_networks_that_are_ready_are_bounded_and_shared() -> None:
    model = coterie.Model.of(lambda: MLP(hidden=(3,))((2,), 2))
    size = 2 * 4 * model.size  # with its gradient
    first, second = model.replica(), model.replica()
    first.theta.zero_()
    second.theta.fill_(1)
    made: list[object] = []

    def make(replica: Any) -> Any:
        made.append(replica)
        return replica.network

    ready = ReadyNetworks(model, most_bytes=size, most_places=3)
    one = ready.get("a", lambda: make(first))
    assert ready.get("b", lambda: make(first)) is one  # equal networks are kept once
    assert (len(made), ready.bytes) == (2, size)
    assert ready.get("a", lambda: make(first)) is one
    assert len(made) == 2
    other = ready.get("c", lambda: make(second))  # there is room for one only
    assert ready.bytes == size
    assert bool((other(torch.ones(1, 2)) != one(torch.ones(1, 2))).any())
    assert ready.get("a", lambda: make(first)) is not one
    assert len(made) == 4


def test_a_cache_of_one_network_answers_the_same(tmp_path: Path) -> None:
    result = calls.train(tmp_path / "run", METHODS["ditto"](), calls.federation(GROUPS), model="mlp")
    app = calls.app_of(tmp_path / "run", limits=ApiLimits(networks=0))
    for client in (0, 3, 0, 5, 3):
        said = calls.ask(app, "/predict", {"client": client, "rows": X.tolist()}).json()
        assert said["predictions"] == result.predict(client, X).tolist()
