"""The pages of a cluster and of a client, and the files that they offer."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import boards
import numpy as np
import pytest
import yaml

pytest.importorskip("dash", reason="the extra `dashboard` is not installed")

import coterie
from coterie.core.local import Local
from coterie.data.federation import Federation
from coterie.tools.dashboard.app import make_app
from coterie.tools.dashboard.downloads import formats
from coterie.tools.dashboard.markdown import to_html
from coterie.tools.dashboard.server import protect
from coterie.tools.dashboard.words import about_run
from coterie.tools.report.figures import KINDS
from coterie.tools.report.record import read_run
from coterie.training.config import read
from coterie.training.execute import execute

NAMES = ("Ada", "Bea", "<b>Cleo", "Dora")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of four clients with names, and one written by hand, which cannot be loaded."""
    place, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    x = [rng.normal(size=(40, 2)) for _ in NAMES]
    clients = [(xs, ((xs[:, 0] > 0) != bool(i % 2)).astype(np.int64)) for i, xs in enumerate(x)]
    data = Federation.from_arrays(clients, names=NAMES, standardise=False)
    method = coterie.WeCFL(k=2, local=Local(epochs=5, batch="full", lr=0.5))
    coterie.run(method, data, "linear", rounds=4, out=place / "trained")
    boards.a_run(place / "by hand")
    return place


@pytest.fixture(scope="module")
def client(runs: Path) -> Any:
    app = make_app(runs)
    protect(app, "127.0.0.1")
    return app.server.test_client()


def get(client: Any, path: str, /, **words: object) -> Any:
    return client.get(path, query_string=words, base_url="http://127.0.0.1")


def test_a_cluster_has_its_members_scores_and_card(client: Any, runs: Path) -> None:
    cluster = int(coterie.load(runs / "trained").assignments[0])
    text = get(client, "/cluster", run="trained", cluster=cluster).text
    assert ">Ada</a>" in text
    assert "&lt;b&gt;Cleo" in text
    assert "<b>Cleo" not in text
    assert ">Bea</a>" not in text  # she is in the other one
    assert f"Model card: cluster {cluster} of run trained" in text
    assert "Drift" not in text
    mean = {row.cluster: row.mean for row in coterie.clusters(runs / "trained").clusters}[cluster]
    assert f"<dt>accuracy, mean of clients</dt><dd>{100 * (mean or 0):.1f} %</dd>" in text  # as its model card below
    assert "<dt>accuracy, of all test samples</dt>" in text


def test_a_report_of_a_watch_is_shown_where_there_is_one(client: Any, runs: Path) -> None:
    row = {"cluster": 0, "clients": 2, "doubtful": 1, "loss_before": 0.5, "loss_now": 2.25, "p": 0.001, "drifts": True}
    report = runs / "trained" / "watch.json"
    report.write_text(json.dumps({"drifts": True, "clusters": [row]}))
    try:
        text = get(client, "/cluster", run="trained", cluster=0).text
        assert "no longer fit" in text
        assert "<dt>loss now</dt><dd>2.2500</dd>" in text
        assert "Drift" not in get(client, "/cluster", run="trained", cluster=1).text
        report.write_text('{"clusters": 3}')
        assert "Drift" not in get(client, "/cluster", run="trained", cluster=0).text
        member = {"client": 0, "cluster": 0, "loss_before": 0.25, "loss_now": 3.5, "drifts": True, "suspicious": False}
        other = member | {"client": 2, "drifts": False, "suspicious": True}
        quiet = row | {"drifts": False}
        report.write_text(json.dumps({"clusters": [quiet], "clients": [member, other, member | {"cluster": 1}]}))
        text = get(client, "/cluster", run="trained", cluster=0).text
        assert "No drift" not in text  # of the cluster as a whole, but a member drifts
        drifting, suspicious = text[text.index("Members that drift") :].split("Suspicious members", 1)
        assert ">Ada</a> (loss 0.2500 to 3.5000)" in drifting
        assert "&lt;b&gt;Cleo</a>" in suspicious.split("</p>")[0]
        report.write_text(json.dumps({"clusters": [quiet], "clients": []}))
        assert "No drift is shown." in get(client, "/cluster", run="trained", cluster=0).text
    finally:
        report.unlink()


def test_a_client_is_explained_as_on_the_command_line(client: Any, runs: Path) -> None:
    page = get(client, "/client", run="trained", client=1)
    said = coterie.load(runs / "trained").explain("Bea")
    assert "Client &#x27;Bea&#x27; of" in page.text
    for line in str(said).splitlines()[:1]:
        assert line.replace("'", "&#x27;") in page.text
    assert f"cluster {said.cluster}</a> (its own)" in page.text


def test_a_run_that_cannot_be_loaded_has_pages_with_what_is_there(client: Any) -> None:
    text = get(client, "/cluster", run="by hand", cluster=1).text
    assert text.count("<tr") == 1 + 4
    assert "has no checkpoint to load" in text
    assert "has no checkpoint to load" in get(client, "/client", run="by hand", client=1).text


@pytest.mark.parametrize(
    ("path", "words", "said"),
    [
        ("/cluster", {"run": "../trained", "cluster": 0}, "There is no run"),
        ("/cluster", {"run": "trained", "cluster": "x"}, "expected a number"),
        ("/client", {}, "There is no run"),
        ("/download/model.zip", {"run": "trained", "cluster": 9}, "cluster 9"),
        ("/download/model.zip", {"run": "trained", "cluster": 0, "format": "pickle"}, "format"),
        ("/download/model.zip", {"run": "by hand", "cluster": 0}, "has no checkpoint"),
    ],
)
def test_what_is_not_there_is_said(client: Any, path: str, words: dict[str, object], said: str) -> None:
    answer = get(client, path, **words)
    assert answer.status_code == 404
    assert said in answer.text


def test_pages_are_for_local_names_and_under_the_policy_as_the_others(client: Any) -> None:
    assert client.get("/cluster?run=trained", base_url="http://evil.example").status_code == 403
    assert "default-src 'self'" in get(client, "/cluster", run="trained").headers["Content-Security-Policy"]


def test_the_table_of_assignments(client: Any, runs: Path) -> None:
    answer = get(client, "/download/assignments.csv", run="trained")
    lines = answer.text.splitlines()
    result = coterie.load(runs / "trained")
    assert lines[0] == "client,name,cluster,samples,loss,accuracy,macro_f1"
    assert [line.split(",")[:4] for line in lines[1:]] == [
        [str(i), name, str(result.assignments[i]), "8"] for i, name in enumerate(NAMES)
    ]
    assert answer.headers["Content-Disposition"] == 'attachment; filename="assignments.csv"'


@pytest.mark.parametrize("words", [{"cluster": 1}, {"client": 1}])
def test_the_model_as_safetensors(client: Any, words: dict[str, int]) -> None:
    answer = get(client, "/download/model.zip", run="trained", format="safetensors", **words)
    assert answer.mimetype == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.data)) as archive:
        assert any(name.endswith(".safetensors") for name in archive.namelist())
        assert any(name.endswith(".md") for name in archive.namelist())


def test_formats_are_those_that_can_be_written() -> None:
    assert formats()[0] == "safetensors"


def test_markdown_is_text_but_for_what_cards_use() -> None:
    text = "# A <b>\n\n|  |  |\n|---|---|\n| k | `v` |\n\n- one\n- two\n\n```yaml\na: <1>\n```\n\nplain & simple"
    assert to_html(text, 3) == (
        "<h3>A &lt;b&gt;</h3>"
        '<div class="table" tabindex="0"><table><tbody><tr><td>k</td><td><code>v</code></td></tr></tbody></table></div>'
        "<ul><li>one</li><li>two</li></ul>"
        '<pre tabindex="0"><code>a: &lt;1&gt;</code></pre>'
        "<p>plain &amp; simple</p>"
    )


@pytest.mark.parametrize("body", ["{}", "[]", "5", '{"output": "nothing.here", "inputs": [], "outputs": []}', "{", ""])
def test_a_request_that_no_page_sends_is_refused(client: Any, body: str) -> None:
    answer = client.post(
        "/_dash-update-component", data=body, content_type="application/json", base_url="http://127.0.0.1"
    )
    assert answer.status_code == 400


def test_what_privacy_has_cost_every_client_is_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 2)), rng.integers(0, 2, 20)) for _ in range(8)]
    found = coterie.run(
        *("fedavg", Federation.from_arrays(clients, standardise=False), "linear"),
        rounds=3,
        participation=4,
        seed=1,
        out=tmp_path / "private",
        privacy=coterie.Privacy(noise=2.0, smallest=1.0),
    )
    assert found.privacy is not None
    kept = json.loads((tmp_path / "private" / "privacy.json").read_text())["clients"]
    assert len(set(kept.values())) > 1, "all clients took part equally often: the test would see nothing"
    record = read_run(tmp_path / "private")
    said = str(about_run("private", record))
    assert f"{found.privacy.epsilon:.3g}" in said
    pictures = {kind.name for kind in KINDS if kind.draw(record, theme="light") is not None}
    assert pictures >= {"epsilon", "epsilon-clients"}
    browser = make_app(tmp_path).server.test_client()
    table = get(browser, "/download/assignments.csv", run="private").text.splitlines()
    assert table[0].endswith(",epsilon")
    for line in table[1:]:
        client, spent = line.split(",")[0], float(line.split(",")[-1])
        assert spent == pytest.approx(kept[client])
        page = get(browser, "/client", run="private", client=client).text
        assert f"<dt>privacy spent (epsilon)</dt><dd>{kept[client]:.3g}</dd>" in page


def test_a_received_run_directory_runs_no_code_however_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(read(None, ["rounds=1", "data.partition.clients=8"]), tmp_path / "runs" / "a")
    tree = yaml.safe_load((tmp_path / "runs" / "a" / "config.yaml").read_text())
    tree["data"]["partition"] = {"name": "hybrid", "clients": 8, "other": "trap_of_pages:Fun"}
    (tmp_path / "runs" / "a" / "config.yaml").write_text(yaml.safe_dump(tree))
    (tmp_path / "trap_of_pages.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    app = make_app(tmp_path / "runs")
    protect(app, "127.0.0.1")
    browser = app.server.test_client()
    for path in ("/client", "/cluster", "/download/model.zip", "/download/card.md", "/download/assignments.csv"):
        get(browser, path, run="a", client=0, cluster=0, format="torch")
    assert not (tmp_path / "ran").exists()
