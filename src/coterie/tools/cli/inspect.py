"""`coterie inspect`: are clients alike, or do they form clusters? One round of half-updates, and nothing is trained."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.tools.cli.options import AsJson, Trust, Words

if TYPE_CHECKING:
    from coterie.insight.inspect import Inspection, Place
    from coterie.training.config import RunConfig

ROWS = 20  # clusters in the table
NAMED = 3  # clients in a cell of it


def inspect(
    words: Words = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Compare labels and inputs of the clusters too; this shows them.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the dendrogram and the risk curve.")
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Say whether clients are alike or form clusters, how many, how sure that is, and what follows.

    Takes the words of `coterie run`. Every client trains briefly on two halves of its data; nothing is kept.

    Example: coterie inspect data.name=csv data.path=visits.csv data.client=hospital data.y=outcome
    """
    from rich.console import Console

    from coterie.core.registry import Consent
    from coterie.data.download import fetch_for
    from coterie.tools.cli.data import progress
    from coterie.training.config import read, split_words

    if html is not None:
        from coterie.tools.report.figures_style import plotly

        plotly()  # told before anything is computed
    config = read(*split_words(words or []), consent=Consent(frozenset(trust or ())))
    fetch_for(config.data, partial(progress, Console(stderr=True, quiet=as_json)))
    found = _inspected(config, explain, as_json)
    show(found, command("run", words or [], found), html, as_json)


def _inspected(config: RunConfig, explain: bool, quiet: bool) -> Inspection:
    from rich.console import Console

    from coterie.insight.inspect import inspect_clients
    from coterie.methods.fedavg import FedAvg
    from coterie.training.assembly import assemble
    from coterie.training.build import build_data, build_model
    from coterie.training.execute import engine_request

    stderr = Console(stderr=True, quiet=quiet)

    def say(line: str) -> None:
        stderr.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    federation = build_data(config)
    say(federation.describe())
    model = build_model(config, federation)
    request = engine_request(config)
    method = FedAvg(local=config.local)
    with assemble(method, model, federation, config.settings, request, say=say) as run:
        return inspect_clients(run, config.local, explain=explain)


def command(verb: str, words: Sequence[str], found: Inspection) -> tuple[str, ...]:
    """What follows, to paste: the same words with another method, the first choice first."""
    kept = [word for word in words if not word.startswith(("method.", "method="))]
    return tuple(
        shlex.join(
            ["coterie", verb, *kept, f"method.name={a.method}", *(f"method.{key}={value}" for key, value in a.settings)]
        )
        for a in found.advice
    )


def show(found: Inspection, commands: Sequence[str], html: Path | None, as_json: bool) -> None:
    """Print it, and write the page."""
    from rich.console import Console

    from coterie.insight.inspect import answer, compared

    if html is not None:
        from coterie.tools.cli.report import write_page
        from coterie.tools.report.figures_inspection import render

        write_page(html, render(found, commands))
    if as_json:
        import json

        sys.stdout.write(json.dumps(to_json(found, commands), indent=2, allow_nan=False) + "\n")
        return
    stdout = Console()

    def say(line: str) -> None:
        stdout.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    head, *rest = answer(found)
    stdout.print(head, style="bold", highlight=False, soft_wrap=True, markup=False, emoji=False)
    for line in rest:
        say(line)
    if found.verdict == "clusters":
        stdout.print(_table(found))
    for line in compared(found):
        say(line)
    say("What follows:")
    for text, advice in zip(commands, found.advice, strict=True):
        say(f"  {text}    # {advice.reason}")
    if html is not None:
        say(f"page: {html}")


def _table(found: Inspection) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("cluster", "clients", "training rows", "least margin"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("typical")
    table.add_column("doubtful")
    for cluster in range(min(found.k, ROWS)):
        members = [place for place in found.places if place.cluster == cluster]
        known = [place.margin for place in members if place.margin is not None]
        least = f"{min(known):.1f}" if known else "-"
        numbers = (str(cluster), str(len(members)), f"{sum(place.samples for place in members):,}", least)
        cells = (_names([p for p in members if p.typical]), _names([p for p in members if p.doubtful]))
        table.add_row(*numbers, *map(escape, cells))
    if found.k > ROWS:
        table.caption = f"{found.k - ROWS} more clusters: --json has them all"
    return table


def _names(places: Sequence[Place]) -> str:
    shown = ", ".join(str(place.client) if place.name is None else place.name for place in places[:NAMED])
    return (shown + (f" and {len(places) - NAMED} more" if len(places) > NAMED else "")) or "-"


def to_json(found: Inspection, commands: Sequence[str]) -> dict[str, Any]:
    """The document that `--json` promises; keys stay."""
    from coterie.insight.inspect import answer

    spread, shown, errors = found.resampled, found.variances, found.variances.errors
    return {
        "verdict": found.verdict,
        "answer": answer(found),
        "clients": found.clients,
        "measured": len(found.places),
        "k": found.k,
        "sizes": list(found.sizes),
        "r2": spread.r2,
        "r2_interval": [spread.low, spread.high],
        "resamples": [{"k": k, "share": share} for k, share in spread.counts],
        "steps": found.depth,
        "tried": [{"steps": d.steps, "k": d.k, "r2": d.r2} for d in found.depths],
        "variances": {"common": shown.common, "total": shown.total, "within": shown.within, "noise": shown.noise},
        "visible": _number(found.visible),
        "expected_error": {
            "one_model": errors.one,
            "clusters": errors.clusters,
            "personal": found.personal_error,
            "local": errors.local,
        },
        "risks": list(found.risks),
        "places": [
            {
                "client": place.client,
                "name": place.name,
                "samples": place.samples,
                "cluster": place.cluster,
                "margin": _number(place.margin),
                "runner_up": place.runner_up,
                "typical": place.typical,
                "doubtful": place.doubtful,
                "alone": place.alone,
            }
            for place in found.places
        ],
        "too_small": [_called(found, client) for client in found.small],
        "missing": [{"client": m.client, "name": m.name, "reason": m.reason} for m in found.missing],
        "commands": list(commands),
        "contrasts": None if found.contrasts is None else [_contrast(one) for one in found.contrasts],
    }


def _contrast(one: Any) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(one)


def _called(found: Inspection, client: int) -> dict[str, Any]:
    return {"client": client, "name": None if found.names is None else found.names[client]}


def _number(value: float | None) -> float | None:
    """A number that JSON has; what is infinite, it has not."""
    import math

    return value if value is not None and math.isfinite(value) else None
