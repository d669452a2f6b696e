"""`coterie inspect` and `coterie clusters --client` as their users meet them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.core.errors import CoterieError
from coterie.tools.cli.main import app

QUICK = ("data.partition.clients=12", "data.partition.angles=[0,180]", "engine.name=batched", "engine.workers=1")
KEYS = (
    *("verdict", "answer", "clients", "measured", "k", "sizes", "r2", "r2_interval", "resamples", "steps", "tried"),
    *("variances", "visible", "expected_error", "risks", "places", "too_small", "missing", "commands", "contrasts"),
)
PLACE = {"client", "name", "samples", "cluster", "margin", "runner_up", "typical", "doubtful", "alone"}


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("coterie.insight.inspect.MANY", 10)
    monkeypatch.chdir(tmp_path)


def said(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None, result.output
    return result.stdout


def failed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, CoterieError), result.output
    return str(result.exception)


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def table(path: Path) -> Path:
    """Hospitals of two kinds, by name."""
    rng = np.random.default_rng(0)
    lines = ["age,pressure,hospital,outcome"]
    for row in range(480):
        hospital = row % 8
        a, b = rng.normal(size=2)
        yes = (a > 0) ^ (hospital % 2 == 1)
        lines.append(f"{a:.3f},{b:.3f},{'north' if hospital % 2 else 'south'} {hospital},{'yes' if yes else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_answer_a_table_and_a_command(tmp_path: Path) -> None:
    out = said("inspect", *QUICK)
    assert out.startswith("The 12 clients form 2 clusters (")
    assert "95 % interval" in out
    assert "least margin" in out
    assert "training rows" in out
    assert "coterie run data.partition.clients=12 'data.partition.angles=[0,180]'" in out
    assert "method.name=halves" in out
    assert not list(tmp_path.iterdir())  # nothing is written


def test_json_has_these_keys() -> None:
    found = strictly(said("inspect", *QUICK, "--json"))
    assert tuple(found) == KEYS
    assert all(set(place) == PLACE for place in found["places"])
    assert (found["k"], found["sizes"], found["clients"], found["measured"]) == (2, [6, 6], 12, 12)
    assert found["r2_interval"][0] < found["r2"] < found["r2_interval"][1]
    assert found["risks"][0] == 1
    assert found["contrasts"] is None
    assert set(found["expected_error"]) == {"one_model", "clusters", "personal", "local"}
    assert found["variances"].keys() == {"common", "total", "within", "noise"}


def test_the_commands_work() -> None:
    found = strictly(said("inspect", *QUICK, "method=wecfl", "method.k=7", "--json"))
    assert len(found["commands"]) == 2
    for command in found["commands"]:
        first, *words = shlex.split(command)
        assert first == "coterie"
        assert "method.k=7" not in words
        result = strictly(said(*words, "rounds=2", "--json"))
        assert result["clusters"] == 2


def test_explain_shows_what_differs_and_names_are_used(tmp_path: Path) -> None:
    words = ("data.name=csv", f"data.path={table(tmp_path / 'visits.csv')}", "data.client=hospital", "data.y=outcome")
    plain, more = said("inspect", *words), said("inspect", *words, "--explain")
    assert "Cluster 0:" not in plain
    assert "Cluster 0: labels and inputs as everywhere." in more
    assert "the clusters differ in how the two go together" in more
    found = strictly(said("inspect", *words, "--json", "--explain"))
    first = {place["name"] for place in found["places"] if place["cluster"] == 0}
    assert first == {"north 1", "north 3", "north 5", "north 7"}
    assert [one["cluster"] for one in found["contrasts"]] == [0, 1]


def test_the_page_has_the_dendrogram_and_the_risk_curve(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    words = ("data.name=csv", f"data.path={table(tmp_path / 'visits.csv')}", "data.client=hospital", "data.y=outcome")
    assert "page: a/page.html" in said("inspect", *words, "--html", "a/page.html", "--explain")
    page = (tmp_path / "a" / "page.html").read_text()
    figures = json.loads(page.split('<script id="figures" type="application/json">')[1].split("</script>")[0])
    assert {"clusters-dendrogram", "clusters-risk", "clusters-certainty"} <= set(figures["figures"])
    assert "method.name=halves" in page
    assert "south 0" in page
    assert "What distinguishes the clusters" in page


def test_mistakes(tmp_path: Path) -> None:
    assert "Did you mean 'rotated'" in failed("inspect", "data.partition.name=rotatd")
    assert "at least 4 training samples" in failed("inspect", "data.partition.name=iid", "data.partition.clients=700")
    (tmp_path / "file").write_text("x")
    assert "cannot be written" in failed("inspect", *QUICK, "--html", "file/page.html")


def test_why_a_client_is_where_it_is(tmp_path: Path) -> None:
    words = ("data.name=csv", f"data.path={table(tmp_path / 'visits.csv')}", "data.client=hospital", "data.y=outcome")
    said("run", *words, "method.name=wecfl", "method.k=2", "rounds=3", "--out", "a")
    out = said("clusters", "a", "--client", "south 2")
    assert out.startswith("client 'south 2' is in cluster ")
    assert "The runner-up is cluster" in out
    assert "client 'south" in out.splitlines()[4]
    found = strictly(said("clusters", "a", "--client", "south 2", "--json"))
    assert found["name"] == "south 2"
    assert found["answer"] == out.splitlines()
    assert {"cluster", "scores", "margin", "runner_up", "nearest", "contrast", "sizes", "measure"} <= set(found)
    assert "south 2" in failed("clusters", "a", "--client", "south 22")
    assert "not a run" in failed("clusters", "b", "--client", "0")


def test_a_number_is_a_number_where_clients_have_no_names() -> None:
    said("run", *QUICK, "method.name=ifca", "method.k=2", "rounds=2", "--out", "a")
    assert said("clusters", "a", "--client", "3").startswith("client 3 is in cluster ")


def test_the_server_has_no_directory_while_it_inspects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.network.flower.internals.require_flower", lambda _: None)
    assert "--inspect trains nothing" in failed("server", "--insecure", "--inspect", "--out", "a")
