"""A validation split per client: rounds are scored on it, the test samples are looked at once, at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie import Evaluate, Federation
from coterie.data.federate import with_validation
from coterie.engines.contract import Visit
from coterie.engines.sequential import Sequential
from coterie.network import config as network
from coterie.training.build import build_data
from coterie.training.config import read

RNG = np.random.default_rng(0)
CLIENTS = [
    (RNG.normal(size=(20, 3)).astype(np.float32) + i % 2, (np.arange(20) + i) % 2) for i in range(4)
]  # learnable by nobody: a loss that soon stops falling


def federation() -> Federation:
    return Federation.from_arrays(CLIENTS, standardise=False)


def test_validation_samples_come_out_of_training_and_test_samples_stay() -> None:
    plain, split = federation(), with_validation(federation(), 0.25, 3)
    assert split.val is not None
    for client in range(4):
        both = torch.cat([split.train.row(client), split.val.row(client)]).sort().values
        assert torch.equal(both, plain.train.row(client))
        assert len(split.val.row(client)) == 4
        assert 1 <= int(split.samples(client, "val")[1].sum()) <= 3  # spread over the labels
    assert torch.equal(split.test.numbers, plain.test.numbers)
    assert split.checksum() != plain.checksum()
    assert "16 validation samples" in split.describe()
    assert with_validation(federation(), 0.25, 3).checksum() == split.checksum()
    assert with_validation(federation(), 0.25, 4).checksum() != split.checksum()


def test_without_a_share_nothing_changes() -> None:
    plain = federation()
    assert with_validation(plain, 0.0, 1) is plain
    assert plain.val is None
    assert len(plain.samples(0, "val")[1]) == 0


def test_samples_that_the_data_marks_are_the_validation_samples(tmp_path: Path) -> None:
    words = ["train", "val", "test", "train"] * 5
    rows = [f"{i},{i % 3},{i % 2},{word}" for i, word in enumerate(words)]
    (tmp_path / "a.csv").write_text("\n".join(["a,client,y,split", *rows]))
    base = ["data.name=csv", f"data.path={tmp_path / 'a.csv'}", "data.y=y"]
    unused, used = (build_data(read(None, [*base, f"validation={share}"])) for share in (0, 0.5))
    assert (len(unused.train.numbers), unused.val) == (15, None)
    assert used.val is not None
    assert sorted(used.val.numbers.tolist()) == [i for i, word in enumerate(words) if word == "val"]
    x, y = CLIENTS[0]
    six = Federation.from_arrays([(x[:10], y[:10], x[10:14], y[10:14], x[14:], y[14:])], standardise=False)
    assert six.train.lengths.tolist() == [14]
    given = with_validation(six, 0.1, 0).val
    assert given is not None
    assert given.numbers.tolist() == [10, 11, 12, 13]
    with raises("data-split", match="all training samples of client 0 are marked for validation"):
        with_validation(
            Federation.from_arrays([(x[:0], y[:0], x[10:14], y[10:14], x[14:], y[14:])], standardise=False), 0.1, 0
        )
    named = Federation.from_arrays(
        [(x[:0], y[:0], x[10:14], y[10:14], x[14:], y[14:])], names=["Ada"], standardise=False
    )
    with raises("data-split", match="all training samples of client 'Ada' are marked for validation"):
        with_validation(named, 0.1, 0)


class Looks(Sequential):
    """Notes which splits are evaluated."""

    def visit(self, visit: Visit) -> Any:
        self.splits: list[str] = getattr(self, "splits", [])
        self.splits += [task.split for task in visit.tasks if isinstance(task, Evaluate)]
        return super().visit(visit)


def test_the_test_samples_are_looked_at_once_at_the_end() -> None:
    split = with_validation(federation(), 0.25, 0)
    engine = Looks(coterie.Model.of(toys_linear), split)
    result = coterie.run("fedavg", split, toys_linear, rounds=4, validation=0.25, engine=engine)
    assert engine.splits == ["val"] * 4 + ["test"]
    assert [event.summary is None for event in result.history] == [True, True, True, False]
    assert all(event.validation is not None for event in result.history)
    assert result.history[-1].summary == result.summary
    assert result.clients.n.tolist() == [4] * 4


def toys_linear() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


def diverging(rounds: int, **more: Any) -> Any:
    method = coterie.FedAvg(local=coterie.Local(lr=1.0, batch=4))
    return coterie.run(method, federation(), toys_linear, rounds=rounds, validation=0.25, **more)


def test_a_run_stops_after_rounds_without_improvement(tmp_path: Path) -> None:
    losses = [event.validation.loss for event in diverging(12).history]
    best = next(t for t in range(12) if min(losses[: t + 1]) == min(losses[: t + 4]) and t + 3 < 12)
    result = diverging(12, stop_after=3, out=tmp_path / "a", checkpoint_every=2)
    assert len(result.history) == best + 4 < 12
    assert result.history[-1].summary == result.summary
    assert "done" in (tmp_path / "a" / "status.json").read_text()
    again = diverging(12, stop_after=3, out=tmp_path / "a", checkpoint_every=2, resume=True)
    assert torch.equal(again.state, result.state)  # it had stopped: no further round
    loaded = coterie.load(tmp_path / "a", model=toys_linear)
    assert torch.equal(loaded.state, result.state)
    assert loaded.summary == result.summary
    with raises("data-split", match="stop_after: needs validation samples"):
        coterie.run("fedavg", federation(), toys_linear, stop_after=3)


def test_a_resumed_run_stops_where_it_would_have(tmp_path: Path) -> None:
    whole = diverging(12, stop_after=3, out=tmp_path / "whole", checkpoint_every=1)
    diverging(2, stop_after=3, out=tmp_path / "parts", checkpoint_every=1)
    parts = diverging(12, stop_after=3, out=tmp_path / "parts", checkpoint_every=1, resume=True)
    assert torch.equal(parts.state, whole.state)
    assert parts.summary == whole.summary
    lines = [(tmp_path / name / "rounds.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    ones, others = ([json.loads(line)["validation"] for line in some] for some in lines)
    assert ones == others


@pytest.mark.parametrize("word", ["validation=0.2", "stop_after=3"])
def test_a_server_refuses_what_its_clients_have_no_samples_for(word: str) -> None:
    with raises("config-conflict", match=rf"{word.partition('=')[0]}: is for simulations"):
        network.read(None, [word])
