"""A run directory is enough: to predict, to admit newcomers and to export networks, without the training data."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import save_file
from torch import nn

import coterie
from conftest import PAPERS, raises
from coterie import All, Best, CoterieError, Evaluate, Federation, Fit, Local, WeCFL, mean_by
from coterie.core.registry import METHODS, NO_CODE
from coterie.methods.contract import Method
from coterie.methods.fesem import FeSEM
from coterie.tools.cli.main import _run
from coterie.training import checkpoint
from coterie.training.config import read
from coterie.training.data_record import DataRecord
from coterie.training.events import Event, RoundDone

LOCAL = Local(steps=2, batch="full", lr=0.5)
NAMES = ("Ada", "Bea", "Cleo", "Dora", "Eva", "Fay")
X = np.random.default_rng(9).normal(size=(30, 2)).astype(np.float32)


def federation(groups: str = "001101", seed: int = 0) -> Federation:
    """Clients of twelve samples, labelled by the sign of the first number, the two groups in opposite ways."""
    rng = np.random.default_rng(seed)
    arrays = []
    for group in groups:
        x = rng.normal(size=(12, 2)).astype(np.float32)
        arrays.append((x, ((x[:, 0] > 0) != (group == "1")).astype(np.int64)))
    return Federation.from_arrays(
        arrays, truth=list(map(int, groups)), groups=list(groups), standardise=False, standardise_y=False
    )


def method(name: str) -> Method[Any]:
    """A method of the catalogue with two clusters, where it has such a number."""
    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params: dict[str, Any] = {n: v for n, v in {"local": LOCAL, "k": 2, "warmup": 1}.items() if n in fields}
    if "base" in fields and fields["base"].default is dataclasses.MISSING:
        params["base"] = method("wecfl")
    if "base" in fields and "section" in fields:
        params["section"] = ("*bias",)  # the head of a single layer is all of it, and nothing would be left to share
    if issubclass(METHODS.find(name, NO_CODE), FeSEM):
        params["alpha"] = 0
    made: Method[Any] = METHODS.build(name, params, NO_CODE)
    return made


# ------------------------------------------------------------------------------------------------ every method

FITS_FIRST = ("fedper", "fedrep", "personal", "ifca-personal")  # a client that never trained, before it predicts


@pytest.mark.parametrize("name", PAPERS)
def test_every_method_predicts_the_same_without_the_data(name: str, tmp_path: Path) -> None:
    """Known clients, clients kept from training and newcomers; also those that choose by data that is not there."""
    live = coterie.run(
        method(name), federation(), "linear", rounds=3, participation=0.7, newcomers=0.34, out=tmp_path / "run"
    )
    again = coterie.load((tmp_path / "run").rename(tmp_path / "moved"))
    assert isinstance(again.known, DataRecord)
    assert again.summary == live.summary
    assert again.newcomers is not None
    assert live.newcomers is not None
    assert again.newcomers.summary == live.newcomers.summary
    assert again.assignments.tolist() == live.assignments.tolist()
    torch.testing.assert_close(again.clients.loss, live.clients.loss, rtol=0, atol=0)
    inputs = torch.from_numpy(X)
    for client in range(6):
        if name in FITS_FIRST and not again.memory.read(client):
            with raises("data-needed", match="did not take part in training, so it fits its own section"):
                again.predict(client, X)
            continue
        torch.testing.assert_close(again.network(client=client)(inputs), live.network(client=client)(inputs))
        assert again.predict(client, X).tolist() == live.predict(client, X).tolist()
    newcomers = federation("10", seed=5)
    placed, expected = again.admit(newcomers), live.admit(newcomers)
    assert placed.assignments.tolist() == expected.assignments.tolist()
    assert placed.predict(1, X).tolist() == expected.predict(1, X).tolist()
    with raises("data-needed"):
        _ = again.federation


@dataclass(frozen=True)
class TwoChoices:
    """A user's own method: clients choose twice, which a reply does not say."""

    local: Local = LOCAL

    def init(self, model: Any, roster: Any, rng: Any) -> Any:
        return torch.stack([model.init(rng) for _ in range(4)])

    def round(self, centers: Any, cohort: Any, ask: Any) -> Any:
        reply = ask(Fit(Best(centers[:2]), local=self.local))
        return torch.cat([mean_by(reply.chosen, reply, reply.n, empty=centers[:2]), centers[2:]])

    def predictor(self, centers: Any) -> Evaluate:
        return Evaluate((Best(centers[:2]), All(centers[0]), Best(centers[2:])))


def test_a_method_whose_clients_choose_more_than_once_is_recorded_too(tmp_path: Path) -> None:
    live = coterie.run(TwoChoices(), federation(), "linear", rounds=2, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run", method=TwoChoices())
    for client in range(6):
        ours, theirs = (result.network(client=client)(torch.from_numpy(X)) for result in (again, live))
        torch.testing.assert_close(ours, theirs)


# ------------------------------------------------------------------------------------------------ a table, moved


def table(path: Path, rows: int = 20) -> Path:
    rng = np.random.default_rng(0)
    lines = ["age,level,outcome,hospital"]
    for name in NAMES:
        for _ in range(rows):
            age, level = rng.normal(50, 10), rng.normal(0, 0.01)
            lines.append(f"{age:.3f},{level:.5f},{'sick' if age > 50 else 'well'},{name}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def words(**changes: object) -> list[str]:
    given = {
        "data.name": "csv",
        "data.path": "table.csv",
        "data.y": "outcome",
        "data.client": "hospital",
        "rounds": 4,
        "local.epochs": 3,
        "method.name": "ifca",
        "method.k": 2,
    }
    return [f"{key}={value}" for key, value in (given | changes).items()]


@pytest.mark.parametrize("what", ["deleted", "grown", "there"])
def test_a_run_of_a_table_leaves_its_machine(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read from another directory, without its csv file or after that grew: scales and names are its own."""
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    monkeypatch.chdir(home)
    table(home / "table.csv")
    live = _run(read(None, words()), Path("run"), False, True)
    shutil.move("run", away / "run")
    if what == "deleted":
        (home / "table.csv").unlink()
    elif what == "grown":
        table(home / "table.csv", rows=21)
    monkeypatch.chdir(away if what == "deleted" else home)
    again = coterie.load(away / "run")
    raw = np.array([[80.0, 0.0], [20.0, 0.0]])
    for name in NAMES:
        assert again.predict(name, raw).tolist() == live.predict(name, raw).tolist() == [0, 1]
    assert again.class_names == ("sick", "well")
    assert again.known.names == NAMES
    assert again.scale is not None
    assert again.scale.bytes() == live.federation.scales[0].bytes()  # type: ignore[union-attr]
    assert again.admit([(raw, ["sick", "well"])]).predict(0, raw).tolist() == [0, 1]
    if what == "there":
        assert again.federation.identity() == live.federation.identity()
        return
    message = {"deleted": "table.csv does not exist", "grown": "the training data has changed since"}[what]
    with pytest.raises(CoterieError, match=message):
        _ = again.federation
    with pytest.raises(CoterieError, match="table.csv does not exist" if what == "deleted" else "its data is"):
        _run(read(None, ["rounds=6"], base=read(away / "run" / "config.yaml").dump()), away / "run", True, True)
    assert coterie.load(away / "run").summary == live.summary  # the attempt has spoilt nothing


def test_several_scales_are_recorded_by_client(tmp_path: Path) -> None:
    """Two tables joined, each with a scale of its own."""
    from coterie.data import Scale

    parts = [federation("00", 1), federation("11", 2)]
    scales = Scale(1.0, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])), Scale(10.0)
    parts = [
        dataclasses.replace(part, domains=tuple(dataclasses.replace(d, scale=scale) for d in part.domains))
        for part, scale in zip(parts, scales, strict=True)
    ]
    live = coterie.run(method("fedavg"), Federation.join(parts, "both"), "linear", rounds=1, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run")
    for client in range(4):
        assert again.predict(client, X).tolist() == live.predict(client, X).tolist()
    assert isinstance(again.known, DataRecord)
    assert [again.known.scale(c).bytes() for c in range(4)] == [s.bytes() for s in scales for _ in range(2)]  # type: ignore[union-attr]
    with raises("result-ambiguous"):
        _ = again.scale


def test_several_scales_of_targets_are_recorded_by_client(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = []
    for level in (10.0, 1000.0):
        arrays = [(x, level * (x[:, 0] + 3)) for x in rng.normal(size=(2, 12, 2))]
        parts.append(Federation.from_arrays(arrays, standardise=False, standardise_y=False).prepared(targets=True))
    both = Federation.join(parts, "both")
    live = coterie.run(method("fedavg"), both, "linear", rounds=2, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run")
    for client in range(4):
        said = again.predict(client, X)
        np.testing.assert_array_equal(said, live.predict(client, X))
        assert (np.abs(said).mean() > 500) == (client > 1)
    # Whole numbers are amounts here, since it was trained on amounts.
    assert again.admit([(X, np.arange(30))]).accuracy is None
    with raises("data-labels", match="theirs is a classification, it was trained on a regression"):
        again.admit(federation("01"))


# -------------------------------------------------------------------------------------------- runs made in Python


class Net(nn.Linear):
    """A user's own model."""

    def __init__(self) -> None:
        super().__init__(2, 2)


def test_a_model_of_ones_own_is_given_again_and_checked(tmp_path: Path) -> None:
    live = coterie.run(WeCFL(k=2, local=LOCAL), federation(), Net, rounds=2, out=tmp_path / "run")
    with raises("argument-missing", match=r"load\(dir, model=\.\.\.\)"):
        coterie.load(tmp_path / "run")
    with raises("checkpoint-mismatch"):
        coterie.load(tmp_path / "run", model=lambda: nn.Linear(2, 2, bias=False))
    again = coterie.load(tmp_path / "run", model=Net)
    assert again.predict(0, X).tolist() == live.predict(0, X).tolist()


def test_a_method_of_ones_own_is_given_again_and_those_of_the_library_are_not_needed(tmp_path: Path) -> None:
    cam = coterie.CAM(WeCFL(k=2, local=LOCAL), warmup=1, local=LOCAL)
    for name, one in (("own", TwoChoices()), ("cam", cam)):
        coterie.run(one, federation(), coterie.zoo.MLP(hidden=(3,)), rounds=1, out=tmp_path / name)
    with raises("argument-missing", match=r"load\(dir, method=\.\.\.\)"):
        coterie.load(tmp_path / "own")
    assert coterie.load(tmp_path / "cam").method == cam


# ------------------------------------------------------------------------------------ unfinished, old and damaged


def test_a_run_that_was_stopped_is_used_as_of_its_last_checkpoint(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 3:
            raise KeyboardInterrupt

    for every in (1, 10):
        run = tmp_path / f"run-{every}"
        with pytest.raises(KeyboardInterrupt):
            coterie.run(
                *(method("ifca"), federation(), "linear"),
                rounds=5,
                checkpoint_every=2,
                evaluate_every=every,
                out=run,
                listeners=[stop],
            )
    again = coterie.load(tmp_path / "run-1")
    expected = coterie.run(method("ifca"), federation(), "linear", rounds=2)
    assert [again.predict(c, X).tolist() for c in range(6)] == [expected.predict(c, X).tolist() for c in range(6)]
    with raises("data-needed"):
        coterie.load(tmp_path / "run-10")
    with_data = coterie.load(tmp_path / "run-10", federation=federation())
    assert with_data.predict(0, X).tolist() == expected.predict(0, X).tolist()


def test_a_client_that_nobody_evaluated_needs_its_data_or_is_refused(tmp_path: Path) -> None:
    live = coterie.run(method("ifca"), federation(), "linear", rounds=1, evaluate_on=2, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run")
    known = live.clients.ids.tolist()
    other = next(c for c in range(6) if c not in known)
    assert again.predict(known[0], X).tolist() == live.predict(known[0], X).tolist()
    with raises("data-needed", match=rf"client {other} was not evaluated at the end of this run, so"):
        again.predict(other, X)


def test_a_client_that_the_run_never_met_is_refused_by_name_with_what_to_do(tmp_path: Path) -> None:
    names = dataclasses.replace(federation(), names=NAMES)
    live = coterie.run(
        *(method("wecfl"), names, "linear"), rounds=1, participation=2, evaluate_on=2, out=tmp_path / "run"
    )
    unmet = [c for c in range(6) if c not in live.clients.ids and not live.placed.labels.has(torch.tensor([c]))]
    name = NAMES[unmet[0]]
    for result in (live, coterie.load(tmp_path / "run")):
        with raises("client-no-value", match=rf"client '{name}': .* result\.admit"):
            result.predict(name, X)
        with raises("client-no-value", match=rf"client '{name}': .* result\.admit"):
            result.network(client=name)


def as_of_0_1(run: Path) -> Path:
    """What version 0.1 wrote: no serving.json, and checkpoints without an evaluation."""
    (run / "serving.json").unlink()
    for file in (run / "checkpoints").glob("round-*.safetensors"):
        with safetensors.safe_open(file, framework="pt") as opened:
            header, tensors = dict(opened.metadata()), {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118
        del header["also"], header["crc32"]
        used = json.dumps(json.loads(header["state"]))
        tensors = {
            k: v
            for k, v in tensors.items()
            if not k.startswith("state/") or f'"tensor": {k.partition("/")[2]}}}' in used
        }
        crc = checkpoint._checksum(header, tensors)
        save_file(tensors, file, metadata=header | {"crc32": str(crc)})
    return run


def test_a_run_of_0_1_is_read_with_its_data_and_resuming_it_makes_it_self_contained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "table.csv")
    live = _run(read(None, words()), Path("run"), False, True)
    as_of_0_1(tmp_path / "run")
    raw = np.array([[80.0, 0.0], [20.0, 0.0]])
    old = coterie.load("run")
    assert isinstance(old.known, Federation)
    assert old.predict("Ada", raw).tolist() == live.predict("Ada", raw).tolist()
    (tmp_path / "table.csv").rename("elsewhere.csv")
    with raises("data-file-missing", match=r"table\.csv does not exist.*version 0\.1, so it needs its training data"):
        coterie.load("run")
    (tmp_path / "elsewhere.csv").rename("table.csv")
    _run(read(None, [], base=read(tmp_path / "run" / "config.yaml").dump()), Path("run"), True, True)
    (tmp_path / "table.csv").unlink()
    again = coterie.load("run")
    assert again.summary == live.summary
    assert again.predict("Ada", raw).tolist() == live.predict("Ada", raw).tolist()


def _without(key: str) -> Any:
    def change(found: dict[str, Any]) -> None:
        del found["data"][key]

    return change


def _with(**values: object) -> Any:
    def change(found: dict[str, Any]) -> None:
        found["data"].update(values)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("scales"), "damaged .*scales"),
        (_with(train=[1]), "damaged .* entries for 1 clients"),
        (_with(kind="guess"), "damaged"),
        (_with(identity="other data"), "another run: its data"),
        (lambda found: found.update(format="coterie-serving-9"), "coterie-serving-9"),
    ],
)
def test_a_damaged_record_is_refused_by_name(change: Any, message: str, tmp_path: Path) -> None:
    coterie.run(method("fedavg"), federation(), "linear", rounds=1, out=tmp_path / "run")
    file = tmp_path / "run" / "serving.json"
    found: Mapping[str, Any] = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))
    with pytest.raises(CoterieError, match=message):
        coterie.load(tmp_path / "run")
