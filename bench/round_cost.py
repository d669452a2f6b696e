"""Where a round's time goes, on every engine of this machine, and which would be faster: `python bench/round_cost.py`.

Each engine does the configuration's own rounds, all of them evaluated; the first round is left out, in which memory is
allocated and code is loaded.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.core.compute import cores
from coterie.core.errors import CoterieError
from coterie.engines.choose import Sizes, chosen, local_of
from coterie.engines.contract import Engine, idle_seconds
from coterie.tools.cli.options import AsJson, Words
from coterie.training.assembly import EngineRequest, assemble
from coterie.training.build import Components, build
from coterie.training.config import RunConfig, read, split_words
from coterie.training.events import Event, RoundDone, RunStarted
from coterie.training.execute import engine_request
from coterie.training.loop import train
from coterie.training.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class EngineCost:
    """Seconds on one engine: medians over rounds."""

    name: str
    workers: int | None  # processes
    start: float  # until the first round: processes are started, code is loaded
    clients: float  # of a round: training and scoring, as the server sees it
    server: float  # of a round: clustering, means, making of tasks
    evaluation: float  # of one evaluation
    waiting: float  # of clients and evaluation together: a process has nothing to do while others still work

    @property
    def label(self) -> str:
        """The engine, as in messages."""
        many = "" if self.workers is None else f", {self.workers} process{'' if self.workers == 1 else 'es'}"
        return f"{self.name}{many}"

    def whole_run(self, settings: Settings) -> float:
        """About how long a run takes with these settings."""
        evaluations = sum(settings.evaluates(t) for t in range(settings.rounds))
        return self.start + settings.rounds * (self.clients + self.server) + evaluations * self.evaluation


def configured(config: RunConfig, made: Components) -> EngineRequest:
    """The engine that the configuration comes to: what it names, or what `auto` chooses."""
    asked = engine_request(config)
    request = dataclasses.replace(asked, compute=asked.compute.resolved())
    sizes = Sizes(config.settings.clients_per_round(len(made.federation)), config.rounds)
    parts = (made.model, made.federation, local_of(made.method), sizes, None, request.compute)
    choice = chosen(str(config.engine.name), request.workers, *parts)
    if choice is not None:
        return dataclasses.replace(request, engine=choice.name, workers=choice.workers)
    workers = request.workers or cores()
    return request if request.engine == "sequential" else dataclasses.replace(request, workers=workers)


def candidates(config: RunConfig, made: Components, names: Sequence[str] = ()) -> list[EngineRequest]:
    """The configured engine first, then the others of this machine; names: only these, and the configured one."""
    first = configured(config, made)
    many = min(config.engine.workers or cores(), config.settings.clients_per_round(len(made.federation)))
    known = ("sequential", "batched", "workers")
    if unknown := [name for name in names if name not in known]:
        raise CoterieError(f"--engine: {unknown[0]}; one of {', '.join(known)}", code="option-invalid")
    found = [("sequential", None), ("batched", 1), ("workers", many), ("batched", many)]
    single = many == 1 or first.compute.accelerated
    others = [
        dataclasses.replace(first, engine=name, workers=workers)
        for name, workers in dict.fromkeys(found)
        if (not names or name in names) and not (single and (name == "workers" or workers not in (None, 1)))
    ]
    return [first, *(one for one in others if (one.engine, one.workers) != (first.engine, first.workers))]


def measure(made: Components, settings: Settings, request: EngineRequest, rounds: int) -> EngineCost:
    """So many rounds on one engine, and one before them that does not count."""
    assert isinstance(request.engine, str)
    began = time.perf_counter()
    short = dataclasses.replace(settings, rounds=rounds + 1, evaluate_every=1, stop_after=None)
    with assemble(made.method, made.model, made.federation, short, request) as run:
        clock = _Clock(run.engine)
        train(dataclasses.replace(run, listeners=(clock.hear,)))
    counted = clock.rounds[1:]
    parts = (statistics.median(values) for values in zip(*counted, strict=True))
    return EngineCost(request.engine, request.workers, clock.started - began, *parts)


class _Clock:
    """Listens to a run."""

    def __init__(self, engine: Engine) -> None:
        self.started = self._last = 0.0
        self.rounds: list[tuple[float, float, float, float]] = []  # clients, server, evaluation, waiting
        self._engine, self._idle = engine, 0.0

    def hear(self, event: Event) -> None:
        """A round is told when it was evaluated: what passed beyond its own seconds is the evaluation."""
        now, idle = time.perf_counter(), idle_seconds(self._engine)
        if isinstance(event, RunStarted):
            self.started = now
        elif isinstance(event, RoundDone):
            evaluation = max(now - self._last - event.seconds, 0.0)
            server = max(event.seconds - event.client_seconds, 0.0)
            self.rounds.append((event.client_seconds, server, evaluation, idle - self._idle))
        self._last, self._idle = now, idle


def compared(costs: Sequence[EngineCost], settings: Settings) -> Iterator[str]:
    """The configured engine, which is the first, against the fastest of the whole run."""
    first, best = costs[0], min(costs, key=lambda cost: cost.whole_run(settings))
    mine, least = first.whole_run(settings), best.whole_run(settings)
    rounds = f"{settings.rounds} round{'' if settings.rounds == 1 else 's'}"
    yield f"this configuration runs on {first.label}: about {mine:.3g} s for {rounds}"
    if best is first:
        yield "none of the others is faster" if len(costs) > 1 else "no other engine was tried"
        return
    yield f"{best.label} would be {mine / least:.2f} times as fast: about {least:.3g} s"
    set_workers = "" if best.workers is None else f" engine.workers={best.workers}"
    yield f"to use it: engine.name={best.name}{set_workers}"


# ------------------------------------------------------------------------------------------------ the command line


def main(
    words: Words = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="How many rounds per engine; one more is done and not counted.")
    ] = 3,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="sequential, batched or workers, beside the configured one; repeatable. All by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Where a round's time goes (clients, server, evaluation, waiting), and which engine would be faster.

    Example: python bench/round_cost.py my.yaml method.name=ifca --rounds 5
    """
    from functools import partial

    from rich.console import Console

    from coterie.data.download import fetch_for
    from coterie.tools.cli.data import progress

    file, changes = split_words(words or [])
    config, stderr = read(file, changes), Console(stderr=True, quiet=as_json)
    if config.engine.name == "ray":
        raise CoterieError("engine.name: ray is not measured here; see docs/ray.md", code="config-conflict")
    fetch_for(config.data, partial(progress, stderr))
    made, settings = build(config), config.settings
    costs: list[EngineCost] = []
    for request in candidates(config, made, engine or ()):
        stderr.print(f"{request.engine}{'' if request.workers is None else f' ({request.workers})'} ...", style="dim")
        costs.append(measure(made, settings, request, rounds))
    if as_json:
        sys.stdout.write(json.dumps(as_document(config, settings, rounds, costs), indent=2) + "\n")
        return
    stdout = Console()
    title = f"{config.method.name}, {config.model.name}, {config.data.name}; seconds, median of {rounds} rounds"
    stdout.print(title, highlight=False, soft_wrap=True)
    stdout.print(table(costs, settings))
    for line in compared(costs, settings):
        stdout.print(line, highlight=False, soft_wrap=True)


def table(costs: Sequence[EngineCost], settings: Settings) -> Table:
    """A row per engine, the configured one first."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column("engine", no_wrap=True)
    for head in ("start", "clients", "server", "evaluation", "waiting", "whole run"):
        made.add_column(head, justify="right", no_wrap=True)
    for cost in costs:
        parts = (cost.start, cost.clients, cost.server, cost.evaluation, cost.waiting, cost.whole_run(settings))
        made.add_row(cost.label, *(f"{part:.3g}" if part >= 0.0005 else "0" for part in parts))
    return made


def as_document(config: RunConfig, settings: Settings, rounds: int, costs: Sequence[EngineCost]) -> dict[str, object]:
    """For programs: seconds of a round on every engine, the configured one first."""
    best = min(costs, key=lambda cost: cost.whole_run(settings))
    return {
        "method": config.method.name,
        "model": config.model.name,
        "data": config.data.name,
        "rounds": rounds,
        "engines": [dataclasses.asdict(cost) | {"whole_run": cost.whole_run(settings)} for cost in costs],
        "fastest": {"name": best.name, "workers": best.workers},
        "times_as_fast": costs[0].whole_run(settings) / best.whole_run(settings),
    }


if __name__ == "__main__":
    try:
        typer.run(main)
    except CoterieError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
