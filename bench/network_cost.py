"""What a round costs on a network: real payloads to real workers, only the wire between them is worked out.

Every client has a link of `mbit` each way and `ms` of delay, and all links end in the server's own of `server_mbit`.
An exchange takes the longer of 2 x delay + a client's bytes / its rate, for the slowest client, and all bytes / the
server's rate. What clients compute is left out, and what the carrier adds (Flower looks for messages every 3 s).
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError
from coterie.core.registry import DATASETS, PARTITIONS
from coterie.data.federate import makes_clients
from coterie.engines.contract import Outcome, Visit
from coterie.network.client_state import DirectoryStore
from coterie.network.config import SIMULATED, Network
from coterie.network.engine import NetworkEngine, NoReply, Outgoing
from coterie.network.messages import VisitReply, VisitRequest, model_spec
from coterie.network.registry import ClientRegistry
from coterie.network.wire import Payload
from coterie.network.worker import ClientWorker
from coterie.training.assembly import EngineRequest, assemble
from coterie.training.build import Components, build
from coterie.training.checks import check
from coterie.training.config import RunConfig, read, split_words
from coterie.training.events import Listener
from coterie.training.loop import train
from coterie.training.result import Result
from coterie.training.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table

MEGABIT = 1e6 / 8  # bytes


@dataclass(frozen=True)
class Load:
    """Bytes that one link carries in an exchange."""

    down: int = 0
    up: int = 0

    @property
    def both(self) -> int:
        """There and back."""
        return self.down + self.up


@dataclass(frozen=True)
class Wire:
    """The links: each client's own megabits per second (either way) and delay, and the server's, which all share."""

    mbit: float = 20.0
    ms: float = 30.0
    server_mbit: float = 1000.0

    def __post_init__(self) -> None:
        for option, rate in (("--mbit", self.mbit), ("--server-mbit", self.server_mbit)):
            if not (math.isfinite(rate) and rate > 0):
                raise CoterieError(f"{option}: megabits per second above 0, not {rate}", code="option-invalid")
        if not (math.isfinite(self.ms) and self.ms >= 0):
            raise CoterieError(f"--ms: milliseconds from 0 on, not {self.ms}", code="option-invalid")

    def seconds(self, loads: Sequence[Load]) -> float:
        """How long an exchange takes that loads the links so."""
        if not loads:
            return 0.0
        slowest = 2 * self.ms / 1000 + max(load.both for load in loads) / (self.mbit * MEGABIT)
        return max(slowest, sum(load.both for load in loads) / (self.server_mbit * MEGABIT))

    def __str__(self) -> str:
        return f"{self.mbit:g} Mbit/s and {self.ms:g} ms to each client, {self.server_mbit:g} Mbit/s at the server"


@dataclass(frozen=True)
class Cost:
    """Of an exchange, or of several: one is a request to every client visited and its reply."""

    exchanges: float = 0
    messages: float = 0
    down: float = 0  # bytes
    up: float = 0
    wire_seconds: float = 0.0  # worked out
    server_seconds: float = 0.0  # measured, processor time: packing, opening, checking
    client_seconds: float = 0.0  # the same at one client, on average

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def __truediv__(self, many: int) -> Cost:
        return Cost(*(value / many for value in dataclasses.astuple(self)))


@dataclass(frozen=True, eq=False)
class LinkTrial:
    """Rounds over so many links; the evaluation after the last one is apart."""

    links: int
    compressed: bool
    parameters: int  # of the model
    round: Cost  # on average
    evaluation: Cost
    result: Result[Any] = field(repr=False)

    def added(self, plain: LinkTrial) -> float:
        """Seconds of a round that compression takes beyond the same without it: the server's and one client's."""
        mine, theirs = self.round, plain.round
        return mine.server_seconds + mine.client_seconds - theirs.server_seconds - theirs.client_seconds


def try_out(
    config: RunConfig,
    links: int,
    wire: Wire,
    *,
    rounds: int = 3,
    compress: bool = False,
    listeners: Sequence[Listener] = (),
) -> LinkTrial:
    """Train for some rounds with a client behind every link; clients are evaluated after the last one only."""
    job, settings = prepare(config, links, rounds)
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        transport = _Links(_workers(job, links, config.model.name, Path(folder)))
        registry = ClientRegistry()
        engine = NetworkEngine(transport, registry, Network(clients=links, compress=compress, patience=1))
        engine.network = model_spec(config.model, job.federation, job.model)
        meter = _Meter(engine, transport, wire)
        meter.wait()
        request = EngineRequest(meter)
        with assemble(job.method, job.model, registry, settings, request, listeners=listeners) as ready:
            result = train(ready)
    return LinkTrial(links, compress, job.model.size, meter.training / rounds, meter.looking, result)


# ----------------------------------------------------------------------------------------------------- what is run


def prepare(config: RunConfig, links: int, rounds: int) -> tuple[Components, Settings]:
    """Everything that is run, checked: the configuration's data spread over as many clients as there are links."""
    for name, number in (("links", links), ("rounds", rounds)):
        if number < 1:
            raise CoterieError(f"--{name}: at least 1, not {number}", code="option-invalid")
    usual = Settings()
    for key in SIMULATED:
        if getattr(config, key) != getattr(usual, key):
            raise CoterieError(
                f"{key}: is for simulations; for links leave it at {getattr(usual, key)}", code="config-conflict"
            )
    settings = dataclasses.replace(config.settings, rounds=rounds, evaluate_every=rounds, evaluate_last=1)
    job = build(spread_over(config, links))
    if len(job.federation) != links:
        raise CoterieError(
            f"data: {len(job.federation)} clients for {links} links: {job.federation.describe()}", code="data-shape"
        )
    check(job.model, job.federation, settings)
    return job, settings


def spread_over(config: RunConfig, clients: int) -> RunConfig:
    """The same configuration with so many clients."""
    tree, partition, data = config.dump(), config.data.partition, DATASETS.find(config.data.name, config.consent)
    if partition is not None and _counts_clients(PARTITIONS.find(partition.name, config.consent)):
        tree["data"]["partition"]["clients"] = clients
    elif partition is None and _counts_clients(data):
        tree["data"]["clients"] = clients
    elif partition is None and not makes_clients(data):
        tree["data"]["partition"] = {"name": "natural", "clients": clients}  # what no partition means, so many of them
    else:
        what = f"'{config.data.name}'" + ("" if partition is None else f" by '{partition.name}'")
        raise CoterieError(
            f"data.partition: {what} has as many clients as it has, it cannot be spread over {clients} links; "
            "take a partition with a number of clients, for example data.partition.name=iid",
            code="partition-not-applicable",
        )
    return read(None, base=tree)


def _counts_clients(made: Any) -> bool:
    return dataclasses.is_dataclass(made) and "clients" in {f.name for f in dataclasses.fields(made)}


def _workers(job: Components, links: int, model: str, folder: Path) -> list[_TimedWorker]:
    """A worker for every client. Names sort as numbers do, so that clients keep their ids."""
    names = [f"client-{i:0{len(str(links))}d}" for i in range(links)]
    parts = [job.federation.take([i]) for i in range(links)]
    return [
        _TimedWorker(name, lambda part=part: part, DirectoryStore(folder / name), (model,))  # type: ignore[misc]
        for name, part in zip(names, parts, strict=True)
    ]


# ------------------------------------------------------------------------------------------------- how it is measured


@dataclass
class _TimedWorker(ClientWorker):
    """A worker that tells its own work (training, scoring) from the handling of messages."""

    working: float = 0.0  # seconds

    def _carry_out(self, request: VisitRequest) -> VisitReply:
        began = time.thread_time()
        try:
            return super()._carry_out(request)
        finally:
            self.working += time.thread_time() - began


@dataclass
class _Links:
    """A transport whose nodes are workers in this process: a message is answered when it is sent."""

    workers: Sequence[_TimedWorker]
    loads: list[Load] = field(default_factory=list)
    away: float = 0.0  # seconds that were not the server's
    working: float = 0.0  # of these: in which clients did what they were asked
    _ready: dict[str, Payload | NoReply] = field(default_factory=dict)
    _tickets: int = 0

    def begin(self) -> None:
        """Count from zero."""
        self.loads, self.away, self.working = [], 0.0, 0.0

    def connected(self) -> Mapping[int, str]:
        """See `Transport.connected`."""
        return dict.fromkeys(range(len(self.workers)), "")

    def send(self, messages: Sequence[Outgoing], keep_for: float) -> list[str | None]:
        """See `Transport.send`."""
        return [self._delivered(message) for message in messages]

    def collect(self, message_ids: Sequence[str], within: float) -> list[tuple[str, Payload | NoReply]]:
        """See `Transport.collect`."""
        return [(message_id, self._ready.pop(message_id)) for message_id in message_ids if message_id in self._ready]

    def _delivered(self, message: Outgoing) -> str:
        worker = self.workers[message.node]
        worked, began = worker.working, time.thread_time()
        answer = worker.answer(message.payload)
        self.away += time.thread_time() - began
        self.working += worker.working - worked
        self.loads.append(Load(message.payload.size, answer.size))
        self._tickets += 1
        self._ready[str(self._tickets)] = answer
        return str(self._tickets)


class _Meter:
    """The engine, with the cost of every visit written down."""

    def __init__(self, engine: NetworkEngine, transport: _Links, wire: Wire) -> None:
        self.memory, self.traffic = engine.memory, engine.traffic
        self.training = self.looking = Cost()
        self._engine, self._transport, self._wire = engine, transport, wire

    def wait(self) -> None:
        """See `WaitsForClients.wait`."""
        self._engine.wait()

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`. A client without an answer would make a round look cheaper than it is."""
        self._transport.begin()
        before, began = dataclasses.replace(self._engine.traffic), time.thread_time()
        outcome = self._engine.visit(visit)
        taken, after = time.thread_time() - began, self._engine.traffic
        if outcome.missing:
            first = outcome.missing[0]
            raise CoterieError(f"{first.who} did not answer: {first.reason}", code="no-answer")
        transport, clients = self._transport, max(len(self._transport.loads), 1)
        cost = Cost(
            exchanges=1,
            messages=after.messages - before.messages,
            down=after.down - before.down,
            up=after.up - before.up,
            wire_seconds=self._wire.seconds(transport.loads),
            server_seconds=taken - transport.away,
            client_seconds=(transport.away - transport.working) / clients,
        )
        if visit.keep:
            self.training += cost
        else:
            self.looking += cost
        return outcome

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()


# ------------------------------------------------------------------------------------------------ the command line

LINKS = (10, 30, 100)
OPTIONS = {"rounds": "--rounds", "data.partition.clients": "--links", "data.clients": "--links"}  # words for options


def main(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.yaml] [key=value ...]", help="As for `coterie run`; --links and --rounds rule."),
    ] = None,
    links: Annotated[
        list[int] | None, typer.Option(min=1, help="How many clients; repeatable. 10, 30 and 100 when not given.")
    ] = None,
    mbit: Annotated[float, typer.Option(help="Megabits per second of a client's link, either way.")] = 20.0,
    ms: Annotated[float, typer.Option(help="Milliseconds from a client to the server, or back.")] = 30.0,
    server_mbit: Annotated[float, typer.Option(help="Megabits per second at the server, for all links together.")] = (
        1000.0
    ),
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds the average is of.")] = 3,
    compress: Annotated[bool, typer.Option("--compress", help="With compressed payloads, too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")
    ] = False,
) -> None:
    """Messages, bytes and seconds of a round over simulated links: real payloads, only the wire is worked out.

    Example: python bench/network_cost.py method.name=ifca model.name=cnn local.steps=1 --links 50 --mbit 5 --compress
    """
    from functools import partial

    from rich.console import Console

    from coterie.data.download import fetch_for
    from coterie.tools.cli.data import progress

    file, changes = split_words(words or [])
    for key in (word.partition("=")[0] for word in changes):
        if key in OPTIONS:
            raise CoterieError(f"{key}: write {OPTIONS[key]} instead", code="config-conflict")
    wire, config = Wire(mbit, ms, server_mbit), read(file, changes)
    stderr, wanted = Console(stderr=True, quiet=as_json), list(dict.fromkeys(links or LINKS))
    fetch_for(spread_over(config, wanted[0]).data, partial(progress, stderr))
    for many in wanted:
        prepare(config, many, rounds)  # a mistake is told before the first minute has passed
    trials = _trials(config, wanted, wire, rounds, compress, stderr)
    if as_json:
        sys.stdout.write(json.dumps(as_document(config, wire, rounds, trials), indent=2) + "\n")
        return
    stdout = Console()
    stdout.print(f"{_title(config, trials)}; per round, mean of {rounds}", highlight=False, soft_wrap=True)
    stdout.print(table(trials))
    for line in notes(wire, trials):
        stdout.print(line, style="dim", highlight=False, soft_wrap=True)


def _trials(
    config: RunConfig, links: list[int], wire: Wire, rounds: int, compress: bool, stderr: object
) -> list[LinkTrial]:
    from rich.console import Console

    from coterie.tools.cli import console

    assert isinstance(stderr, Console)
    found = []
    for many in links:
        for packed in (False, True) if compress else (False,):
            title = f"{many} links{', compressed' if packed else ''}"
            if not stderr.is_terminal:
                stderr.print(title, highlight=False)
            with console.progress(stderr, title) as listen:
                found.append(try_out(config, many, wire, rounds=rounds, compress=packed, listeners=[listen]))
    return found


def as_document(config: RunConfig, wire: Wire, rounds: int, trials: list[LinkTrial]) -> dict[str, object]:
    """For programs: bytes and seconds of a round, and of the evaluation after the last one."""
    added = _added(trials)
    return {
        "method": config.method.name,
        "model": config.model.name,
        "parameters": trials[0].parameters,
        "data": config.data.name,
        "rounds": rounds,
        "wire": dataclasses.asdict(wire),
        "trials": [
            {
                "links": trial.links,
                "compressed": trial.compressed,
                "round": dataclasses.asdict(trial.round),
                "evaluation": dataclasses.asdict(trial.evaluation),
            }
            | ({"added_seconds": added[trial.links]} if trial.compressed else {})
            for trial in trials
        ],
    }


def table(trials: list[LinkTrial]) -> Table:
    """A row per number of links, and a second one below it where payloads were compressed, too."""
    from rich import box
    from rich.table import Table

    made, added = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)), _added(trials)
    heads = ["links", "exchanges", "messages", "MB\ndown", "MB\nup", "wire\ns", "server\ns", "client\ns"]
    for head in [*heads, *(["added\ns"] if added else [])]:
        made.add_column(head, justify="right", no_wrap=True)
    for trial in trials:
        cost = trial.round
        made.add_row(
            "zlib" if trial.compressed else str(trial.links),
            *(f"{cost.exchanges:.3g}", f"{cost.messages:,.0f}", _mega(cost.down), _mega(cost.up)),
            *(f"{cost.wire_seconds:.3f}", f"{cost.server_seconds:.3f}", f"{cost.client_seconds:.4f}"),
            *([f"{added[trial.links]:+.3f}" if trial.compressed else ""] if added else []),
        )
    return made


def notes(wire: Wire, trials: list[LinkTrial]) -> list[str]:
    """What the figures mean."""
    looked = (
        f"{trial.links} links {_mega(trial.evaluation.down + trial.evaluation.up)} MB"
        for trial in trials
        if not trial.compressed
    )
    return [
        f"links: {wire}; an exchange takes the longer of",
        "  2 x delay + a client's bytes / its rate, for the slowest client, and all bytes / the server's rate.",
        "wire s is worked out so. server s is measured: packing, opening, checking; client s: the same at one client.",
        "Left out: what clients compute, the method's own work, and what Flower adds (2 to 3 s an exchange).",
        f"Evaluation, after the last round only and no part of a round, both ways: {', '.join(looked)}.",
    ]


def _title(config: RunConfig, trials: list[LinkTrial]) -> str:
    return f"{config.method.name}, {config.model.name} of {trials[0].parameters:,} numbers, {config.data.name}"


def _added(trials: list[LinkTrial]) -> dict[int, float]:
    plain = {trial.links: trial for trial in trials if not trial.compressed}
    return {trial.links: trial.added(plain[trial.links]) for trial in trials if trial.compressed}


def _mega(size: float) -> str:
    return f"{size / 1e6:,.1f}" if size >= 1e7 else f"{size / 1e6:.3f}"


if __name__ == "__main__":
    try:
        typer.run(main)
    except CoterieError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
