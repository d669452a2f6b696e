"""Clients join in mid-training, leave and return: every method takes them in by its own rule, and mixes up nobody."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys
from comings import CLIENTS, FIRST, GONE, JOIN, RETURNED, TRUTH, Door, Reaching, linear, plan, toy

import coterie
from conftest import PAPERS, few, raises
from coterie import CFL, FLHC, Local, StoCFL
from coterie.core.model import Model
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit
from coterie.methods.cam import CAM
from coterie.methods.contract import Method
from coterie.training.assembly import Run
from coterie.training.events import Event, RoundDone, RunStarted
from coterie.training.loop import train
from coterie.training.result import Result
from coterie.training.run_directory import RunDirectory, read_history
from coterie.training.sampling import ClientSampler
from coterie.training.settings import Settings
from coterie.training.sketches import WATCHED, Trace, read_sketch, read_trace

ROUNDS = 9
LOCAL = Local(steps=8, batch="full", lr=0.5)
PLAIN = (
    "local",
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedadam",
    "fedavg+",
    "fedprox+",
    "ditto",
    "fedem",
    "fedrc",
    *toys.DESCRIBED,
    *("fedper", "fedrep", "fedbn"),  # one shared body
    "feddrift",  # as many models as losses are apart
)  # no hard clusters that the truth could match
WRAPPED = ("fl+hc", "composed", "fedgrouprox")  # of the clustered ones: those that CAM has no name for


def method(name: str) -> Method[Any]:
    """A method of the catalogue, or CAM around one, such that it finds the two kinds in its first few rounds."""
    if name.startswith("cam of "):
        return CAM(base=method(name.removeprefix("cam of ")), warmup=1, local=LOCAL)
    if name == "cfl":
        return CFL(eps1=1.5, eps2=1.2, gamma_max=0.62, local=LOCAL)
    if name == "fl+hc":
        return FLHC(k=2, warmup=2, local=LOCAL)
    if name == "stocfl":
        return StoCFL(tau=0.65, local=LOCAL)
    made = toys.method(name, LOCAL)
    if not isinstance(made, CAM):
        return made
    return dataclasses.replace(made, base=method("cfl") if isinstance(made.base, CFL) else made.base, warmup=1)


EVERY = (*PAPERS, *(f"cam of {name}" for name in WRAPPED))
CLUSTERED = [name for name in EVERY if name not in PLAIN]
# `make test` has some methods, with everyone or with a part of them in a round, in turn.
DAILY = (*toys.HANDFUL, "fesem", "cfl", "stocfl", "fedgroup", "fl+hc", "wecfl-cam", "cam of composed")
CELLS = [
    pytest.param(name, share, marks=() if turn % 2 == part and name in DAILY else pytest.mark.exhaustive)
    for turn, name in enumerate(EVERY)
    for part, share in enumerate((1.0, 0.6))
]


@dataclasses.dataclass(frozen=True, eq=False)
class Ran:
    """A run, and the engine and the door that it went through."""

    result: Result[Any]
    engine: Reaching
    door: Door


def go(
    a_method: Method[Any],
    door: Door,
    out: Path | None = None,
    *,
    resume: bool = False,
    listeners: Sequence[Callable[[Event], None]] = (),
    **more: Any,
) -> Ran:
    settings = Settings(**({"rounds": ROUNDS, "seed": 1, "checkpoint_every": 2} | more))
    model = Model(linear)
    engine = Reaching(model, door)
    store = None if out is None else RunDirectory(out, a_method, model, door, settings, resume)
    return Ran(
        train(Run(a_method, model, door, settings, engine, store, [door.listen, *listeners])),
        engine,
        door,
    )


@functools.cache
def ran(name: str, participation: float = 1.0) -> Ran:
    return go(method(name), Door(toy()), participation=participation)


# ------------------------------------------------------------------------------------------------------ every method


@pytest.mark.parametrize(("name", "participation"), CELLS)
def test_nobody_is_asked_who_is_not_there(name: str, participation: float) -> None:
    run = ran(name, participation)
    assert [event.round for event in run.result.history] == list(range(1, ROUNDS + 1))
    for trip in run.engine.trips:
        # Evaluation comes before the door opens again.
        assert set(trip.ids) <= set(plan(trip.round - 1))
    trained = {client for trip in run.engine.trips if trip.keep and trip.round > 3 for client in trip.ids}
    assert trained & set(JOIN), "newcomers take part in rounds"
    assert not any(event.missing or event.unscored for event in run.result.history)


@pytest.mark.parametrize(("name", "participation"), CELLS)
def test_everyone_who_is_there_has_a_place_under_its_own_id(name: str, participation: float) -> None:
    result = ran(name, participation).result
    assert result.clients.ids.tolist() == plan(ROUNDS) == [c for c in range(CLIENTS) if c not in GONE]
    assert len(result.assignments) == CLIENTS
    assert np.flatnonzero(result.assignments < 0).tolist() == list(GONE)
    new = torch.isin(result.clients.ids, torch.tensor(JOIN))
    assert bool(result.clients.loss.isfinite().all())
    assert float(result.clients.accuracy[new].mean()) > 0.4  # chance is a quarter; one model for all is right in half
    # 16 + 3 * (client % 5) training samples: those of the client, not of whoever stands in its place.
    sizes = ran(name, participation).door.sizes(result.clients.ids)
    assert sizes.tolist() == [16 + 3 * (c % 5) for c in plan(ROUNDS)]


@pytest.mark.parametrize(("name", "participation"), [cell for cell in CELLS if cell.values[0] in CLUSTERED])
def test_newcomers_join_the_cluster_of_their_kind(name: str, participation: float) -> None:
    result = ran(name, participation).result
    before, after = result.history[2].summary, result.history[3].summary
    assert before is not None
    assert after is not None
    if participation == 1:
        assert before.ari == 1.0, "the method does not find the kinds in the first place"
    assert after.ari == 1.0
    assert result.summary.ari == 1.0
    newcomers, others = [12, 14, 15], [0, 3]
    assert [result.assignments[c] == result.assignments[0] for c in newcomers] == [TRUTH[c] == 0 for c in newcomers]
    assert result.assignments[others[0]] != result.assignments[others[1]]
    assert result.assignments[RETURNED] == result.assignments[0]
    assert result.accuracy is not None
    assert result.accuracy > 0.7


class CrashError(Exception):
    pass


def crash_after(round_: int) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == round_:
            raise CrashError

    return listen


@pytest.mark.parametrize("name", few(EVERY, "ditto", "halves", "wecfl", "cfl", "cam of composed"))
def test_a_resumed_run_changes_no_bit_although_others_are_there_than_at_first(name: str, tmp_path: Path) -> None:
    """Checkpoints after rounds 2, 4, 6 and 8; a crash in round 7: on from 6, when two have left and four have come."""
    whole = go(method(name), Door(toy()), tmp_path / "whole", participation=0.6)
    with pytest.raises(CrashError):
        go(method(name), Door(toy()), tmp_path / "cut", listeners=[crash_after(7)], participation=0.6)
    rest = go(method(name), Door(toy(), done=6, given=CLIENTS), tmp_path / "cut", resume=True, participation=0.6)
    assert [event.round for event in rest.result.history] == [7, 8, 9]
    toys.assert_same(rest.result.state, whole.result.state)
    toys.assert_same(rest.engine.memory.tensors(), whole.engine.memory.tensors())
    toys.assert_same(rest.result.clients, whole.result.clients)
    np.testing.assert_array_equal(rest.result.assignments, whole.result.assignments)
    for file in ("assignments.json", "clients.json", "trace.jsonl", "sketch.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


# ------------------------------------------------------------------------------------ kinds that come and kinds that go


def test_stocfl_opens_a_cluster_for_a_kind_that_comes_late() -> None:
    """Only even clients at first; the odd ones come after round 3."""
    evens = [c for c in range(CLIENTS) if TRUTH[c] == 0]
    run = go(method("stocfl"), Door(toy(), lambda done: evens if done < 3 else list(range(CLIENTS))))
    clusters = [event.summary.clusters for event in run.result.history if event.summary is not None]
    assert clusters == [1, 1, 1, *[2] * 6]
    assert run.result.summary.ari == 1.0


@pytest.mark.parametrize("name", few(EVERY, *toys.HANDFUL, "cfl", "stocfl", "cam of composed"))
def test_training_goes_on_when_all_that_were_known_leave_for_ever(name: str) -> None:
    run = go(method(name), Door(toy(), lambda done: range(8) if done < 4 else range(8, CLIENTS)), rounds=6)
    assert run.result.clients.ids.tolist() == list(range(8, CLIENTS))
    assert run.result.accuracy is not None
    assert run.result.accuracy > (0.6 if name in CLUSTERED else 0.35)
    assert (run.result.assignments[:8] == -1).all()


@pytest.mark.parametrize("name", ["fl+hc", "composed"])
def test_what_is_clustered_once_waits_for_as_many_clients_as_clusters(name: str) -> None:
    """One client alone is there when the clustering is due; it comes when the others are back."""
    composed = coterie.Composed(representation="update", k=2, when="once", first=2, local=LOCAL)
    one = composed if name == "composed" else method(name)
    run = go(one, Door(toy(), lambda done: [5] if 2 <= done < 4 else range(CLIENTS)), rounds=6)
    sizes = [event.summary.sizes for event in run.result.history if event.summary is not None]
    assert sizes == [(16,), (16,), (1,), (1,), (8, 8), (8, 8)]
    assert run.result.summary.ari == 1.0


@pytest.mark.parametrize("name", ["fesem", "wecfl", "fedgroup", "cam"])
def test_a_first_clustering_of_too_few_clients_is_refused(name: str) -> None:
    """CAM's warm-up takes a round, in which eleven of twelve leave; by themselves methods cluster in the first."""
    wrapped = CAM(base=method(name if name != "cam" else "wecfl"), warmup=1, local=LOCAL)
    with raises("quorum", match=r"round 2: 1 client connected, too few to find 2 clusters among \(tried 3"):
        go(wrapped, Door(toy(), lambda done: range(FIRST) if done < 1 else [5]))


# ------------------------------------------------------------------------------------------- what the driver sees to


def test_a_federation_is_read_for_nothing() -> None:
    federation = toy()
    there = ClientSampler(federation, Settings())
    assert there.roster is federation.roster
    kept = ClientSampler(federation, Settings(newcomers=0.3))
    assert kept.roster is kept.roster
    assert len(kept.newcomers.ids) == 5
    assert federation.identity() == f"{federation.describe()}, checksum {federation.checksum():08x}"


class Shy(Reaching):
    """Nobody answers the first two visits; after them only four clients are left."""

    def wait(self) -> None:
        super().wait()
        if len(self.trips) == 2:
            self.door.there = lambda done: range(4)

    def visit(self, visit: Visit) -> Outcome:
        outcome = super().visit(visit)
        if len(self.trips) > 2:
            return outcome
        gone = dataclasses.replace(visit, ids=visit.ids[:0])
        missing = tuple(Missing(client, "is shy") for client in visit.ids.tolist())
        return Outcome(ReplyBuilder(gone).replies(), missing)


def test_the_roster_is_read_anew_and_the_engine_waits_before_every_attempt() -> None:
    door, model = Door(toy(), lambda done: range(FIRST)), Model(linear)
    engine = Shy(model, door)
    result = train(Run(method("fedavg"), model, door, Settings(rounds=2), engine, None, [door.listen]))
    assert [(event.attempts, event.asked) for event in result.history] == [(3, 4), (1, 4)]
    # Visits so far: before the start and each of the three attempts, and before the second round, after an evaluation.
    assert engine.waited == [0, 0, 1, 2, 4]
    assert [len(trip.ids) for trip in engine.trips] == [12, 12, 4, 4, 4, 4]


def test_a_count_of_clients_is_at_most_those_who_are_there() -> None:
    door = Door(toy(), lambda done: range(10) if done < 1 else range(3))
    result = go(method("fedavg"), door, rounds=2, participation=8, evaluate_on=9).result
    assert [event.asked for event in result.history] == [8, 3]
    assert result.clients.ids.tolist() == [0, 1, 2]


def test_a_round_with_nobody_there_is_no_round() -> None:
    with raises("quorum", match=r"round 2: no client is connected \(tried 3 times\)$"):
        go(method("fedavg"), Door(toy(), lambda done: range(4) if done < 1 else []))


class Blind(Reaching):
    """Nobody can be evaluated in some rounds."""

    def __init__(self, model: Model, door: Door, *rounds: int) -> None:
        super().__init__(model, door)
        self.rounds = rounds

    def visit(self, visit: Visit) -> Outcome:
        if visit.keep or visit.moment.round + 1 not in self.rounds:
            return super().visit(visit)
        nobody = dataclasses.replace(visit, ids=visit.ids[:0])
        return Outcome(ReplyBuilder(nobody).replies(), tuple(Missing(c, "is away") for c in visit.ids.tolist()))


def blind(out: Path | None, *rounds: int, resume: bool = False) -> Result[Any]:
    one, door, model = method("wecfl"), Door(toy(), lambda done: range(FIRST)), Model(linear)
    settings = Settings(rounds=4, seed=1, checkpoint_every=10)
    store = None if out is None else RunDirectory(out, one, model, door, settings, resume)
    return train(Run(one, model, door, settings, Blind(model, door, *rounds), store, [door.listen]))


def test_a_round_that_nobody_could_judge_has_no_summary(tmp_path: Path) -> None:
    result, seen = blind(tmp_path / "run", 2), blind(None)
    assert [event.summary is None for event in result.history] == [False, True, False, False]
    assert [m.client for m in result.history[1].unscored] == list(range(FIRST))
    assert result.history[1].unscored[0].reason == "is away"
    toys.assert_same(result.state, seen.state)
    assert [line.round for line in read_trace(tmp_path / "run")[1]] == [1, 3, 4]
    assert [event.summary is None for event in read_history(tmp_path / "run", 4)] == [False, True, False, False]


def test_nothing_is_lost_when_nobody_can_judge_the_last_round(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with raises("evaluation-empty", match=r"round 4: no client could be evaluated; client 'hospital 0': is away$"):
        blind(None, 4)
    for resume in (False, True):
        with raises("evaluation-empty", match=r"client 'hospital 0': is away.*--resume .*run") as raised:
            blind(run, 4, resume=resume)
        assert str(run) in str(raised.value)
    assert (run / "checkpoints" / "round-000004.safetensors").is_file()
    assert not (run / "clients.json").exists()
    rest, whole = blind(run, resume=True), blind(None)
    assert rest.history == ()
    toys.assert_same(rest.state, whole.state)
    assert rest.summary == whole.summary
    assert (run / "clients.json").is_file()


def test_nobody_there_at_the_end_is_told_too() -> None:
    class Parting(Reaching):
        def visit(self, visit: Visit) -> Outcome:
            outcome = super().visit(visit)
            if visit.moment.round == 1:
                self.door.there = lambda done: []
            return outcome

    model, door = Model(linear), Door(toy(), lambda done: range(FIRST))
    with raises("evaluation-empty", match="round 2: no client could be evaluated; no client is connected"):
        train(Run(method("fedavg"), model, door, Settings(rounds=2), Parting(model, door), None, [door.listen]))


def test_a_run_says_who_is_there_when_it_starts() -> None:
    told: list[Event] = []
    go(method("fedavg"), Door(toy()), rounds=1, participation=0.5, listeners=[told.append])
    (start,) = (event for event in told if isinstance(event, RunStarted))
    assert (start.clients, start.per_round, start.data) == (12, 6, "clients that come and go")


# -------------------------------------------------------------------------------- what is written down and comes back


def test_a_run_directory_has_late_comers_by_name(tmp_path: Path) -> None:
    result = go(method("wecfl"), Door(toy()), tmp_path / "run").result
    rows, places = (json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("clients", "assignments"))
    assert [row["client"] for row in rows] == [int(c) for c in places] == plan(ROUNDS)
    assert [row["name"] for row in rows] == [f"hospital {c}" for c in plan(ROUNDS)]
    assert [place["name"] for place in places.values()] == [row["name"] for row in rows]
    assert [place["cluster"] for place in places.values()] == result.assignments[plan(ROUNDS)].tolist()
    ids, lines = read_trace(tmp_path / "run")
    assert ids.tolist() == list(range(CLIENTS))
    for line in lines:
        there = [c for c, cluster in enumerate(line.cluster) if cluster >= 0]
        assert there == plan(line.round - 1)
        assert line.accuracy is not None
        assert [c for c, accuracy in enumerate(line.accuracy) if accuracy is not None] == there
    sketch = read_sketch(tmp_path / "run")
    assert sketch is not None
    assert sketch["round"].tolist() == [5 if c in GONE else ROUNDS for c in range(CLIENTS)]


def test_newcomers_are_watched_while_there_is_room(tmp_path: Path) -> None:
    trace = Trace(tmp_path, WATCHED - 2, 0, torch.arange(3))
    trace.begin(0)
    trace.watch(WATCHED - 2)
    assert len(trace.ids) == WATCHED - 2
    trace.watch(WATCHED + 5)
    assert trace.ids.tolist() == list(range(WATCHED))
    (tmp_path / "checkpoints").mkdir()
    trace.save()
    trace.close()
    again = Trace(tmp_path, WATCHED + 5, 0, torch.arange(3))  # by now others would be drawn
    assert again.ids.tolist() != list(range(WATCHED))
    again.begin(1)
    again.watch(WATCHED + 50)
    again.close()
    assert again.ids.tolist() == read_trace(tmp_path)[0].tolist() == list(range(WATCHED))
    drawn = Trace(tmp_path / "other", WATCHED + 100, 0, torch.arange(3))
    before = drawn.ids
    drawn.watch(WATCHED + 200)
    assert drawn.ids is before


def test_a_result_without_the_data_says_where_the_data_is() -> None:
    result = ran("wecfl").result
    with raises("data-needed", match="the data is with the clients"):
        _ = result.federation
    x = torch.eye(4)
    assert result.network(0)(x).shape == (4, 4)
    own = result.network(int(result.assignments[3]))(x).argmax(1)
    assert result.predict(3, x.numpy()).tolist() == own.tolist()
    # Newcomers bring their own data, under numbers that nobody has had.
    served = result.admit(toy().take([0, 1]))
    assert served.assignments.tolist() == result.assignments[[0, 3]].tolist()
    assert served.clients.ids.tolist() == [CLIENTS, CLIENTS + 1]
    assert served.predict(0, x.numpy()).shape == (4,)
