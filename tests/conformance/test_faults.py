"""Clients fail, drop out, answer with NaN and kill their process: the round goes on, and everyone is named rightly."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys

import coterie
from conftest import PAPERS, few, raises
from coterie.client.contract import Moment
from coterie.core.codec import pack
from coterie.core.local import Local
from coterie.core.references import All, Mix, Pick
from coterie.core.tables import ByClient
from coterie.core.tasks import Evaluate, Evaluated, Fit, Fitted, Task
from coterie.data.federation import Federation, Samples
from coterie.engines.contract import Missing, Visit
from coterie.layers.contract import Round, Stack
from coterie.layers.dropout import dropouts
from coterie.layers.traffic import Traffic
from coterie.training.ask import RoundAsk
from coterie.training.sampling import sample_cohort
from coterie.training.settings import Settings

HERE = os.getpid()
KEPT = Local(steps=4, batch=4, lr=0.1, momentum=0.9, keep_optimizer=True)


# ------------------------------------------------------------------------------------------- kinds of trouble


def fails(*clients: int) -> toys.Fault:
    def fault(client: int, split: str, taken: Samples) -> Samples:
        if client in clients and split == "train":
            raise ValueError("the disk\nis on fire")
        return taken

    return fault


def answers_nan(client: int, split: str, taken: Samples) -> Samples:
    x, y = taken
    return (x * torch.nan, y) if client == 3 and split == "train" else taken


def diverges(client: int, split: str, taken: Samples) -> Samples:
    x, y = taken
    return (x * 1e30, y) if client == 3 and split == "train" else taken


FAULTS: Mapping[str, tuple[toys.Fault, str]] = {
    "raises": (fails(3), "ValueError: the disk is on fire"),
    "nan": (answers_nan, "finite"),
    "diverges": (diverges, "finite"),
}


# --------------------------------------------------------------------------- left out, counted, named, not mixed up


@pytest.mark.covering
@pytest.mark.parametrize("trouble", ["raises", "nan"])
@pytest.mark.parametrize("name", few(PAPERS, *toys.HANDFUL, "cfl", "stocfl", "fedgroup"))
def test_a_round_goes_on_without_a_client_in_trouble(name: str, trouble: str) -> None:
    fault, why = FAULTS[trouble]
    result = coterie.run(toys.method(name), toys.faulty(fault), model=toys.linear, rounds=2)
    for event in result.history:
        assert (event.asked, event.answered, event.attempts) == (10, 9, 1)
        assert [m.client for m in event.missing] == [3]
        assert why in event.missing[0].reason
        assert "\n" not in event.missing[0].reason
    assert result.clients.ids.tolist() in ([0, 1, 2, 4, 5, 6, 7, 8, 9], list(range(10)))


# Methods that ask the cohort as it is. (Those that draw from it draw client 3 too and miss it afterwards.)
ASK_ALL = ("fedavg", "fedprox", "ifca", "fesem", "wecfl")


@pytest.mark.covering
@pytest.mark.parametrize("trouble", FAULTS)
@pytest.mark.parametrize("name", ASK_ALL)
@pytest.mark.parametrize("kind", toys.ENGINES, ids=str)
def test_nobodys_answer_is_taken_for_anothers(kind: toys.Kind, name: str, trouble: str) -> None:
    """A round without client 3 ends in the state of a round to which it was never invited."""
    federation, healthy = toys.faulty(FAULTS[trouble][0]), toys.toy()
    method = toys.method(name)
    state = toys.fresh(method, healthy)
    with toys.engine(kind, federation) as engine:
        found = toys.one_round(method, state, engine, federation, range(10))
    with toys.engine(kind, healthy) as engine:
        expected = toys.one_round(method, state, engine, healthy, [0, 1, 2, 4, 5, 6, 7, 8, 9])
    toys.assert_same(found, expected)


@pytest.mark.parametrize("kind", toys.ENGINES, ids=str)
def test_replies_carry_the_ids_of_those_who_answered(kind: toys.Kind) -> None:
    centers = torch.stack([torch.full((10,), 0.01 * c) for c in range(10)])
    labels = ByClient(torch.arange(10), torch.arange(10))  # client c starts at c/100
    still = Fit(Pick(centers, labels), Local(steps=1, lr=1e-30))
    with toys.engine(kind, toys.faulty(fails(3, 8))) as engine:
        outcome = engine.visit(Visit((still,), torch.tensor([1, 3, 4, 8, 9]), Moment(0, 0, 0)))
    (reply,) = outcome.replies
    assert isinstance(reply, Fitted)
    assert reply.ids.tolist() == [1, 4, 9]
    assert reply.n.tolist() == [toys.SIZES[c] for c in (1, 4, 9)]
    assert reply.chosen.tolist() == [1, 4, 9]
    torch.testing.assert_close(reply.models, centers[[1, 4, 9]])
    assert [m.client for m in outcome.missing] == [3, 8]


@pytest.mark.covering
@pytest.mark.parametrize("kind", toys.ENGINES, ids=str)
@pytest.mark.parametrize("how", ["pick", "mix", "mu", "evaluate"])
def test_a_client_without_a_value_of_its_own_is_missing_and_the_round_goes_on(kind: toys.Kind, how: str) -> None:
    """As a method asks: bytes are counted too."""
    centers = torch.zeros(2, 10)
    known = torch.tensor([0, 1, 2, 4])  # not client 3
    tasks: dict[str, Task] = {
        "evaluate": Evaluate((Pick(centers, ByClient(known, torch.tensor([0, 1, 0, 1]))),)),
        "pick": Fit(Pick(centers, ByClient(known, torch.tensor([0, 1, 0, 1]))), toys.LOCAL),
        "mix": Fit(Mix(centers, ByClient(known, torch.full((4, 2), 0.5))), toys.LOCAL),
        "mu": Fit(All(centers[0]), toys.LOCAL, anchor=All(centers[0]), mu=ByClient(known, torch.ones(4))),
    }
    with toys.engine(kind, toys.toy()) as engine:
        counted, ids = Traffic(), torch.arange(5)
        attempt = Round(0, 0, ids, toys.toy().roster, None, 0, coterie.Model(toys.linear), engine)
        counted.begin(attempt)
        ask = RoundAsk(Stack(engine, [counted]), torch.arange(5), 0, 0)
        reply = ask(tasks[how])
    assert reply.ids.tolist() == known.tolist()
    assert list(ask.missing) == [3]
    assert "the server has no value for this client" in ask.missing[3].reason
    assert (
        counted.commit(attempt, None, None)["down"] == {"mu": 5, "evaluate": 0}.get(how, 4) * 40
    )  # the bytes of an evaluation are not counted


@pytest.mark.parametrize("kind", toys.ENGINES, ids=str)
def test_a_client_that_cannot_even_be_opened_is_missing_too(kind: toys.Kind) -> None:
    class Locked(toys.Faulty):
        def client(self, client: int) -> Any:
            if client == 3:
                raise OSError("no such disk")
            return super().client(client)

    federation = Locked(**{f: getattr(toys.toy(), f) for f in Federation.__dataclass_fields__})
    with toys.engine(kind, federation) as engine:
        outcome = engine.visit(Visit((Fit(All(torch.zeros(10)), toys.LOCAL),), torch.arange(10), Moment(0, 0, 0)))
    assert outcome.missing == (Missing(3, "OSError: no such disk"),)
    assert len(outcome.replies[0].ids) == 9


@pytest.mark.parametrize("name", few(PAPERS, *toys.HANDFUL, "cfl", "stocfl", "fedgroup"))
def test_assignments_stay_with_their_clients_when_one_is_never_seen(name: str) -> None:
    federation = toys.faulty(lambda client, split, taken: fails(3)(client, "train", taken))  # also in the test data
    result = coterie.run(toys.method(name), federation, model=toys.linear, rounds=4, seed=1)
    assert result.clients.ids.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert len(result.assignments) == 10, "assignments are by client id, whoever is missing"
    chosen = set(result.clients.choice.tolist() if result.clients.choice is not None else [0])
    if len(chosen) == 2 and name not in toys.DESCRIBED:
        others = [0, 1, 2, 4, 5, 6, 7, 8, 9]
        truth = np.array(toys.TRUTH)
        found = result.assignments
        np.testing.assert_array_equal(found[others] == found[0], truth[others] == truth[0])


def test_a_client_whose_test_data_is_nan_does_not_spoil_the_evaluation() -> None:
    def fault(client: int, split: str, taken: Samples) -> Samples:
        return (taken[0] * torch.nan, taken[1]) if client == 3 and split == "test" else taken

    result = coterie.run(toys.method("fedavg"), toys.faulty(fault), model=toys.linear, rounds=1)
    assert np.isfinite(result.summary.loss)
    assert result.clients.ids.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_an_evaluation_names_who_could_not_be_evaluated() -> None:
    """Left out, counted and named in the events: also those who fail while being evaluated only."""

    def fault(client: int, split: str, taken: Samples) -> Samples:
        if client == 3 and split == "test":
            raise ValueError("no test data today")
        return taken

    result = coterie.run(toys.method("fedavg"), toys.faulty(fault), model=toys.linear, rounds=1)
    assert isinstance(result.clients, Evaluated)
    assert 3 not in result.clients.ids.tolist()
    assert "no test data today" in repr(result.history[0])


def test_the_first_client_may_fail_like_any_other() -> None:
    result = coterie.run(toys.method("fedavg"), toys.faulty(fails(0)), model=toys.linear, rounds=1)
    assert [m.client for m in result.history[0].missing] == [0]


# --------------------------------------------------------------------------------------------------- the quorum


def test_below_the_quorum_a_round_is_repeated_with_other_clients() -> None:
    federation = toys.faulty(fails(1, 2, 3, 4, 5))
    settings = Settings(rounds=3, participation=2, seed=0, quorum=1.0, retries=60)
    result = coterie.run(
        toys.method("fedavg"), federation, model=toys.linear, rounds=3, participation=2, quorum=1.0, retries=60
    )
    assert any(event.attempts > 1 for event in result.history)
    for t, event in enumerate(result.history):
        tried = [set(sample_cohort(federation.roster, settings, t, a).tolist()) for a in range(event.attempts)]
        assert all(cohort & {1, 2, 3, 4, 5} for cohort in tried[:-1]), "an attempt with everyone there was repeated"
        assert tried[-1] <= {0, 6, 7, 8, 9}
        assert (event.asked, event.answered, event.missing) == (2, 2, ())


def test_then_the_run_stops_and_names_round_client_and_reason() -> None:
    with raises("quorum") as error:
        coterie.run(toys.method("fedavg"), toys.faulty(fails(*range(2, 8))), model=toys.linear, rounds=3)
    said = str(error.value)
    for word in ("round 1", "4 of 10", "quorum is 5", "client 2", "ValueError: the disk is on fire", "3 times"):
        assert word in said


def test_a_quorum_just_met_is_met() -> None:
    result = coterie.run(
        toys.method("fedavg"), toys.faulty(fails(1, 2, 3)), model=toys.linear, rounds=1, quorum=0.7, retries=0
    )
    assert result.history[0].answered == 7


def test_a_run_that_stops_leaves_no_open_file(tmp_path: Path) -> None:
    """And the directory can be looked at: warnings are errors, so an unclosed log would fail this test."""
    with raises("quorum"):
        coterie.run(toys.method("fedavg"), toys.faulty(fails(*range(1, 9))), model=toys.linear, out=tmp_path / "r")
    import gc

    gc.collect()
    assert (tmp_path / "r" / "run.json").is_file()


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("kind", few(toys.EITHER, toys.REFERENCE), ids=str)
def test_without_a_quorum_a_round_may_pass_with_nobody(kind: toys.Kind, name: str) -> None:
    federation, method = toys.toy(), toys.method(name)
    with toys.engine(kind, federation) as engine:
        result = coterie.run(method, federation, model=toys.linear, rounds=2, quorum=0, dropout=0.999999, engine=engine)
    assert [(e.asked, e.answered, len(e.missing)) for e in result.history] == [(10, 0, 10)] * 2
    assert result.history[0].missing[4] == Missing(4, "dropped out (simulated)")
    # No model has moved (a method may count rounds, or note whom it has invited).
    before, after = (
        [t for t in pack(state)[1] if t.is_floating_point()] for state in (toys.fresh(method, federation), result.state)
    )
    toys.assert_same(after, before)


@pytest.mark.parametrize("name", few(PAPERS, *toys.HANDFUL, "cfl", "stocfl", "fedgroup"))
def test_a_state_that_nobody_has_changed_yet_can_be_saved(name: str, tmp_path: Path) -> None:
    def run(rounds: int, out: Path, resume: bool = False) -> Any:
        return coterie.run(
            toys.method(name),
            toys.toy(),
            model=toys.linear,
            rounds=rounds,
            quorum=0,
            dropout=0.999999,
            out=out,
            resume=resume,
            checkpoint_every=1,
        )

    run(1, tmp_path / "a")
    toys.assert_same(run(2, tmp_path / "a", resume=True).state, run(2, tmp_path / "b").state)


def test_simulated_dropout_is_seeded() -> None:
    def missing(seed: int) -> list[list[int]]:
        result = coterie.run(
            toys.method("fedavg"), toys.toy(), model=toys.linear, rounds=5, seed=seed, dropout=0.4, quorum=0
        )
        return [[m.client for m in event.missing] for event in result.history]

    assert missing(1) == missing(1)
    assert missing(1) != missing(2)
    assert len({tuple(m) for m in missing(1)}) > 1, "the same clients drop out in every round"
    assert missing(1)[2] == dropouts(torch.arange(10), 0.4, 1, 2, 0).tolist()


# --------------------------------------------------------------------------------------------- what clients keep


@pytest.mark.parametrize("kind", toys.ENGINES, ids=str)
def test_a_failed_visit_writes_no_memory(kind: toys.Kind) -> None:
    nobody_knows_3 = ByClient(torch.tensor([2, 4]), torch.tensor([0, 0]))
    tasks = (
        Fit(All(torch.zeros(10)), KEPT, save="v"),
        Fit(Pick(torch.zeros(1, 10), nobody_knows_3), toys.LOCAL),  # client 3 fails here, with "v" in hand
    )
    with toys.engine(kind, toys.toy()) as engine:
        outcome = engine.visit(Visit(tasks, torch.tensor([2, 3, 4]), Moment(0, 0, 0)))
        assert [m.client for m in outcome.missing] == [3]
        assert [r.ids.tolist() for r in outcome.replies] == [[2, 4], [2, 4]]
        assert sorted(engine.memory.tensors()) == ["2/optimizer", "2/v", "4/optimizer", "4/v"]


def test_an_attempt_that_is_repeated_leaves_nothing_in_memory() -> None:
    """Design rule 5: a lost or repeated visit changes nothing."""
    federation = toys.faulty(fails(1, 2, 3, 4, 5))
    settings = Settings(rounds=1, participation=3, seed=0, quorum=1.0, retries=200)
    with toys.engine(toys.REFERENCE, federation) as engine:
        result = coterie.run(
            toys.method("fedavg", KEPT),
            federation,
            model=toys.linear,
            rounds=1,
            participation=3,
            quorum=1.0,
            retries=200,
            engine=engine,
        )
        kept = {int(name.split("/")[0]) for name in engine.memory.tensors()}
    (event,) = result.history
    before = [set(sample_cohort(federation.roster, settings, 0, a).tolist()) for a in range(event.attempts)]
    assert any(cohort & {0, 6, 7, 8, 9} for cohort in before[:-1]), "nobody trained in a failed attempt"
    assert kept == before[-1]


@pytest.mark.parametrize("name", few(PAPERS, *toys.HANDFUL))
@pytest.mark.parametrize("kind", few(toys.EITHER, toys.REFERENCE), ids=str)
def test_looking_changes_nothing(kind: toys.Kind, name: str) -> None:
    def run(evaluate_every: int) -> tuple[Any, Any]:
        federation = toys.toy()
        with toys.engine(kind, federation, toys.dropout) as engine:
            result = coterie.run(
                toys.method(name, KEPT),
                federation,
                model=toys.dropout,
                rounds=5,
                participation=4,
                engine=engine,
                evaluate_every=evaluate_every,
            )
            seen = [event.summary is not None for event in result.history]
            assert seen == [(t + 1) % evaluate_every == 0 for t in range(5)]
            return result, engine.memory.tensors()

    (often, memory), (once, memory_once) = run(1), run(5)
    toys.assert_same(often.state, once.state)
    toys.assert_same(memory, memory_once)
    toys.assert_same(often.clients, once.clients)


# ---------------------------------------------------------------------------------------- processes that are killed


def kills(client: int, only_once: Path | None = None) -> toys.Fault:
    """This client's data ends the process that touches it, unless that is the server."""

    def fault(asked: int, split: str, taken: Samples) -> Samples:
        if asked == client and split == "train" and os.getpid() != HERE:
            if only_once is not None and only_once.exists():
                return taken
            if only_once is not None:
                only_once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return taken

    return fault


@pytest.mark.covering
@pytest.mark.parametrize("name", ASK_ALL)
@pytest.mark.parametrize("kind", toys.PROCESSES, ids=str)
def test_a_client_that_kills_its_process_is_missing_and_nobody_else_is(kind: toys.Kind, name: str) -> None:
    method = toys.method(name, KEPT)
    federation, healthy = toys.faulty(kills(3)), toys.toy()
    with toys.engine(kind, federation) as engine:
        state = toys.fresh(method, federation)
        everyone = torch.arange(10)
        outcome = engine.visit(Visit((Fit(All(torch.zeros(10)), KEPT),), everyone, Moment(0, 0, 0)))
        assert [m.client for m in outcome.missing] == [3]
        assert "died" in outcome.missing[0].reason
        assert outcome.replies[0].ids.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert "3/optimizer" not in engine.memory.tensors()
        # It goes on working: a whole round with new processes.
        engine.memory.restore({})
        found = toys.one_round(method, state, engine, federation, range(10))
    with toys.engine(kind, healthy) as engine:
        expected = toys.one_round(method, state, engine, healthy, [0, 1, 2, 4, 5, 6, 7, 8, 9])
    toys.assert_same(found, expected)


@pytest.mark.parametrize("kind", toys.PROCESSES, ids=str)
def test_a_process_that_dies_once_costs_nobody_the_round(kind: toys.Kind, tmp_path: Path) -> None:
    task = Fit(All(torch.zeros(10)), KEPT)

    def reply(federation: Federation) -> tuple[Fitted, Any]:
        with toys.engine(kind, federation) as engine:
            outcome = engine.visit(Visit((task,), torch.arange(10), Moment(0, 0, 0)))
            assert not outcome.missing
            (fitted,) = outcome.replies
            assert isinstance(fitted, Fitted)
            return fitted, engine.memory.tensors()

    toys.assert_same(reply(toys.faulty(kills(3, tmp_path / "once"))), reply(toys.toy()))
    assert (tmp_path / "once").exists()


@pytest.mark.parametrize("kind", toys.PROCESSES, ids=str)
def test_a_worker_killed_between_visits_is_replaced(kind: toys.Kind) -> None:
    visit = Visit((Fit(All(torch.zeros(10)), toys.LOCAL),), torch.arange(10), Moment(0, 0, 0))
    with toys.engine(kind, toys.toy()) as engine:
        first = engine.visit(visit)
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        second = engine.visit(visit)
    toys.assert_same(first.replies, second.replies)
    assert not second.missing


@pytest.mark.parametrize("kind", toys.PROCESSES, ids=str)
def test_no_process_is_left_after_close(kind: toys.Kind) -> None:
    before = set(multiprocessing.active_children())
    with toys.engine(kind, toys.faulty(kills(3))) as engine:
        engine.visit(Visit((Fit(All(torch.zeros(10)), toys.LOCAL),), torch.arange(10), Moment(0, 0, 0)))
        pids = [child.pid for child in set(multiprocessing.active_children()) - before]
        assert len(pids) == kind[1]
    assert set(multiprocessing.active_children()) == before
    assert not any(pid is not None and alive(pid) for pid in pids)


def test_no_process_is_left_after_a_run_that_failed() -> None:
    before = set(multiprocessing.active_children())
    with raises("quorum"):
        coterie.run(toys.method("fedavg"), toys.faulty(fails(*range(1, 10))), toys.linear, engine="workers", workers=2)
    assert set(multiprocessing.active_children()) == before


SERVER = """
import multiprocessing, sys, time
sys.path.insert(0, sys.argv[1])
import torch, toys
from coterie.client.visit import Moment
from coterie.core.codec import pack
from coterie.engines.contract import Visit
from coterie.engines.workers import Workers
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.tasks import Fit

def slow(client, split, taken):
    print("busy", flush=True)
    time.sleep(1)
    return taken

engine = Workers(Model(toys.linear), toys.faulty(slow), 2)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
engine.visit(Visit((Fit(All(torch.zeros(10)), toys.LOCAL),), torch.arange(10), Moment(0, 0, 0)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_when_their_parent_is_killed() -> None:
    command = [sys.executable, "-c", SERVER, str(Path(toys.__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pids = [int(pid) for pid in server.stdout.readline().split()]
        assert server.stdout.readline().startswith("busy")  # in the middle of a visit
        assert len(pids) == 2
        assert all(map(alive, pids))
        server.kill()
        server.wait()
        deadline = time.monotonic() + 60
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and was not waited for does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
