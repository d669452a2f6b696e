"""A client is called by its name wherever a person reads of it; files have its number too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie import CoterieError, Federation, Local
from coterie.core.model import Model
from coterie.core.text import client_name
from coterie.engines.contract import Missing, Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.network.registry import ClientRegistry, RegisteredClient, Shape
from coterie.tools.cli.console import missing_line
from coterie.tools.report import figures
from coterie.tools.report.page import reasons
from coterie.tools.report.record import read_run
from coterie.training.build import as_model
from coterie.training.events import Event, RoundDone

LOCAL = Local(batch="full", lr=0.5)
NAMES = ("7", "3", "Ada", "0")  # numbers of their own, which are no places: client '3' is in place 1


def federation(**changes: Any) -> Federation:
    rng = np.random.default_rng(0)
    arrays = [(x, (x[:, 0] > 0).astype(np.int64)) for x in rng.normal(size=(4, 10, 2)).astype(np.float32)]
    return replace(Federation.from_arrays(arrays, standardise=False), names=NAMES, **changes)


class Failing(Sequential):
    """Some clients never answer, in training or also when they are evaluated."""

    def __init__(self, model: Model, data: Federation, clients: tuple[int, ...], always: bool = False) -> None:
        super().__init__(model, data)
        self.clients, self.always = clients, always

    def visit(self, visit: Visit) -> Outcome:
        fail = visit.keep or self.always
        gone = torch.isin(visit.ids, torch.tensor(self.clients)) & fail
        outcome = super().visit(replace(visit, ids=visit.ids[~gone]))
        return replace(outcome, missing=tuple(Missing(c, "asleep") for c in visit.ids[gone].tolist()))


def run(clients: tuple[int, ...], always: bool = False, data: Federation | None = None, **options: Any) -> Any:
    data = data or federation()
    engine = Failing(as_model("linear", data), data, clients, always)
    return coterie.run(coterie.FedAvg(local=LOCAL), data, "linear", rounds=2, engine=engine, **options)


def test_a_client_is_called_by_its_name_and_by_its_number_only_without_one() -> None:
    assert client_name(NAMES, 1) == "client '3'"
    assert client_name(None, 1) == client_name((), 1) == "client 1"


def test_messages_of_a_run_have_names() -> None:
    with raises("quorum", match="first missing: client '3': asleep"):
        run((1, 2, 3))
    with raises("evaluation-empty", match="no client could be evaluated; client '7': asleep"):
        run((0, 1, 2, 3), always=True, quorum=0.0)
    result = run((2,))
    assert [(m.client, m.name) for m in result.history[0].missing] == [(2, "Ada")]
    assert "the first: client 'Ada' in round 1: asleep" in str(missing_line(result.history))
    (lost,) = result.history[0].missing
    event = replace(result.history[0], missing=(replace(lost, rejected=True),))
    assert "updates rejected: client 'Ada' (1 of 1 rounds)" in str(missing_line([event]))
    unnamed = run((2,), data=replace(federation(), names=None))
    assert "the first: client 2 in round 1: asleep" in str(missing_line(unnamed.history))


def test_files_have_both_and_are_read_back(tmp_path: Path) -> None:
    result = run((2,), always=True, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert lines[0]["missing"] == lines[0]["unscored"] == [{"client": 2, "reason": "asleep", "name": "Ada"}]
    assert json.loads((tmp_path / "run" / "assignments.json").read_text()) == {
        str(client): {"name": NAMES[client], "cluster": 0} for client in (0, 1, 3)
    }
    assert coterie.load(tmp_path / "run").history == result.history
    run((2,), data=replace(federation(), names=None), out=tmp_path / "unnamed")
    line = json.loads((tmp_path / "unnamed" / "rounds.jsonl").read_text().splitlines()[0])
    assert line["missing"] == [{"client": 2, "reason": "asleep"}]
    assert json.loads((tmp_path / "unnamed" / "assignments.json").read_text()) == {str(c): 0 for c in range(4)}


def test_errors_in_the_data_have_names() -> None:
    data = federation()
    x, y = data.domains[0].x.clone(), data.domains[0].y.clone()
    x[15] = torch.nan  # of the second client
    y[25] = 5  # of the third
    for domain, message in (
        (replace(data.domains[0], x=x), "client '3' has NaN or Inf in its inputs"),
        (replace(data.domains[0], y=y), r"client 'Ada' has a label outside 0\.\.1"),
    ):
        with pytest.raises(CoterieError, match=message):
            replace(data, domains=(domain,)).check()
    with raises("model-shape", match=r"model: client '[73]' has label 1, but the network has only 1 outputs"):
        coterie.run("fedavg", data, lambda: torch.nn.Linear(2, 1), rounds=1)
    none = replace(data, train=data.train.of([[], [12], [22], [32]]))
    with raises("data-empty", match="client '7' has no training samples"):
        none.check()


def test_errors_in_arrays_have_the_names_that_were_given() -> None:
    x, y = np.zeros((3, 2)), [0, 1, 0]
    for second, message in (
        ((x, y[:2]), "client 'Bea' has 3 inputs but 2 labels"),
        ((x, y, x), "client 'Bea' has 3 arrays"),
        ((x[:, :1], y), r"client 'Bea' has samples of shape \(1,\), client 'Ada' of \(2,\)"),
        ((x, ["a", "b", "a"]), "client 'Bea' has labels that are names, those of client 'Ada' are numbers"),
        (([["a", "b"]], [0]), "client 'Bea': x is not an array of numbers"),
    ):
        with pytest.raises(CoterieError, match=message):
            Federation.from_arrays([(x, y), second], names=["Ada", "Bea"], standardise=False)


def test_joined_federations_keep_the_names_that_tell_clients_apart() -> None:
    one, other = federation(), replace(federation(), names=("a", "b", "c", "d"))
    assert Federation.join([one, other], "both").names == (*NAMES, "a", "b", "c", "d")
    assert Federation.join([one, one], "both").names is None


def test_newcomers_that_fail_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(())
    broken = federation()
    monkeypatch.setattr(Federation, "client", lambda self, client: 1 / (client != 1) and Data(self, client))
    assert [(m.client, m.name) for m in result.admit(broken).missing] == [(5, "3")]


class Data:
    """A client's data, not through `Federation.client`."""

    def __init__(self, data: Federation, client: int) -> None:
        self.train, self.test = data.samples(client, "train"), data.samples(client, "test")


# ------------------------------------------------------------------------------------------------------- pictures


def test_pictures_and_tables_of_a_run_have_names(tmp_path: Path) -> None:
    run((2,), out=tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.names == dict(enumerate(NAMES))
    similar = figures.client_similarity(record).data[0]
    assert set(similar.x) == set(similar.y) == {"7", "3", "0"}  # Ada never trained
    dots = figures.model_map(record).data[0]
    assert [row[1] for row in dots.customdata] == ["7", "3", "0"]
    assert dots.hovertemplate.startswith("client %{customdata[1]}<br>")
    assert "client 'Ada' in round 1" in str(reasons(record))


def test_a_run_under_way_has_names_too(tmp_path: Path) -> None:
    """Before there is a clients.json: from what the run says of its data, or of the clients of a network."""

    def stop(event: Event) -> None:
        if isinstance(event, RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run((2,), out=tmp_path / "run", listeners=[stop])
    assert "client 'Ada' in round 1" in str(reasons(read_run(tmp_path / "run")))
    (tmp_path / "run" / "serving.json").unlink()
    shape = Shape((2,), "classification", 2)
    ClientRegistry(known=[RegisteredClient(name, 3, 1) for name in "abcd"], shape=shape, path=tmp_path / "run").write()
    assert "client 'c' in round 1" in str(reasons(read_run(tmp_path / "run")))


def test_clients_of_the_same_name_are_told_apart_in_the_similarity_map(tmp_path: Path) -> None:
    run((), data=replace(federation(), names=("x", "y", "x", "z")), out=tmp_path / "run")
    similar = figures.client_similarity(read_run(tmp_path / "run")).data[0]
    assert set(similar.x) == {"x (0)", "y", "x (2)", "z"}
