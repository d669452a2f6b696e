"""`coterie bench`: what things cost on this machine and its network."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.core.errors import CoterieError
from coterie.tools.cli import bench_run

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.network.benchmark import Trial, Wire
    from coterie.training.config import RunConfig

app = typer.Typer(
    help="Say where the time of a round goes, or what it would cost over a network.", no_args_is_help=True
)

LINKS = (10, 30, 100)
OPTIONS = {"rounds": "--rounds", "data.partition.clients": "--links", "data.clients": "--links"}  # words for options


@app.callback()
def bench() -> None:
    """Say where the time of a round goes, or what it would cost over a network."""


app.command()(bench_run.run)


@app.command()
def network(
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

    Example: coterie bench network method.name=ifca model.name=cnn local.steps=1 --links 50 --mbit 5 --compress
    """
    from functools import partial

    from rich.console import Console

    from coterie.data.download import fetch_for
    from coterie.network.benchmark import Wire, prepare, spread_over
    from coterie.tools.cli.data import progress
    from coterie.training.config import read, split_words

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
) -> list[Trial]:
    from rich.console import Console

    from coterie.network.benchmark import try_out
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


def as_document(config: RunConfig, wire: Wire, rounds: int, trials: list[Trial]) -> dict[str, object]:
    """For programs: bytes and seconds of a round, and of the evaluation after the last one."""
    import dataclasses

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


def table(trials: list[Trial]) -> Table:
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


def notes(wire: Wire, trials: list[Trial]) -> list[str]:
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


def _title(config: RunConfig, trials: list[Trial]) -> str:
    return f"{config.method.name}, {config.model.name} of {trials[0].parameters:,} numbers, {config.data.name}"


def _added(trials: list[Trial]) -> dict[int, float]:
    plain = {trial.links: trial for trial in trials if not trial.compressed}
    return {trial.links: trial.added(plain[trial.links]) for trial in trials if trial.compressed}


def _mega(size: float) -> str:
    return f"{size / 1e6:,.1f}" if size >= 1e7 else f"{size / 1e6:.3f}"
