"""`coterie export` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie
from coterie.core.errors import CoterieError
from coterie.tools.cli.main import app

QUICK = ("data.partition.clients=4", "data.partition.angles=[0,180]", "local.epochs=1", "rounds=2")


def said(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None, result.output
    return result.stdout


def failed(*words: str) -> CoterieError:
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, CoterieError), result.output
    return result.exception


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with clusters and one with personal models."""
    folder = tmp_path_factory.mktemp("runs")
    said("run", "method.name=oracle", *QUICK, "--out", str(folder / "oracle"))
    said("run", "method.name=ditto", *QUICK, "--out", str(folder / "ditto"))
    return folder


def test_every_cluster_with_a_card_each(runs: Path, tmp_path: Path) -> None:
    lines = said(
        "export", str(runs / "oracle"), "--all", "--format", "safetensors", "--out", str(tmp_path)
    ).splitlines()
    assert [line.partition(" (")[0] for line in lines] == [str(tmp_path / f"cluster-{k}.safetensors") for k in (0, 1)]
    assert all("checked by the tensors read back: differs by" in line for line in lines)
    assert (tmp_path / "cluster-1.md").read_text().startswith("# Model card: cluster 1 of run oracle\n")


def test_one_cluster_goes_into_the_run_directory(runs: Path) -> None:
    (made,) = json.loads(said("export", str(runs / "oracle"), "--cluster", "1", "--json"))
    assert Path(made["path"]) == runs / "oracle" / "export" / "cluster-1.onnx"
    assert (made["format"], made["cluster"], made["client"], made["checked_by"]) == ("onnx", 1, None, "onnxruntime")
    assert made["difference"] < 1e-5
    assert all(Path(file).is_file() for file in made["files"])


def test_a_client_of_a_method_with_models_of_their_own(runs: Path, tmp_path: Path) -> None:
    error = failed("export", str(runs / "ditto"), "--cluster", "0", "--out", str(tmp_path))
    assert error.code == "result-ambiguous"
    assert "Ditto has no single model per cluster: each client predicts with a model of its own; write --client" in str(
        error
    )
    said("export", str(runs / "ditto"), "--client", "2", "--out", str(tmp_path / "mine.onnx"))
    import onnxruntime

    x = np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8)).astype(np.float32)
    label = onnxruntime.InferenceSession(str(tmp_path / "mine.onnx")).run(["label"], {"inputs": x})[0]
    np.testing.assert_array_equal(label, coterie.load(runs / "ditto").predict(2, x))


def test_where_clients_have_models_of_their_own_all_means_each(tmp_path: Path) -> None:
    """Ditto: one file per client, and what serves is said."""
    words = ("data.partition.clients=4", "local.epochs=1", "rounds=1", "method.name=ditto")
    run = str(tmp_path / "d")
    assert "Each client is served by a model of its own" in said("run", *words, "--out", run)
    said("export", run, "--all", "--format", "safetensors", "--out", str(tmp_path / "all"))
    assert len(list((tmp_path / "all").glob("client-*.safetensors"))) == 4
    shown = said("clusters", run)
    assert "Each client is served by a model of its own" in shown
    assert "--resume DIR --with FILE" in shown


def test_cards_alone(runs: Path, tmp_path: Path) -> None:
    lines = said("export", str(runs / "ditto"), "--card", "--out", str(tmp_path / "cards")).splitlines()
    assert lines == [str(tmp_path / "cards" / "cluster-0.md")]
    assert "| method | ditto, 2 rounds |" in Path(lines[0]).read_text()
    found = json.loads(said("export", str(runs / "oracle"), "--card", "--json", "--out", str(tmp_path)))
    assert found == {"cards": [str(tmp_path / "cluster-0.md"), str(tmp_path / "cluster-1.md")]}


def test_options_that_do_not_go_together(runs: Path, tmp_path: Path) -> None:
    run = str(runs / "oracle")
    assert failed("export", run, "--all", "--cluster", "1").code == "option-conflict"
    assert failed("export", run, "--card", "--format", "onnx").code == "option-conflict"
    assert failed("export", run).code == "argument-missing"
    assert failed("export", run, "--cluster", "5", "--out", str(tmp_path / "x")).code == "cluster-unknown"
    assert failed("export", run, "--client", "nobody").code == "client-unknown"
    assert failed("export", str(tmp_path), "--all").code == "run-not-found"
    (tmp_path / "file").write_text("")
    assert failed("export", run, "--cluster", "0", "--out", str(tmp_path / "file")).code == "disk-write"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_the_extra_the_message_names_it(runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib

    true = importlib.import_module

    def missing(name: str, package: str | None = None) -> object:
        if name == "onnxscript":
            raise ImportError(name)
        return true(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    error = failed("export", str(runs / "oracle"), "--cluster", "0", "--out", str(tmp_path))
    assert error.code == "extra-missing"
    assert "pip install 'coterie[onnx]'" in str(error)
    assert list(tmp_path.iterdir()) == []
