"""Bad input: one clear message that names the key, file or client, exit code 2, and nothing half-written."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import pytest
import safetensors.torch
import torch
import typer
from torch import nn

import coterie
from conftest import few, raises
from coterie.client.contract import Memory
from coterie.core.errors import CoterieError
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.tables import ByClient
from coterie.methods.hard_clusters import Clusters
from coterie.training import checkpoint
from coterie.training.config import read
from coterie.training.execute import execute
from coterie.zoo import MLP


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    return commandline.Shell(tmp_path, monkeypatch, capsys)


def refused(said: commandline.Said, *words: str) -> None:
    assert said.code == 2, said
    assert said.out == ""
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and every empty folder."""
    inside = [p for p in folder.rglob("*") if "__pycache__" not in p.parts]
    files = {str(p.relative_to(folder)): p.read_bytes() for p in inside if p.is_file()}
    return files | {f"{p.relative_to(folder)}/": b"" for p in inside if p.is_dir() and not any(p.iterdir())}


# ---------------------------------------------------------------------------------------------- keys and values

BAD: dict[str, tuple[list[str], list[str]]] = {
    # unknown names, with the nearest valid one
    "method": (["method.name=wecfll"], ["method.name", "'wecfll'", "Did you mean 'wecfl'?"]),
    "model": (["model.name=lineer"], ["model.name", "Did you mean 'linear'?"]),
    "dataset": (["data.name=digit"], ["data.name", "Did you mean 'digits'?"]),
    "partition": (["data.partition.name=rotate"], ["data.partition.name", "Did you mean 'rotated'?"]),
    "engine": (["engine.name=worker"], ["engine.name", "'workers'"]),
    "key": (["round=3"], ["round: unknown key", "Did you mean 'rounds'?"]),
    "local key": (["local.epoch=3"], ["local.epoch: unknown key", "Did you mean 'epochs'?"]),
    "method key": (["method=wecfl", "method.feature=all"], ["method.feature: unknown key", "Did you mean 'features'?"]),
    "method key of another": (["method.name=fedavg", "method.k=3"], ["method.k: unknown key", "weights"]),
    "model key": (["model.name=mlp", "model.hiden=[3]"], ["model.hiden: unknown key", "Did you mean 'hidden'?"]),
    "partition key": (["data.partition.cleints=4"], ["data.partition.cleints", "Did you mean 'clients'?"]),
    "data key": (["data.sise=4"], ["data.sise: unknown key"]),
    "engine key": (["engine.worker=2"], ["engine.worker: unknown key", "Did you mean 'workers'?"]),
    "features": (["method=wecfl", "method.features=last"], ["method.features", "last_weight"]),
    "optimizer": (["local.optimizer=adm"], ["local.optimizer", "'adam'"]),
    # values out of their domain
    "K > clients, wecfl": (["method=wecfl", "method.k=41"], ["method.k", "41", "40"]),
    "K > clients, fesem": (["method.name=fesem", "method.k=9", "data.partition.clients=8"], ["method.k", "9", "8"]),
    "K > clients, ifca": (["method.name=ifca", "method.k=9", "data.partition.clients=8"], ["method.k", "9", "8"]),
    "K 0": (["method=wecfl", "method.k=0"], ["method.k"]),
    "rate < 0": (["local.lr=-0.1"], ["local.lr", "-0.1"]),
    "rate 0": (["local.lr=0"], ["local.lr"]),
    "rate NaN": (["local.lr=.nan"], ["local.lr"]),
    "rate infinite": (["local.lr=.inf"], ["local.lr"]),
    "rate a word": (["local.lr=fast"], ["local.lr", "fast"]),
    "decay < 0": (["local.weight_decay=-1"], ["local.weight_decay"]),
    "lr_decay > 1": (["local.lr_decay=1.5"], ["local.lr_decay"]),
    "momentum < 0": (["local.momentum=-0.5"], ["local.momentum"]),
    "momentum 1": (["local.momentum=1"], ["local.momentum"]),
    "momentum with adam": (["local.optimizer=adam", "local.momentum=0.9"], ["local", "momentum"]),
    "mu < 0": (["method.name=fedprox", "method.mu=-1"], ["method.mu"]),
    "mu infinite": (["method.name=fedprox", "method.mu=.inf"], ["method.mu"]),
    "batch 0": (["local.batch=0"], ["local.batch"]),
    "batch a word": (["local.batch=fulll"], ["local.batch", "'full'"]),
    "epochs 0": (["local.epochs=0"], ["local.epochs"]),
    "rounds 0": (["rounds=0"], ["rounds"]),
    "rounds half": (["rounds=2.5"], ["rounds", "2.5"]),
    "rounds nothing": (["rounds="], ["rounds"]),
    "seed < 0": (["seed=-1"], ["seed"]),
    "participation 0": (["participation=0"], ["participation"]),
    "participation 0.0": (["participation=0.0"], ["participation"]),
    "participation 2.0": (["participation=2.0"], ["participation", "2.0"]),
    "participation -1": (["participation=-1"], ["participation"]),
    "participation 9999": (["participation=9999"], ["participation", "9999", "40"]),
    "participation NaN": (["participation=.nan"], ["participation"]),
    "quorum 2": (["quorum=2"], ["quorum"]),
    "dropout < 0": (["dropout=-0.1"], ["dropout"]),
    "dropout 1": (["dropout=1"], ["dropout"]),
    "retries < 0": (["retries=-1"], ["retries"]),
    "checkpoint_every 0": (["checkpoint_every=0"], ["checkpoint_every"]),
    "evaluate_every 0": (["evaluate_every=0"], ["evaluate_every"]),
    "workers 0": (["engine.name=workers", "engine.workers=0"], ["engine.workers"]),
    "workers of sequential": (
        ["engine.name=sequential", "engine.workers=2"],
        ["engine.workers", "engine.name=workers"],
    ),
    "test share 1": (["data.partition.test=1"], ["data.partition.test"]),
    "clients 0": (["data.partition.clients=0"], ["data.partition.clients"]),
    "more clients than samples": (["data.partition.clients=5000"], ["data.partition", "5000"]),
    "fewer clients than angles": (["data.partition.clients=3"], ["data.partition.angles", "3"]),
    "no angles": (["data.partition.angles=[]"], ["data.partition.angles"]),
    "both epochs and steps": (["local.epochs=2", "local.steps=3"], ["local", "not both"]),
    "both epochs and steps of a method": (["method.local.epochs=2", "method.local.steps=3"], ["local", "not both"]),
    "method a number": (["method=3"], ["method"]),
    "data a number": (["data=3"], ["data"]),
    # what does not fit together
    "model too big for the images": (["model.name=lenet"], ["model", "8"]),
    "rotated numbers": (["data.name=synthetic-regression", "data.partition.name=rotated"], ["data.partition"]),
    "images from numbers": (["data.name=synthetic-regression", "model.name=cnn"], ["model", "(10,)"]),
    # words
    "no value": (["rounds=3", "method.k"], ["'method.k'", "key=value"]),
    "no key": (["=3"], ["=3"]),
    "value not YAML": (["method.k=[1"], ["method.k", "[1"]),
    "missing file": (["nowhere.yaml"], ["nowhere.yaml"]),
    "a folder as file": (["."], ["."]),
    # modules
    "module that is not there": (["method.name=nowhere_at_all:Mine"], ["method.name", "nowhere_at_all"]),
    "attribute that is not there": (["method.name=coterie.methods.ifca:Ifca"], ["method.name", "IFCA"]),
    "not a method": (["method.name=pathlib:Path"], ["method"]),
    "module without attribute": (["model.name=nowhere_at_all:"], ["model.name"]),
    # resuming
    "resume of nothing": (["--resume", "nowhere"], ["nowhere"]),
    "resume with a file": (["some.yaml", "--resume", "nowhere"], ["--resume"]),
    "resume with out": (["--resume", "nowhere", "--out", "other"], ["--out"]),
    "unknown option": (["--outt", "x"], ["--outt"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what: str, shell: commandline.Shell) -> None:
    words, named = BAD[what]
    refused(shell("run", *words), *named)
    assert snapshot(shell.cwd) == {}, "something was left behind"


@pytest.mark.parametrize("what", few(["method", "participation 9999", "resume of nothing"], "method"))
def test_bad_input_to_the_real_command(what: str, tmp_path: Path) -> None:
    words, named = BAD[what]
    refused(commandline.coterie("run", *words, "--json", cwd=tmp_path), *named)
    assert snapshot(tmp_path) == {}


def test_a_list_of_faults_is_told_at_once(shell: commandline.Shell) -> None:
    refused(shell("run", "local.lr=-1", "rounds=0", "sed=3"), "local.lr", "rounds", "sed: unknown key")


def test_unknown_command(shell: commandline.Shell) -> None:
    refused(shell("runn"), "runn")


# --------------------------------------------------------------------------------------------------------- files

FILES: dict[str, tuple[bytes, list[str]]] = {
    "not YAML": (b"method: {name: [wecfl\nrounds: 3", ["bad.yaml", "not YAML"]),
    "not text": (b"\xff\xfe\x00binary\x80", ["bad.yaml"]),
    "a list": (b"- rounds\n- 3\n", ["bad.yaml", "list"]),
    "a word": (b"wecfl\n", ["bad.yaml", "str"]),
    "unknown key": (b"methods: {name: wecfl}\n", ["methods", "Did you mean 'method'?"]),
    "unknown method": (b"method: {name: fedavgg}\n", ["method.name", "Did you mean 'fedavg'?"]),
    "a number as key": (b"3: 4\n", ["3"]),
    "no name": (b"method: {k: 4}\n", ["method.name"]),
    "no partition": (b"data: {name: digits}\n", ["data.partition"]),
    "a name that is a number": (b"method: {name: 3}\n", ["method.name"]),
    "python tag": (b"method: !!python/object/apply:os.getcwd []\n", ["bad.yaml"]),
    "duplicate nothing": (b"method:\n", ["method"]),
    "a key twice": (b"rounds: 2\nseed: 1\nrounds: 3\n", ["bad.yaml", "duplicate key 'rounds'", "line 3"]),
    "a key twice below": (b"method: {name: wecfl, k: 2, k: 3}\n", ["bad.yaml", "duplicate key 'k'"]),
}


@pytest.mark.parametrize("what", FILES)
def test_bad_file(what: str, shell: commandline.Shell) -> None:
    text, named = FILES[what]
    (shell.cwd / "bad.yaml").write_bytes(text)
    refused(shell("run", "bad.yaml"), *named)
    assert snapshot(shell.cwd) == {"bad.yaml": text}


@pytest.mark.parametrize("text", ["def broken(:\n", "raise RuntimeError('not today')\n", "import nowhere_at_all\n"])
@pytest.mark.parametrize("kind", ["method", "model", "data", "data.partition"])
def test_a_module_that_does_not_import(kind: str, text: str, shell: commandline.Shell) -> None:
    shell.module(text, "does_not_import")
    refused(shell("run", f"{kind}.name=does_not_import:Thing"), f"{kind}.name", "does_not_import")
    assert set(snapshot(shell.cwd)) == {"does_not_import.py"}


@pytest.mark.parametrize(("out", "why"), [("taken", "exists"), ("taken/file", "is a file; name a directory")])
def test_a_run_directory_that_exists(out: str, why: str, shell: commandline.Shell) -> None:
    (shell.cwd / "taken").mkdir()
    (shell.cwd / "taken" / "file").write_text("mine")
    refused(shell("run", *commandline.QUICK, "--out", out), out, why)
    assert snapshot(shell.cwd) == {"taken/file": b"mine"}


def test_a_run_directory_below_a_file(shell: commandline.Shell) -> None:
    (shell.cwd / "file").write_text("mine")
    refused(shell("run", *commandline.QUICK, "--out", "file/run"), "file/run")
    assert snapshot(shell.cwd) == {"file": b"mine"}


def test_an_empty_directory_will_do(shell: commandline.Shell) -> None:
    (shell.cwd / "empty").mkdir()
    assert shell("run", *commandline.QUICK, "--out", "empty").code == 0


# --------------------------------------------------------------------------------------------------- a user's data

DATA = """
import numpy as np
from torch import nn
import coterie

rng = np.random.default_rng(0)

def clients(n=6):
    return [(rng.normal(size=(12, 5)).astype("float32"), rng.integers(0, 3, 12)) for _ in range(n)]

def empty():
    found = clients()
    found[4] = (np.zeros((0, 5), "float32"), np.zeros(0, "int64"))
    return coterie.Federation.from_arrays(found)

def nan():
    found = clients()
    found[2][0][7, 3] = np.nan
    return coterie.Federation.from_arrays(found)

def infinite_target():
    found = [(x, x[:, :1].copy()) for x, _ in clients()]
    found[5][1][0] = np.inf
    return coterie.Federation.from_arrays(found)

def outside():
    found = clients()
    found[3][1][0] = 7
    return coterie.Federation.from_arrays(found, outputs=3)

def negative():
    found = clients()
    found[1][1][0] = -1
    return coterie.Federation.from_arrays(found)

def wide():
    found = clients()
    found[3] = (np.zeros((12, 6), "float32"), found[3][1])
    return coterie.Federation.from_arrays(found)

def uneven():
    found = clients()
    found[3] = (found[3][0], found[3][1][:-2])
    return coterie.Federation.from_arrays(found)

def ragged():
    found = clients()
    found[3] = ([[1, 2, 3, 4, 5], [1, 2]], [0, 1])
    return coterie.Federation.from_arrays(found)

def words():
    found = clients()
    found[3] = (np.array([["a"] * 5] * 12), found[3][1])
    return coterie.Federation.from_arrays(found)

def nobody():
    return coterie.Federation.from_arrays([])

def no_tests():
    return coterie.Federation.from_arrays(clients(), test=0)

def fine():
    return coterie.Federation.from_arrays(clients())

def nothing():
    return None

class Narrow(nn.Linear):
    def __init__(self):
        super().__init__(5, 2)

class Wide(nn.Linear):
    def __init__(self):
        super().__init__(9, 3)

class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)
    def forward(self, x):
        return self.layer(x).sum(1)

class Pair(Flat):
    def forward(self, x):
        return self.layer(x), x

class Lazy(nn.LazyLinear):
    def __init__(self):
        super().__init__(3)

class Broken(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)
        raise KeyError("no weights")

class Forgetful(coterie.FedAvg):
    def round(self, w, cohort, ask):
        super().round(w, cohort, ask)

class Fixed:  # a method that trains as it likes
    def init(self, model, roster, rng):
        return model.init(rng)

    def round(self, w, cohort, ask):
        reply = ask(coterie.Fit(coterie.All(w), local=coterie.Local(epochs=1, batch=4, lr=0.05)))
        return coterie.mean(reply, reply.n, empty=w)

    def predictor(self, w):
        return coterie.Evaluate((coterie.All(w),))

class Diverging(Fixed):
    def round(self, w, cohort, ask):
        return super().round(w, cohort, ask) * float("nan")

def breaks():
    raise OSError("no disk")
"""

OWN: dict[str, tuple[list[str], list[str]]] = {
    "empty client": (["data.name=own_data:empty"], ["data", "client 4", "no training samples"]),
    "NaN": (["data.name=own_data:nan"], ["data", "client 2", "NaN"]),
    "infinite target": (["data.name=own_data:infinite_target"], ["data", "client 5", "Inf"]),
    "label outside outputs": (["data.name=own_data:outside"], ["client 3", "label"]),
    "negative label": (["data.name=own_data:negative"], ["client 1", "label"]),
    "label outside the head": (["data.name=own_data:fine", "model.name=own_data:Narrow"], ["client", "label 2"]),
    "other width": (["data.name=own_data:wide"], ["client 3", "(6,)", "(5,)"]),
    "fewer labels": (["data.name=own_data:uneven"], ["client 3", "12", "10"]),
    "ragged rows": (["data.name=own_data:ragged"], ["client 3"]),
    "words": (["data.name=own_data:words"], ["client 3"]),
    "nobody": (["data.name=own_data:nobody"], ["at least one client"]),
    "no test samples": (["data.name=own_data:no_tests"], ["test"]),
    "shape": (["data.name=own_data:fine", "model.name=own_data:Wide"], ["model", "(5,)"]),
    "one number per sample": (["data.name=own_data:fine", "model.name=own_data:Flat"], ["model", "(2,)"]),
    "two outputs": (["data.name=own_data:fine", "model.name=own_data:Pair"], ["model", "tuple", "logits alone"]),
    "no size yet": (["data.name=own_data:fine", "model.name=own_data:Lazy"], ["model", "lazy layer"]),
    "cannot be built": (["data.name=own_data:fine", "model.name=own_data:Broken"], ["model", "no weights"]),
    "a function that fails": (["data.name=own_data:breaks"], ["data", "own_data:breaks", "OSError: no disk"]),
    "images wanted": (["data.name=own_data:fine", "model.name=cnn"], ["model", "(5,)"]),
    "K > clients": (["data.name=own_data:fine", "method.k=7"], ["method.k", "7", "6"]),
    "partition of clients": (["data.name=own_data:fine", "data.partition.name=iid"], ["data.partition"]),
    "not a federation": (["data.name=own_data:nothing"], ["data", "nothing"]),
}


@pytest.mark.parametrize("what", OWN)
def test_bad_own_data(what: str, shell: commandline.Shell) -> None:
    shell.module(DATA, "own_data")
    words, named = OWN[what]
    refused(shell("run", "method=wecfl", "method.k=2", "rounds=2", *words), *named)
    assert set(snapshot(shell.cwd)) == {"own_data.py"}, "something was left behind"


def test_a_method_without_a_state(shell: commandline.Shell) -> None:
    shell.module(DATA, "own_data")
    words = ("data.name=own_data:fine", "rounds=2", "--out", "run")
    refused(shell("run", "method.name=own_data:Forgetful", *words), "round of Forgetful returned None")


def test_local_that_a_method_would_not_read(shell: commandline.Shell) -> None:
    shell.module(DATA, "own_data")
    words = ("data.name=own_data:fine", "rounds=1", "method.name=own_data:Fixed")
    assert shell("run", *words, "--out", "run").code == 0
    refused(shell("run", *words, "local.lr=0.5"), "local: own_data:Fixed has no field `local`", "leave local out")


def test_a_method_that_breaks_its_model_is_not_told_to_wait_for_clients(shell: commandline.Shell) -> None:
    shell.module(DATA, "own_data")
    words = ("data.name=own_data:fine", "rounds=1", "method.name=own_data:Diverging", "--out", "run")
    said = shell("run", *words)
    assert said.code == 2
    assert "round 1: the steps of training diverge" in said.err
    assert "once clients are there" not in said.err


def test_an_interrupt_before_a_run_has_begun_does_not_offer_to_resume_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from coterie.tools.cli import main
    from coterie.training import execute
    from coterie.training.config import read

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "execute", interrupted)
    for begun, told in ((False, "it had not begun, so nothing was kept"), (True, "coterie run --resume")):
        if begun:
            (tmp_path / "config.yaml").write_text("rounds: 1\n", encoding="utf-8")
        with pytest.raises(typer.Exit):
            main._run(read(None), tmp_path, resume=False, quiet=True)
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("build", [nn.Linear, lambda: nn.LazyLinear(2)], ids=["wants", "lazy"])
def test_a_network_that_cannot_be_built_in_python(build: Any) -> None:
    clients = [(np.zeros((8, 3)), np.arange(8) % 2)] * 2
    with pytest.raises(CoterieError, match=r"model: (the network cannot be built: TypeError|a lazy layer)"):
        coterie.run("fedavg", clients, build, rounds=1)


def test_an_architecture_of_the_zoo_is_built_for_the_data() -> None:
    clients = [(np.random.default_rng(i).normal(size=(8, 3)), np.arange(8) % 2) for i in range(2)]
    result = coterie.run("fedavg", clients, MLP(hidden=(5,)), rounds=1)
    assert [tuple(p.shape) for p in result.network(0).parameters()] == [(5, 3), (5,), (2, 5), (2,)]


def test_owners_that_all_have_too_little(shell: commandline.Shell) -> None:
    rows = "\n".join(f"{i / 7:.3f},{i % 2},{i}" for i in range(12))
    (shell.cwd / "single.csv").write_text(f"a,y,client\n{rows}\n", encoding="utf-8")
    said = shell("run", "data.name=csv", "data.path=single.csv", "data.y=y", "data.client=client", "rounds=1")
    refused(said, "data.partition.at_least", "none of the 12 clients", "the most is 1")


def test_the_own_data_would_do(shell: commandline.Shell) -> None:
    shell.module(DATA, "own_data")
    assert (
        shell("run", "method=wecfl", "method.k=2", "rounds=2", "data.name=own_data:fine", "--json").json["rounds"] == 2
    )


# ---------------------------------------------------------------------------------------------------- checkpoints


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(bytes(content))


def in_header(path: Path, text: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(text) == 1
    assert len(text) == len(new)
    path.write_bytes(content.replace(text, new))


def cut(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda p: p.write_bytes(b"garbage" * 1000),
    "empty": lambda p: p.write_bytes(b""),
    "cut in the middle": lambda p: cut(p, 0.5),
    "cut in the header": lambda p: cut(p, 0.01),
    "last byte lost": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "a bit of a number": lambda p: flip(p, -9, 3),
    "a bit of the length": lambda p: flip(p, 2),
    "the round": lambda p: in_header(p, b'"round":"2"', b'"round":"1"'),
    "a foreign safetensors file": lambda p: safetensors.torch.save_file({"w": torch.zeros(3)}, p),
    "a pickle": lambda p: p.write_bytes(pickle.dumps({"w": 3})),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    execute(read(None, [*commandline.QUICK, "method=wecfl"]), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint(what: str, shell: commandline.Shell, finished: Path) -> None:
    run = shell.cwd / "run"
    shutil.copytree(finished, run)
    DAMAGE[what](commandline.checkpoints(run)[-1])
    before = snapshot(run)
    refused(shell("run", "--resume", run), commandline.checkpoints(run)[-1].name)
    assert snapshot(run) == before, "a refused checkpoint changed something"


FOREIGN: dict[str, tuple[list[str], str]] = {
    "seed": (["seed=5"], "seed"),
    "method": (["method.name=fesem"], "method"),
    "k": (["method.k=3"], "method is k=3, this run's is k=4;"),
    "rate": (["local.lr=0.05"], "method is lr="),
    "model": (["model.name=mlp"], "model"),
    "data": (["data.partition.name=iid", "data.partition.clients=8"], "data"),
    "participation": (["participation=4"], "participation"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_the_checkpoint_of_another_run(what: str, shell: commandline.Shell, finished: Path) -> None:
    words, key = FOREIGN[what]
    run, other = shell.cwd / "run", shell.cwd / "other"
    shutil.copytree(finished, run)
    assert shell("run", *commandline.QUICK, "method=wecfl", *words, "--out", other).code == 0
    shutil.copy(commandline.checkpoints(other)[-1], commandline.checkpoints(run)[-1])
    before = snapshot(run)
    refused(shell("run", "--resume", run), commandline.checkpoints(run)[-1].name, "another run", key)
    # As is a resume that changes what the run is.
    refused(shell("run", "--resume", other, "seed=77"), "another run", "seed")
    assert snapshot(run) == before


def test_fewer_rounds_than_a_run_has_behind_it(shell: commandline.Shell, finished: Path) -> None:
    shutil.copytree(finished, shell.cwd / "run")
    before = snapshot(shell.cwd)
    refused(shell("run", "--resume", "run", "rounds=1"), "rounds", "1")
    assert snapshot(shell.cwd) == before


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_a_run_directory_whose_description_is_damaged(name: str, shell: commandline.Shell, finished: Path) -> None:
    shutil.copytree(finished, shell.cwd / "run")
    (shell.cwd / "run" / name).write_text("{[", encoding="utf-8")
    said = shell("run", "--resume", "run")
    if name == "config.yaml":
        refused(said, "config.yaml")
    else:
        assert said.code in (0, 2)  # nothing is read from it


def test_no_flipped_bit_of_a_checkpoint_goes_unseen(tmp_path: Path) -> None:
    """Whatever single bit a disk flips, the checkpoint is refused, or what it says is the same."""
    path = tmp_path / "round-000003.safetensors"
    labels = ByClient(torch.tensor([1, 4]), torch.tensor([0, 1]))
    state = Clusters(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), labels, torch.arange(2))
    memory = Memory()
    memory.write(4, {"optimizer": torch.tensor([0.5, 0.25])})
    belongs = {"method": "WeCFL(k=2)", "seed": "0"}
    checkpoint.save(path, state, memory, 3, belongs)
    good = path.read_bytes()

    def content(found: checkpoint.Checkpoint) -> Any:
        s = found.state
        parts = [s.centers, s.labels.ids, s.labels.values, s.features, *(found.memory[k] for k in sorted(found.memory))]
        return found.round, sorted(found.memory), [(t.dtype, tuple(t.shape), t.tolist()) for t in parts]

    method = METHODS.build("wecfl", {}, NO_CODE)
    expected = content(checkpoint.load(path, state, method, belongs))
    for byte in range(8, len(good)):
        for bit in (0, 1, 4, 5) if byte % 3 else range(8):
            damaged = bytearray(good)
            damaged[byte] ^= 1 << bit
            path.write_bytes(bytes(damaged))
            with contextlib.suppress(CoterieError):
                found = content(checkpoint.load(path, state, method, belongs))
                assert found == expected, f"bit {bit} of byte {byte}: {bytes(damaged[byte - 20 : byte + 20])!r}"


def test_a_checkpoint_cannot_run_code(finished: Path) -> None:
    """No pickle anywhere: safetensors and JSON only."""
    for path in finished.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".jsonl", ".yaml", ".safetensors")
            assert b"ctorch" not in path.read_bytes()[:200]
    json.loads((finished / "run.json").read_text())


# -------------------------------------------------------------------------------------------------- the Python API


def federation(n: int = 4) -> coterie.Federation:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(10, 3)).astype("float32"), rng.integers(0, 2, 10)) for _ in range(n)]
    return coterie.Federation.from_arrays(clients, outputs=2)


API: dict[str, tuple[dict[str, Any], str]] = {
    "unknown method": ({"method": "fedavgg"}, "fedavg"),
    "a class": ({"method": coterie.FedAvg}, r"FedAvg\(\.\.\.\)"),
    "not a method": ({"method": object()}, "init, round, predictor"),
    "unknown model": ({"model": "mpl"}, "mlp"),
    "not a model": ({"model": 3}, "model"),
    "a builder of nothing": ({"model": lambda: None}, "model"),
    "nothing to train": ({"model": nn.Identity}, "model"),
    "shape": ({"model": lambda: nn.Linear(4, 2)}, r"\(3,\)"),
    "head": ({"model": lambda: nn.Linear(3, 1)}, "client 0"),
    "unknown engine": ({"engine": "worker"}, "workers"),
    "workers 0": ({"engine": "workers", "workers": 0}, "workers"),
    "K": ({"method": coterie.IFCA(k=5)}, "method.k"),
    "rounds": ({"rounds": 0}, "rounds"),
    "participation 0": ({"participation": 0}, "participation"),
    "participation 2.0": ({"participation": 2.0}, "participation"),
    "participation 5": ({"participation": 5}, "participation"),
    "seed": ({"seed": -1}, "seed"),
    "dropout": ({"dropout": 1.0}, "dropout"),
    "quorum": ({"quorum": -0.1}, "quorum"),
    "weigh_clients": ({"weigh_clients": "tests"}, "weigh_clients"),
    "checkpoint_every": ({"checkpoint_every": 0}, "checkpoint_every"),
    "evaluate_every": ({"evaluate_every": 0}, "evaluate_every"),
    "resume nowhere": ({"resume": True}, "resume"),
}


@pytest.mark.parametrize("what", API)
def test_bad_input_in_python(what: str, tmp_path: Path) -> None:
    options, named = API[what]
    everything: dict[str, Any] = {"method": "fedavg", "model": "linear", "rounds": 1, "out": tmp_path / "run"} | options
    if what == "resume nowhere":
        everything["out"] = None  # nothing to resume from was named
    with pytest.raises(CoterieError, match=named):
        coterie.run(everything.pop("method"), federation(), **everything)
    assert snapshot(tmp_path) == {}


def test_resume_of_nothing_in_python(tmp_path: Path) -> None:
    with raises("run-not-found"):
        coterie.run("fedavg", federation(), "linear", rounds=1, out=tmp_path / "nowhere", resume=True)
    assert snapshot(tmp_path) == {}


def test_a_run_directory_that_exists_in_python(tmp_path: Path) -> None:
    coterie.run("fedavg", federation(), "linear", rounds=1, out=tmp_path / "run")
    before = snapshot(tmp_path)
    with raises("run-exists"):
        coterie.run("fedavg", federation(), "linear", rounds=1, out=tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_hyper_parameters_out_of_their_domain_in_python() -> None:
    with pytest.raises(ValueError, match="lr"):
        coterie.Local(lr=-1.0)
    with pytest.raises(ValueError, match="k"):
        coterie.WeCFL(k=0)
    with pytest.raises(ValueError, match="not both"):
        coterie.Local(epochs=1, steps=1)
