"""`coterie bench run`: where a round's time goes, and which engine would be faster."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.core.errors import CoterieError
from coterie.tools.cli.options import AsJson, Words

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.training.config import RunConfig
    from coterie.training.engine_cost import EngineCost
    from coterie.training.settings import Settings


def run(
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

    Example: coterie bench run my.yaml method.name=ifca --rounds 5
    """
    from functools import partial

    from rich.console import Console

    from coterie.data.download import fetch_for
    from coterie.tools.cli.data import progress
    from coterie.training.build import build
    from coterie.training.config import read, split_words
    from coterie.training.engine_cost import candidates, compared, measure

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
    import dataclasses

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
