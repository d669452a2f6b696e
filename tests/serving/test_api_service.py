"""The service as a whole: places of new clients, clusters, several runs, reloads while requests go on, metrics."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import api_calls as calls
import httpx
import numpy as np
import pytest

import coterie
from conftest import raises
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.runs import Named, Runs, named

GROUPS = [0, 0, 1, 1, 0, 1]
ROWS = [[3.0, 0.0], [-3.0, 0.0]]


def wecfl() -> Any:
    return coterie.WeCFL(k=2, local=calls.LOCAL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    calls.train(path, wecfl(), calls.federation(GROUPS))
    return path


def samples(group: int, seed: int = 5) -> tuple[list[list[float]], list[int]]:
    """Labelled samples of a new client."""
    x = np.random.default_rng(seed).normal(size=(40, 2))
    return x.tolist(), (x @ calls.RULES[group] > 0).astype(int).tolist()


@pytest.mark.parametrize("group", [0, 1])
def test_a_new_client_is_assigned_as_by_admit(run: Path, group: int) -> None:
    rows, labels = samples(group)
    result, app = coterie.load(run), calls.app_of(run)
    said = calls.ask(app, "/assign", {"rows": rows, "labels": labels}).json()
    served = result.admit([(np.array(rows), np.array(labels))])
    assert said["cluster"] == served.assignments[0] == result.assignments[[0, 2][group]]
    assert said["confidence"] == served.confidence(0) > 0.9
    assert said["accuracy"] == served.accuracy
    assert (said["tested"], said["kept"], said["shares"]) == (8, None, None)
    assert not app.state.service.runs.only.now.kept


def test_a_client_that_fits_no_cluster_is_said_to_fit_none(run: Path) -> None:
    """Labels that follow neither rule: the sign of the second number, which both models ignore."""
    x = np.random.default_rng(5).normal(size=(200, 2))
    app, labels = calls.app_of(run), (x[:, 1] > 0).astype(int).tolist()
    said = calls.ask(app, "/assign", {"rows": x.tolist(), "labels": labels}).json()
    assert (said["cluster"], said["fits"]) == (None, False)
    assert said["nearest"] in (0, 1)
    assert said["p_value"] < 0.01
    rows, labels = samples(1)
    said = calls.ask(app, "/assign", {"rows": rows, "labels": labels}).json()
    assert said["fits"] is True
    assert said["nearest"] == said["cluster"]


def test_clients_whose_names_are_numbers_predict_by_their_own_models(tmp_path: Path) -> None:
    data = calls.federation([0, 0, 1, 1], names=["2", "3", "0", "1"])
    result = calls.train(tmp_path / "run", coterie.WeCFL(k=2, local=calls.LOCAL), data)
    app, rows = calls.app_of(tmp_path / "run"), [[1.0, 0.0], [-1.0, 0.0]]
    for name in ("0", "1", "2", "3"):
        said = calls.ask(app, "/predict", {"client": name, "rows": rows})
        assert said.status_code == 200, said.text
        assert said.json()["predictions"] == result.predict(name, np.array(rows)).tolist()


def test_a_newcomer_is_kept_only_where_asked_and_predicts_as_served(run: Path) -> None:
    rows, labels = samples(1)
    app = calls.app_of(run, limits=ApiLimits(newcomers=1))
    assert calls.ask(app, "/predict", {"client": "Eve", "rows": ROWS}).status_code == 422
    assert calls.ask(app, "/assign", {"rows": rows, "labels": labels, "keep": "Eve"}).json()["kept"] == "Eve"
    said = calls.ask(app, "/predict", {"client": "Eve", "rows": ROWS, "proba": True}).json()
    served = coterie.load(run).admit([(np.array(rows), np.array(labels))])
    assert said["probabilities"] == served.predict(0, np.array(ROWS), proba=True).tolist()
    assert calls.ask(app, "/runs").json()["runs"][0]["kept"] == 1
    other, their = samples(0)
    response = calls.ask(app, "/assign", {"rows": other, "labels": their, "keep": "Fay"})
    assert calls.problem(response) == (409, "request-too-large", "keep")
    # The same name again: its network is that of the new samples.
    assert calls.ask(app, "/assign", {"rows": other, "labels": their, "keep": "Eve"}).status_code == 200
    assert calls.ask(app, "/predict", {"client": "Eve", "rows": ROWS}).json()["predictions"] == [1, 0]


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"rows": ROWS}, "request-invalid", "labels"),
        ({"rows": ROWS, "labels": [1]}, "data-shape", "labels"),
        ({"rows": ROWS, "labels": "no"}, "request-invalid", "labels"),
        ({"rows": ROWS, "labels": [0, 7]}, "model-shape", "labels"),
        ({"rows": ROWS, "labels": ["yes", "no"]}, "data-labels", "labels"),
        ({"rows": [[1.0], [2.0]], "labels": [0, 1]}, "model-shape", "rows"),
        ({"rows": ROWS, "labels": [0, 1], "keep": ""}, "request-invalid", "keep"),
    ],
)
def test_samples_that_cannot_be_used(run: Path, body: object, code: str, field: str) -> None:
    status, *found = calls.problem(calls.ask(calls.app_of(run), "/assign", body))
    assert (status, found) == (422, [code, field])


def test_shares_of_a_soft_method(tmp_path: Path) -> None:
    calls.train(tmp_path / "soft", coterie.FedEM(k=2, local=calls.LOCAL), calls.federation(GROUPS))
    rows, labels = samples(0)
    said = calls.ask(calls.app_of(tmp_path / "soft"), "/assign", {"rows": rows, "labels": labels}).json()
    assert said["confidence"] is None
    assert sum(said["shares"]) == pytest.approx(1)
    assert said["cluster"] == int(np.argmax(said["shares"]))


def test_clusters_and_their_members(run: Path) -> None:
    result = coterie.load(run)
    said = calls.ask(calls.app_of(run), "/clusters?members=true").json()
    assert (said["run"], said["method"], said["round"]) == ("run", "WeCFL", 4)
    members = {row["cluster"]: row["members"] for row in said["clusters"]}
    assert members == {int(result.assignments[0]): [0, 1, 4], int(result.assignments[2]): [2, 3, 5]}
    assert [row["clients"] for row in said["clusters"]] == [3, 3]
    assert "members" not in calls.ask(calls.app_of(run), "/clusters").json()["clusters"][0]


def test_several_runs_by_name(run: Path, tmp_path: Path) -> None:
    calls.train(tmp_path / "other", coterie.FedAvg(local=calls.LOCAL), calls.federation(GROUPS))
    app = calls.app_of(run, tmp_path / "other")
    body = {"client": 0, "rows": ROWS}
    assert calls.problem(calls.ask(app, "/predict", body)) == (422, "request-invalid", "run")
    assert calls.ask(app, "/predict", body | {"run": "other"}).json()["run"] == "other"
    assert calls.ask(app, "/runs/other/predict", body).json()["run"] == "other"
    assert calls.ask(app, "/runs/run/predict", body).json()["predictions"] == [1, 0]
    wrong = calls.ask(app, "/runs/run/predict", body | {"run": "other"})
    assert calls.problem(wrong) == (422, "request-invalid", "run")
    assert calls.ask(app, "/clusters?run=other").json()["clusters"][0]["clients"] == 6
    assert [one["name"] for one in calls.ask(app, "/runs").json()["runs"]] == ["run", "other"]


def test_names_of_runs(tmp_path: Path) -> None:
    assert named(["runs/a", "b=runs/a"]) == [Named("a", Path("runs/a")), Named("b", Path("runs/a"))]
    with raises("option-conflict", match="NAME="):
        named(["x/a", "y/a"])
    with raises("option-invalid", match="NAME="):
        named(["runs/a b"])
    with raises("run-not-found"):
        Runs(named([str(tmp_path)]), ApiLimits())


def test_metrics_count_by_pattern_and_never_by_what_was_written(run: Path) -> None:
    app = calls.app_of(run)
    for _ in range(3):
        calls.ask(app, "/predict", {"client": 0, "rows": ROWS})
    calls.ask(app, "/runs/run/predict", {"client": 0})
    calls.ask(app, "/nothing/secret")
    lines = calls.ask(app, "/metrics").text.splitlines()
    assert 'coterie_requests_total{path="/predict",status="200"} 3.0' in lines
    assert 'coterie_requests_total{path="/runs/{name}/predict",status="422"} 1.0' in lines
    assert 'coterie_rows_total{run="run"} 6.0' in lines
    assert 'coterie_run_round{run="run"} 4.0' in lines
    assert 'coterie_request_seconds_count{path="/predict"} 3.0' in lines
    assert not any("secret" in line for line in lines)


def test_the_page_names_every_address_and_loads_nothing_from_elsewhere(run: Path) -> None:
    app = calls.app_of(run)
    text = calls.ask(app, "/docs").text
    for path in calls.ask(app, "/openapi.json").json()["paths"]:
        assert path in text
    assert "http://HOST" in text.replace("//", "//")
    assert "src=" not in text


def test_no_request_is_lost_or_mixed_while_a_run_is_loaded_again(run: Path, tmp_path: Path) -> None:
    """Requests go on while the directory becomes another run, to and fro: each answer is wholly of one of them."""
    old, new, live = tmp_path / "old", tmp_path / "new", tmp_path / "live"
    shutil.copytree(run, old)
    calls.train(new, wecfl(), calls.federation([1 - g for g in GROUPS]), rounds=5)
    shutil.copytree(old, live)
    app = calls.app_of(live)
    body = json.dumps({"client": 0, "rows": ROWS}).encode()
    answers: list[tuple[int, list[int]]] = []

    async def client(session: Any, ended: asyncio.Event) -> None:
        while not ended.is_set():
            response = await session.post("/predict", content=body, headers=calls.HEADERS)
            answers.append((response.status_code, response.json().get("predictions", [])))
            await asyncio.sleep(0)  # nothing else waits for anything, without a network

    async def both() -> None:
        ended, service = asyncio.Event(), app.state.service
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=calls.BASE) as session:
            clients = [asyncio.create_task(client(session, ended)) for _ in range(8)]
            for source in (new, old, new):
                shutil.rmtree(live)
                shutil.copytree(source, live)
                await service.reload(only_stale=True)
                await asyncio.sleep(0.05)
            ended.set()
            await asyncio.gather(*clients)

    asyncio.run(both())
    assert {status for status, _ in answers} == {200}
    assert {tuple(said) for _, said in answers} == {(1, 0), (0, 1)}
    assert answers[-1] == (200, [0, 1])  # the state of the last reload


def test_a_run_that_cannot_be_loaded_again_is_served_on(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = tmp_path / "live"
    shutil.copytree(run, live)
    app = calls.app_of(live)
    assert not app.state.service.runs.only.stale
    for save in (live / "checkpoints").iterdir():
        save.write_bytes(b"damaged")
    assert app.state.service.runs.only.stale
    asyncio.run(app.state.service.reload(only_stale=True))
    assert "so round 4 stays" in capsys.readouterr().err
    assert calls.ask(app, "/predict", {"client": 0, "rows": ROWS}).json()["predictions"] == [1, 0]
    assert 'coterie_reloads_total{ok="false",run="live"} 1.0' in calls.ask(app, "/metrics").text


def test_newcomers_that_were_kept_are_admitted_again_by_the_new_state(run: Path, tmp_path: Path) -> None:
    live, rows_labels = tmp_path / "live", samples(1)
    shutil.copytree(run, live)
    app = calls.app_of(live)
    before = calls.ask(app, "/assign", {"rows": rows_labels[0], "labels": rows_labels[1], "keep": "Eve"}).json()
    shutil.rmtree(live)
    # The same clients in another order: the clusters may have other numbers, Eve's predictions stay.
    calls.train(live, wecfl(), calls.federation([1, 1, 0, 0, 1, 0], seed=3), rounds=5)
    asyncio.run(app.state.service.reload())
    result = coterie.load(live)
    served = result.admit([(np.array(rows_labels[0]), np.array(rows_labels[1]))])
    said = calls.ask(app, "/predict", {"client": "Eve", "rows": ROWS, "proba": True}).json()
    assert before["kept"] == "Eve"
    assert said["cluster"] == served.assignments[0]
    assert said["probabilities"] == served.predict(0, np.array(ROWS), proba=True).tolist()
