"""The command line, run as its users run it: listings, runs, run directories, a user's own parts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import pytest
import yaml

import coterie
from conftest import raises
from coterie.network.config import read as network_read
from coterie.training.build import build, build_method, resolved
from coterie.training.config import read


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    return commandline.Shell(tmp_path, monkeypatch, capsys)


# ------------------------------------------------------------------------------------------- help and listings


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"], ["-h"]])
def test_help_does_not_wait_for_torch(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom coterie.tools.cli.main import main\nsys.argv = ['coterie', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'sklearn', 'numpy', 'scipy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_help_names_every_command(tmp_path: Path) -> None:
    said = commandline.coterie("--help", cwd=tmp_path)
    assert said.code == 0
    for command in ("run", "demo", "list", "data", "clusters", "More"):
        assert command in said.out


def test_the_script_is_installed() -> None:
    script = Path(sys.executable).with_name("coterie")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{coterie.__version__}\n"


LISTINGS = {
    "methods": {"fedavg", "fedprox", "ifca", "fesem", "wecfl"},
    "models": {"linear", "mlp", "cnn", "lenet", "cnn1d", "lstm"},
    "partitions": {"iid", "rotated"},
}


@pytest.mark.parametrize("kind", LISTINGS)
def test_listings(kind: str, shell: commandline.Shell) -> None:
    said = shell("list", kind, "--json")
    assert said.code == 0
    assert said.err == ""
    found = commandline.strictly(said.out)
    assert {entry["name"] for entry in found} >= LISTINGS[kind]
    for entry in found:
        assert list(entry) == ["name", "summary", "paper"]
        assert entry["summary"].strip(), entry
        assert "\n" not in entry["summary"]
        of_none = ("cnn1d", "transformer", "torchvision")  # of no paper in particular
        assert entry["paper"].strip() or entry["name"] in of_none, entry
    people = shell("list", kind, "--all")
    assert people.code == 0
    for entry in found:
        assert entry["name"] in people.out


def test_a_listing_of_the_real_command(tmp_path: Path) -> None:
    said = commandline.coterie("list", "methods", "--json", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    assert {entry["name"] for entry in said.json} >= LISTINGS["methods"]


def test_ten_methods_to_begin_with_and_one_described(shell: commandline.Shell) -> None:
    few = shell("list", "methods").out
    assert "fesem-cam" in few
    assert "fedrep" not in few
    assert "more: coterie list methods --all" in few
    said = shell("list", "methods", "fesem-cam")
    assert said.code == 0
    assert "method.base.k=4" in said.out
    assert "docs/methods/fesem-cam.md" in said.out
    found = commandline.strictly(shell("list", "methods", "wecfl", "--json").out)
    assert found["parameters"]["k"] == "4"
    missing = shell("list", "methods", "wecffl")
    assert missing.code == 2
    assert "Did you mean 'wecfl'" in missing.err
    data = commandline.strictly(shell("list", "data", "--json").out)
    assert {"name", "summary", "paper", "state"} == set(data[0])


# --------------------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[commandline.Said, Path]:
    """A real run with workers and partial participation."""
    folder = tmp_path_factory.mktemp("ran")
    words = (
        "rounds=7",
        "participation=0.5",
        "seed=3",
        "engine.name=workers",
        "engine.workers=2",
        "method=wecfl",
        "method.k=4",
    )
    said = commandline.coterie("run", *commandline.QUICK, *words, "--out", "a/b", "--json", cwd=folder)
    return said, folder / "a" / "b"


def test_json_of_a_run(ran: tuple[commandline.Said, Path]) -> None:
    said, path = ran
    assert (said.code, said.err) == (0, "")
    found = commandline.strictly(said.out)
    assert set(found) >= {"run_dir", "rounds", "accuracy", "macro_f1", "clusters", "sizes", "ari", "nmi", "seconds"}
    assert (found["run_dir"], found["rounds"]) == ("a/b", 7)
    assert 0 < found["accuracy"] <= 1
    assert 0 < found["macro_f1"] <= 1
    assert -1 <= found["ari"] <= 1
    assert 0 <= found["nmi"] <= 1
    assert found["clusters"] == len(found["sizes"])
    assert sum(found["sizes"]) == 8
    assert found["seconds"] > 0
    assert path.is_dir()


def test_contents_of_a_run_directory(ran: tuple[commandline.Said, Path]) -> None:
    said, path = ran
    assert {p.name for p in path.iterdir()} == {
        *("config.yaml", "run.json", "rounds.jsonl", "assignments.json", "clients.json", "checkpoints"),
        *("trace.jsonl", "sketch.safetensors", "serving.json", "status.json"),
    }
    about = commandline.strictly((path / "run.json").read_text())
    assert about["seed"] == 3
    assert {"coterie", "python", "torch", "numpy", "scikit-learn"} <= set(about["versions"])
    rounds = commandline.log(path)
    assert [line["round"] for line in rounds] == [1, 2, 3, 4, 5, 6, 7]
    # WeCFL's first clustering sees more than the round's cohort.
    assert [(line["asked"], line["answered"], line["missing"]) for line in rounds] == [(8, 8, []), *[(4, 4, [])] * 6]
    for key in ("accuracy", "macro_f1", "clusters", "sizes", "ari", "nmi"):
        assert rounds[-1][key] == said.json[key]
    assignments = commandline.strictly((path / "assignments.json").read_text())
    assert list(assignments) == [str(client) for client in range(8)]
    clients = commandline.strictly((path / "clients.json").read_text())
    assert [row["client"] for row in clients] == list(range(8))
    assert {str(row["client"]): row["cluster"] for row in clients} == assignments
    total = sum(row["samples"] for row in clients)
    weighted = sum(row["samples"] * row["accuracy"] for row in clients) / total
    assert weighted == pytest.approx(said.json["accuracy"], abs=1e-6)
    assert [p.name for p in commandline.checkpoints(path)] == ["round-000005.safetensors", "round-000007.safetensors"]


def test_the_resolved_config_runs_again_to_the_same_bits(
    ran: tuple[commandline.Said, Path], shell: commandline.Shell
) -> None:
    _, path = ran
    config = yaml.safe_load((path / "config.yaml").read_text())
    assert config["engine"] == {"name": "workers", "workers": 2}
    assert config["method"]["k"] == 4
    assert config["participation"] == 0.5
    for key in ("rounds", "seed", "quorum", "dropout", "local", "data", "model", "evaluate_every", "checkpoint_every"):
        assert key in config, f"{key} is not written out"
    assert {"epochs", "batch", "lr", "momentum", "weight_decay", "optimizer"} <= set(config["local"])
    assert shell("run", path / "config.yaml", "--out", "again").code == 0
    commandline.assert_same_run(path, shell.cwd / "again")
    # On one worker, too; and every default being written out, its config is the same file.
    assert shell("run", path / "config.yaml", "engine.workers=1", "--out", "one").code == 0
    commandline.assert_same_run(path, shell.cwd / "one")
    assert (shell.cwd / "again" / "config.yaml").read_bytes() == (path / "config.yaml").read_bytes()


def test_without_out_runs_are_numbered(shell: commandline.Shell) -> None:
    first = shell("run", *commandline.QUICK, "rounds=1", "--json").json
    second = shell("run", *commandline.QUICK, "rounds=1", "--json").json
    assert (first["run_dir"], second["run_dir"]) == ("runs/halves-1", "runs/halves-2")
    commandline.assert_same_run(shell.cwd / "runs/halves-1", shell.cwd / "runs/halves-2")


def test_what_a_person_sees(shell: commandline.Shell) -> None:
    said = shell("run", *commandline.QUICK, "--out", "here", "dropout=0.3", "quorum=0", "seed=1")
    assert said.code == 0
    for word in ("halves", "accuracy", "macro-F1", "clusters", "ARI", "run directory: here", "dropped out"):
        assert word in " ".join(said.out.split())


def test_regression(shell: commandline.Shell) -> None:
    said = shell("run", "data.name=synthetic-regression", "data.clients=8", "rounds=3", "local.lr=0.01", "--json")
    found = commandline.strictly(said.out)
    assert (found["accuracy"], found["macro_f1"]) == (None, None)
    assert found["ari"] is not None
    for row in commandline.strictly((shell.cwd / found["run_dir"] / "clients.json").read_text()):
        assert row["accuracy"] is None
        assert row["loss"] > 0


def test_a_loss_beyond_all_bounds_is_still_json(shell: commandline.Shell) -> None:
    """A rate at which models are finite and their squared errors are not: what is written stays JSON."""
    words = ["data.name=synthetic-regression", "data.clients=4", "method.name=fedavg", "local.batch=full"]
    for rate in (12, 15, 20, 30, 50):
        said = shell("run", *words, f"local.lr={rate}", "local.steps=4", "rounds=6", "quorum=0", "--json")
        if said.code == 0:
            commandline.strictly(said.out)
        for path in (shell.cwd / "runs").iterdir():
            commandline.log(path)
            if (path / "clients.json").exists():
                commandline.strictly((path / "clients.json").read_text())
        shutil.rmtree(shell.cwd / "runs")


@pytest.mark.exhaustive
def test_demo(tmp_path: Path) -> None:
    """The clustered run is clearly better: tens of points, and the hidden clusters are found exactly."""
    said = commandline.coterie("demo", "--json", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    found = commandline.strictly(said.out)
    assert found["wecfl"]["accuracy"] >= found["fedavg"]["accuracy"] + 0.10
    assert found["wecfl"]["macro_f1"] >= found["fedavg"]["macro_f1"] + 0.10
    assert (found["wecfl"]["ari"], found["wecfl"]["sizes"]) == (1.0, [10, 10, 10, 10])
    assert (found["fedavg"]["clusters"], found["fedavg"]["sizes"]) == (1, [40])
    assert (found["halves"]["ari"], found["halves"]["sizes"]) == (1.0, [10, 10, 10, 10])
    assert abs(found["halves"]["accuracy"] - found["wecfl"]["accuracy"]) < 0.01
    names = ("fedavg", "wecfl", "halves")
    for name in names:
        assert len(commandline.log(tmp_path / found["run_dir"] / name)) == 30
    budgets = [yaml.safe_load((tmp_path / found["run_dir"] / n / "config.yaml").read_text()) for n in names]
    for budget in budgets:
        del budget["method"]
    assert budgets[0] == budgets[1] == budgets[2]


# ------------------------------------------------------------------------------------------- a user's own parts

MINE = '''
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import coterie


@dataclass(frozen=True)
class Pair:
    """Two models."""
    one: torch.Tensor
    rest: torch.Tensor
    seen: int


@dataclass(frozen=True)
class Mine:
    """FedAvg with a step of its own."""
    local: coterie.Local = coterie.Local()
    pace: float = 0.5

    def init(self, model, roster, rng):
        w = model.init(rng)
        return Pair(w, w.clone(), 0)

    def round(self, state, cohort, ask):
        reply = ask(coterie.Fit(coterie.All(state.one), local=self.local))
        new = coterie.mean(reply.theta, reply.n.double(), empty=state.one)
        return Pair(state.one.lerp(new, self.pace), state.one, state.seen + len(reply.ids))

    def predictor(self, state):
        return coterie.Evaluate((coterie.All(state.one),))


class Net(nn.Module):
    def __init__(self, hidden=7):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x):
        return self.layers(x)


def data(clients=5):
    rng = np.random.default_rng(0)
    return coterie.Federation.from_arrays(
        [(rng.normal(size=(20 + i, 6)), rng.integers(0, 3, 20 + i)) for i in range(clients)]
    )
'''


@pytest.mark.exhaustive
def test_own_method_model_and_data(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    words = ["method.name=mine:Mine", "model.name=mine:Net", "data.name=mine:data", "rounds=2"]
    more = ["method.pace=0.25", "model.hidden=9", "data.clients=4"]
    said = commandline.coterie("run", *words, *more, "--out", "own", "--json", cwd=tmp_path)
    assert said.code == 0, said.err
    assert said.json["sizes"] == [4]
    assert (said.json["ari"], said.json["nmi"]) == (None, None)
    config = yaml.safe_load((tmp_path / "own" / "config.yaml").read_text())
    assert config["method"] == {"name": "mine:Mine", "pace": 0.25}
    assert config["model"] == {"name": "mine:Net", "hidden": 9}
    assert commandline.last_tensors(tmp_path / "own")["state/0"].shape == (6 * 9 + 9 + 9 * 3 + 3,)
    # Its state of its own class is resumed, too.
    refused = commandline.coterie("run", "--resume", "own", "--json", cwd=tmp_path)
    assert refused.code == 2
    assert "--trust" in refused.err
    trust = [word for name in ("Mine", "Net", "data") for word in ("--trust", f"mine:{name}")]
    again = commandline.coterie("run", "--resume", "own", *trust, "--json", cwd=tmp_path)
    assert again.code == 0, again.err
    assert {**again.json, "seconds": 0} == {**said.json, "seconds": 0}
    unread = commandline.coterie("clusters", "own", cwd=tmp_path)
    assert "--trust mine:" in unread.out
    read = commandline.coterie("clusters", "own", *trust, cwd=tmp_path)
    assert read.code == 0, read.err
    assert "--trust" not in read.out


def test_own_parts_next_to_the_ones_that_are_there(shell: commandline.Shell) -> None:
    shell.module(MINE, "mine_too")
    for words in (
        ["method.name=mine_too:Mine"],
        ["data.name=mine_too:data", "method=wecfl", "method.k=2", "model.name=mlp"],
    ):
        said = shell("run", *words, "rounds=2", "engine.name=workers", "engine.workers=2", "--json")
        assert said.code == 0, said.err


def test_an_own_method_takes_the_runs_local(shell: commandline.Shell) -> None:
    shell.module(MINE, "mine_three")
    slow, fast = (
        shell("run", *commandline.QUICK, "method.name=mine_three:Mine", f"local.lr={lr}", "--json").json["loss"]
        for lr in (0.001, 0.2)
    )
    assert fast < slow


# --------------------------------------------------------------------------------------- files and changes to them


def test_a_file_and_changes_to_it(shell: commandline.Shell) -> None:
    (shell.cwd / "run.yaml").write_text(
        "rounds: 9\nseed: 4\nmethod: {name: ifca, k: 3}\nlocal: {steps: 2, lr: 0.2}\n"
        "data: {name: digits, partition: {name: rotated, clients: 6, angles: [0, 45, 180]}}\n"
    )
    said = shell("run", "run.yaml", "rounds=2", "method.k=2", "local.batch=full", "--out", "a", "--json")
    assert said.code == 0, said.err
    assert said.json["rounds"] == 2
    config = yaml.safe_load((shell.cwd / "a" / "config.yaml").read_text())
    assert (config["rounds"], config["seed"]) == (2, 4)
    assert (config["method"]["name"], config["method"]["k"]) == ("ifca", 2)
    assert (config["local"]["steps"], config["local"]["lr"], config["local"]["batch"]) == (2, 0.2, "full")
    partition = {"name": "rotated", "clients": 6, "angles": [0, 45, 180], "reuse": False, "test": "auto"}
    assert config["data"]["partition"] == partition  # every default written out


def test_an_empty_file_is_the_demo(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read(tmp_path / "empty.yaml") == read(None) == coterie.RunConfig()


def test_the_method_that_nobody_names_is_halves(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rounds: 3\nmodel: mlp\n")
    assert read(None).method.name == read(tmp_path / "mine.yaml").method.name == "halves"
    assert network_read(None).method.name == "halves"
    rng = np.random.default_rng(0)
    clients = [(x := rng.normal(size=(40, 4)), (x[:, 0] > 0) == (i % 2)) for i in range(8)]
    found = coterie.run(federation=clients, model="linear", rounds=2)
    assert found.method == coterie.Halves()
    assert found.assignments.tolist() == [0, 1] * 4
    with raises("argument-missing", match=r"run\(federation=clients\)"):
        coterie.run("fedavg")


def test_a_new_method_keeps_what_it_knows_and_drops_the_rest() -> None:
    words = ["method=wecfl", "method.k=3", "method.features=all", "method.kmeans_weights=equal"]
    assert read(None, [*words, "method.name=fesem"]).method.params == {
        "k": 3,
        "features": "all",
        "kmeans_weights": "equal",
    }
    assert read(None, [*words, "method.name=ifca"]).method.params == {"k": 3}
    assert read(None, [*words, "method.name=fedavg"]).method.params == {}
    # What is said after the name is meant for the new one.
    with raises("config-unknown-key"):
        coterie.training.build.build_method(read(None, ["method.name=fedavg", "method.k=3"]))


def test_a_new_data_source_drops_a_partition_it_cannot_use() -> None:
    config = read(None, ["data.name=synthetic-regression"])
    assert config.data.partition is None
    back = read(None, ["data.name=synthetic-regression", "data.name=digits", "data.partition.name=iid"])
    assert back.data.partition is not None
    assert back.data.partition.name == "iid"


def test_steps_and_epochs_replace_each_other() -> None:
    assert (read(None, ["local.steps=3"]).local.steps, read(None, ["local.steps=3"]).local.epochs) == (3, None)
    with raises("config-invalid-value", match="not both"):
        read(None, ["local.steps=3", "local.epochs=2"])


@pytest.mark.parametrize(
    "words",
    [
        ["method.name=stocfl", "method.tau=0.3"],
        ["method.name=fesem-cam", "method.base.k=3", "method.local.lr=0.03"],
        ["method.name=cam", "method.base.name=fedgroup", "method.base.k=2", "model.name=mlp"],
        ["data.name=synthetic-regression", "method.name=ditto"],
    ],
    ids=["stocfl", "fesem-cam", "cam", "regression"],
)
def test_the_resolved_configuration_says_everything_and_means_the_same(words: list[str]) -> None:
    config = read(None, words)
    tree = yaml.safe_load(yaml.safe_dump(resolved(config, build_method(config))))
    again = read(None, base=tree)
    assert build_method(again) == build_method(config)
    assert build(again).federation.checksum() == build(config).federation.checksum()
    assert {"name", "k"} - set(tree["method"]) != {"name", "k"}
    for part in (tree["data"].get("partition"), tree["data"]):
        assert part is None or {"clients", "test"} <= set(part) or "partition" in part
    assert resolved(again, build_method(again)) == tree


def test_a_name_alone_is_short_for_the_thing_of_that_name(tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text("method: ifca\nengine: workers\n")
    config = read(file, ["model=mlp"])
    assert (config.method.name, config.engine.name, config.model.name) == ("ifca", "workers", "mlp")


@pytest.mark.parametrize("name", ["wecfl", "ifca-cam"])
def test_what_a_method_says_of_local_training_changes_only_that(name: str) -> None:
    method: Any = build_method(read(None, [f"method.name={name}", "local.batch=4", "method.local.lr=0.03"]))
    assert (method.local.lr, method.local.batch, method.local.epochs) == (0.03, 4, 5)
    method = build_method(read(None, [f"method.name={name}", "method.local.steps=7"]))
    assert (method.local.steps, method.local.epochs, method.local.batch) == (7, None, 8)


def test_a_base_trains_as_the_run_says_unless_it_says_otherwise() -> None:
    words = ["method.name=ifca-cam", "local.lr=0.05", "method.base.local.batch=2"]
    method: Any = build_method(read(None, words))
    assert (method.local.lr, method.base.local.lr) == (0.05, 0.05)
    assert (method.local.batch, method.base.local.batch) == (8, 2)
