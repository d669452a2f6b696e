"""A run goes on: more rounds to the same bits, new clients after the old ones, back to an earlier round."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from going_on_runs import LOCAL, bits, federation, header, method
from typer.testing import CliRunner

import coterie
from conftest import PAPERS, TOLD, few, raises
from coterie import WeCFL
from coterie.core.errors import StoppedError
from coterie.data.membership import ChangedFederation, changed, extended, forgotten_in, identity_without, key_of
from coterie.tools.cli.main import app
from coterie.training import lineage
from coterie.training.data_record import DataRecord
from coterie.training.events import Event, RoundDone
from coterie.training.going_on import write_addition
from coterie.training.sampling import split_newcomers
from coterie.training.settings import Settings

CHOSEN = ("wecfl", "halves", "ditto", "stocfl")
NEW = federation("10", seed=5)


# ------------------------------------------------------------------------------------------------- more rounds


@pytest.mark.parametrize("name", few(PAPERS, *CHOSEN))
def test_more_rounds_are_the_bits_of_a_longer_run(name: str, tmp_path: Path) -> None:
    data = federation()
    settings: dict[str, Any] = {"participation": 0.7, "newcomers": 0.34, "engine": "sequential"}
    long = coterie.run(method(name), data, "linear", rounds=5, out=tmp_path / "long", **settings)
    coterie.run(method(name), data, "linear", rounds=2, out=tmp_path / "run", **settings)
    short = coterie.go_on(tmp_path / "run", more=3, federation=data, method=method(name), engine="sequential")
    assert bits(short) == bits(long)
    assert short.summary == long.summary
    assert short.newcomers is not None
    assert long.newcomers is not None
    assert short.newcomers.summary == long.newcomers.summary


def test_a_run_that_early_stopping_ended_says_what_to_change(tmp_path: Path) -> None:
    data = federation()
    settings: dict[str, Any] = {"validation": 0.3, "stop_after": 1, "rounds": 30}
    still = coterie.FedAvg(local=coterie.Local(steps=1, batch="full", lr=1e-30))  # the loss stays what it is
    coterie.run(still, data, "linear", out=tmp_path / "run", **settings)
    with raises("option-conflict", "would stop again at once"):
        coterie.go_on(tmp_path / "run", more=20, federation=data)


def test_more_is_a_number_of_rounds(tmp_path: Path) -> None:
    coterie.run(WeCFL(k=2, local=LOCAL), federation(), "linear", rounds=1, out=tmp_path / "run")
    with raises("argument-invalid", "above 0"):
        coterie.go_on(tmp_path / "run", more=0, federation=federation())
    with raises("argument-missing", "federation"):
        coterie.go_on(tmp_path / "run", more=1)


# ------------------------------------------------------------------------------------------------- more clients


@pytest.mark.parametrize("name", few(PAPERS, *CHOSEN, "given"))
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_every_method_trains_on_with_clients_that_were_added(name: str, participation: float, tmp_path: Path) -> None:
    data, run = federation(), tmp_path / "run"
    before = coterie.run(method(name), data, "linear", rounds=3, participation=participation, out=run)
    after = coterie.go_on(run, more=3, add=NEW, federation=data, method=method(name))
    assert len(after.known) == 8
    assert after.clients.ids.tolist() == list(range(8))
    assert [event.round for event in after.history] == [4, 5, 6]
    if name in TOLD:
        assert after.assignments[:6].tolist() == before.assignments.tolist()
    again = coterie.load(run, method=method(name))
    assert isinstance(again.known, DataRecord)
    assert len(again.known) == 8
    assert again.assignments.tolist() == after.assignments.tolist()
    longer = coterie.go_on(run, more=1, federation=data, added=[NEW], method=method(name))
    assert len(longer.known) == 8


def test_clients_keep_their_ids_and_join_the_right_cluster(tmp_path: Path) -> None:
    data = federation()
    before = coterie.run(WeCFL(k=2, local=LOCAL), data, "linear", rounds=4, out=tmp_path / "run")
    after = coterie.go_on(tmp_path / "run", more=1, add=NEW, federation=data)
    assert after.assignments[:6].tolist() == before.assignments.tolist()
    assert after.assignments[6:].tolist() == [before.assignments[2], before.assignments[0]]  # groups 1 and 0
    assert after.summary.ari == 1.0


class _Kill:
    """A listener that ends a run in a round, as a crash does."""

    def __init__(self, round: int) -> None:
        self.round = round

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == self.round:
            raise StoppedError("killed")


@pytest.mark.parametrize("name", few([p for p in PAPERS if p not in TOLD], "wecfl", "halves"))
def test_a_run_that_was_killed_after_clients_were_added_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    data, run = federation(), tmp_path / "run"
    coterie.run(method(name), data, "linear", rounds=3, checkpoint_every=2, out=run, engine="sequential")
    shutil.copytree(run, tmp_path / "other")
    whole = coterie.go_on(run, more=4, add=NEW, federation=data, method=method(name), engine="sequential")
    other = tmp_path / "other"
    options: dict[str, Any] = {"federation": data, "method": method(name), "engine": "sequential"}
    with pytest.raises(StoppedError):
        coterie.go_on(other, more=4, add=NEW, listeners=[_Kill(4)], **options)
    loaded = coterie.load(other, method=method(name))  # the last checkpoint is of before: the old run
    assert len(loaded.known) == 6
    with pytest.raises(StoppedError):
        coterie.go_on(other, added=[NEW], listeners=[_Kill(7)], **options)
    again = coterie.go_on(other, added=[NEW], **options)
    assert bits(again) == bits(whole)


def test_until_the_addition_is_written_down_the_run_is_the_old_one(tmp_path: Path) -> None:
    data, run = federation(), tmp_path / "run"
    coterie.run(WeCFL(k=2, local=LOCAL), data, "linear", rounds=2, out=run)
    (run / "additions.json.part").write_text("{", encoding="utf-8")  # killed while it was written
    assert len(coterie.load(run).known) == 6
    write_addition(run, data, lineage.added_to(data, NEW), None)
    assert len(coterie.load(run).known) == 6  # written down, but no checkpoint knows them yet
    assert (
        len(coterie.run(WeCFL(k=2, local=LOCAL), extended(data, NEW), "linear", rounds=3, out=run, resume=True).known)
        == 8
    )


def test_added_clients_without_more_rounds_are_in_the_checkpoint(tmp_path: Path) -> None:
    data, run = federation(), tmp_path / "run"
    coterie.run(WeCFL(k=2, local=LOCAL), data, "linear", rounds=2, out=run)
    coterie.go_on(run, add=NEW, federation=data)
    assert len(coterie.load(run).known) == 8
    assert coterie.load(run).assignments.min() >= 0
    assert header(run)["data"] == lineage.added_to(data, NEW).identity()


def test_other_data_is_refused_as_before(tmp_path: Path) -> None:
    data, run = federation(), tmp_path / "run"
    coterie.run(WeCFL(k=2, local=LOCAL), data, "linear", rounds=2, out=run)
    with raises("data-changed"):
        coterie.go_on(run, more=1, add=NEW, federation=federation(seed=1))
    coterie.go_on(run, more=1, add=NEW, federation=data)
    with raises("checkpoint-mismatch"):
        coterie.go_on(run, more=1, federation=data, added=[federation("10", seed=6)])
    with raises("data-needed", "added"):
        coterie.go_on(run, more=1, federation=data)


def test_newcomers_stay_those_that_were_held_out() -> None:
    data, settings = federation("0011010011"), Settings(newcomers=0.3)
    train, held = split_newcomers(data, settings)
    more = changed(extended(data, NEW), 10, (int(held.ids[0]), int(train.ids[0])))
    now, still = split_newcomers(more, settings)
    assert still.ids.tolist() == held.ids[1:].tolist()
    assert now.ids.tolist() == [*train.ids[1:].tolist(), 10, 11]


def test_names_of_new_clients_are_new() -> None:
    named = federation("01", names=("Ada", "Bea"))
    with raises("client-exists", "Bea"):
        extended(named, federation("01", seed=2, names=("Bea", "Cleo")))
    assert extended(named, federation("1", seed=2)).names == ("Ada", "Bea", "2")
    assert extended(federation("01"), federation("1", seed=2, names=("Ada",))).names == ("0", "1", "Ada")


def test_the_identity_of_data_with_forgotten_clients_needs_no_data() -> None:
    data = federation()
    gone = changed(data, 6, (2,))
    assert gone.identity() == identity_without(data.identity(), (2,))
    assert identity_without(gone.identity(), (4,)) == changed(data, 6, (2, 4)).identity()
    assert key_of(gone.identity()) == key_of(data.identity())
    assert forgotten_in(gone.identity()) == (2,)
    assert forgotten_in(data.identity()) == ()
    assert gone.roster.ids.tolist() == [0, 1, 3, 4, 5]
    assert isinstance(gone, ChangedFederation)
    with raises("client-unknown"):
        gone.client(2)


# -------------------------------------------------------------------------------------------- the command line


def table(path: Path, names: str, rows: int = 12, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["age,level,outcome,hospital"]
    for name in names:
        for _ in range(rows):
            age, level = rng.normal(50, 10), rng.normal(0, 0.01)
            lines.append(f"{age:.3f},{level:.5f},{'sick' if (age > 50) != (name in 'BDF') else 'well'},{name}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def invoke(*words: object) -> Any:
    found = CliRunner().invoke(app, list(map(str, words)))
    if isinstance(found.exception, Exception) and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    first = table(tmp_path / "first.csv", "ABCD")
    invoke(
        *("run", "data.name=csv", f"data.path={first}", "data.y=outcome", "data.client=hospital", "method.name=wecfl"),
        *("method.k=2", "rounds=3", "checkpoint_every=1", "keep_checkpoints=all", "--out", tmp_path / "run"),
    )
    return tmp_path / "run"


def test_a_table_of_new_clients_is_added_and_named(trained: Path, tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", "FE", seed=3)
    found = invoke("run", "--resume", trained, "--more", 2, "--with", new)
    assert "2 clients added, with the ids 4 to 5" in found.stderr
    rows = json.loads((trained / "clients.json").read_text(encoding="utf-8"))
    assert [(row["client"], row["name"]) for row in rows] == list(enumerate("ABCDEF"))
    loaded = coterie.load(trained)
    assert loaded.known.names == tuple("ABCDEF")
    assert loaded.settings.rounds == 5
    assert len(loaded.federation) == 6
    again = invoke("run", "--resume", trained, "--more", 1, "--json")
    assert json.loads(again.stdout)["rounds"] == 6
    with raises("client-exists", "'E' is a client of the run already"):
        invoke("run", "--resume", trained, "--with", new)
    assert len(lineage.read(trained).added) == 1


def test_the_scale_of_new_clients_is_that_of_the_run(trained: Path, tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", "FE", seed=3)
    before = coterie.load(trained).federation
    invoke("run", "--resume", trained, "--with", new)
    after = coterie.load(trained).federation
    assert [scale is not None and scale.bytes() for scale in after.scales] == [
        scale is not None and scale.bytes() for scale in before.scales
    ]
    torch.testing.assert_close(after.client(1).train[0], before.client(1).train[0], rtol=0, atol=0)


def test_a_second_configuration_names_the_data(tmp_path: Path) -> None:
    invoke("run", "rounds=1", "data.partition.clients=4", "--out", tmp_path / "run")
    (tmp_path / "new.yaml").write_text("data: {name: digits, partition: {name: rotated, clients: 8}}", encoding="utf-8")
    invoke("run", "--resume", tmp_path / "run", "--with", tmp_path / "new.yaml")
    assert len(coterie.load(tmp_path / "run").known) == 12
    (tmp_path / "code.yaml").write_text("data: {name: 'os:getcwd'}", encoding="utf-8")
    with raises("trust-needed"):
        invoke("run", "--resume", tmp_path / "run", "--with", tmp_path / "code.yaml")
    (tmp_path / "no.yaml").write_text("rounds: 3", encoding="utf-8")
    with raises("config-missing-key"):
        invoke("run", "--resume", tmp_path / "run", "--with", tmp_path / "no.yaml")
    with raises("data-file-format"):
        invoke("run", "--resume", tmp_path / "run", "--with", tmp_path / "new.txt")


def test_options_that_need_a_run_say_so(tmp_path: Path) -> None:
    with raises("option-conflict", "--resume"):
        invoke("run", "--more", 3)
    invoke("run", "rounds=1", "data.partition.clients=4", "--out", tmp_path / "run")
    with raises("option-conflict", "rounds="):
        invoke("run", "--resume", tmp_path / "run", "rounds=3", "--more", 3)


# -------------------------------------------------------------------------------------------------- going back


def test_a_run_goes_back_and_what_came_after_is_kept(trained: Path) -> None:
    at_three = bits(coterie.load(trained))
    found = invoke("run", "--resume", trained, "--back-to", 1)
    assert f"back at round 1; rounds 2 to 3 are kept in {trained / 'abandoned-1'}" in found.stderr
    assert coterie.load(trained).settings.rounds == 1
    assert [event.round for event in coterie.load(trained).history] == [1]
    assert bits(coterie.load(trained / "abandoned-1")) == at_three
    assert json.loads((trained / "status.json").read_text(encoding="utf-8"))["state"] == "done"
    invoke("run", "--resume", trained, "--more", 2)
    assert bits(coterie.load(trained)) == at_three  # the same rounds again


def test_a_round_without_a_checkpoint_is_refused_with_those_that_are_there(trained: Path) -> None:
    with raises("checkpoint-missing", "rounds 1, 2, 3"):
        invoke("run", "--resume", trained, "--back-to", 7)
    assert not (trained / "abandoned-1").exists()


def test_by_default_two_checkpoints_are_kept(tmp_path: Path) -> None:
    keeps: list[tuple[Any, list[int]]] = [(2, [4, 5]), (3, [3, 4, 5]), ("all", [1, 2, 3, 4, 5])]
    for keep, expected in keeps:
        more: dict[str, Any] = {} if keep == 2 else {"keep_checkpoints": keep}
        run = tmp_path / str(keep)
        coterie.run(WeCFL(k=2, local=LOCAL), federation(), "linear", rounds=5, checkpoint_every=1, out=run, **more)
        assert [int(p.stem[-6:]) for p in sorted((run / "checkpoints").glob("round-*"))] == expected


def test_going_back_before_clients_were_added_leaves_them_out(trained: Path, tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", "FE", seed=3)
    invoke("run", "--resume", trained, "--more", 1, "--with", new)
    invoke("run", "--resume", trained, "--back-to", 3)
    assert coterie.load(trained).known.names == tuple("ABCD")
    assert coterie.load(trained / "abandoned-1").known.names == tuple("ABCDEF")
    invoke("run", "--resume", trained, "--more", 1)
    assert coterie.load(trained).known.names == tuple("ABCD")
