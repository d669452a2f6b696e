"""`coterie clusters`, `assign` and `predict`: a finished run at work, without its training data."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError
from coterie.core.text import as_written, counted
from coterie.tools.cli.options import AsJson, Trust

if TYPE_CHECKING:
    from coterie.serving.assign import Placement, Placements
    from coterie.training.result import Result

SHOWN = 30  # newcomers in the table; --csv and --json have all
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a row per client to this file.")]
Data = Annotated[Path, typer.Option("--data", metavar="FILE", help="New rows: a csv, parquet or npz file.")]
Labels = Annotated[str | None, typer.Option("--y", metavar="COLUMN", help="Labels, where not called as in training.")]
ClientColumn = Annotated[
    str | None, typer.Option("--client-column", metavar="COLUMN", help="Clients, where not called as in training.")
]
Level = Annotated[
    float, typer.Option("--level", help="Of newcomers that fit, so many may be said to fit none of the clusters.")
]


def clusters(run: RunDirectory, csv: Csv = None, trust: Trust = None, as_json: AsJson = False) -> None:
    """Say who is where: sizes, scores, nearest clusters, typical and doubtful clients. It needs no training data.

    Example: coterie clusters runs/a --csv clients.csv
    """
    from coterie.serving.cluster_report import clusters as found_clusters
    from coterie.serving.cluster_words import KINDS, table
    from coterie.serving.table_files import open_table

    found = found_clusters(run, trust=tuple(trust or ()))
    if csv is not None:
        with open_table(csv, KINDS) as writer:
            writer.add(table(found))
    if as_json:
        _print_json(dataclasses.asdict(found) | {"answer": str(found).splitlines()})
        return
    typer.echo(str(found))


def assign(
    run: RunDirectory,
    data: Data,
    csv: Csv = None,
    y: Labels = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="All rows are of one new client, called this.")
    ] = None,
    client_column: ClientColumn = None,
    level: Level = 0.01,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Put clients never seen into the clusters of a run, by the method's own rule: confidence, and none of these.

    Example: coterie assign runs/a --data new.csv --csv places.csv
    """
    from coterie.serving.assign import assign as assigned

    found = assigned(_loaded(run, trust), data, out=csv, y=y, client=client_column, newcomer=client, level=level)
    if as_json:
        _print_json(
            {"method": found.method, "clustered": found.clustered}
            | {"placements": [dataclasses.asdict(one) | {"none_fits": one.none_fits} for one in found]}
        )
        return
    _print_places(found)


def predict(
    run: RunDirectory,
    data: Data,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The predictions: a csv or parquet file.")],
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="All rows are of this client of the run.")
    ] = None,
    cluster: Annotated[
        int | None, typer.Option("--cluster", metavar="K", help="Predict all rows by the model of this cluster.")
    ] = None,
    y: Labels = None,
    client_column: ClientColumn = None,
    level: Level = 0.01,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a file by the models of their clients; clients never seen are placed first, by their labels.

    Example: coterie predict runs/a --data new.csv --out predictions.csv
    """
    from coterie.serving.predict_table import predict_table

    if client is not None and cluster is not None:
        raise CoterieError("--client and --cluster: give one of them", code="option-conflict")
    result = _loaded(run, trust)
    found = predict_table(
        *(result, data, out),
        client=None if client is None else as_written(result.known.names, client),
        cluster=cluster,
        y=y,
        client_column=client_column,
        level=level,
    )
    if as_json:
        _print_json({"rows": found.rows, "out": str(out)})
        return
    typer.echo(f"{counted(found.rows, 'row')} predicted: {out}")


def _loaded(run: Path, trust: list[str] | None) -> Result[Any]:
    from coterie.network.server import load

    return load(run, trust=tuple(trust or ()))


def _print_places(found: Placements) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    metric = "accuracy" if any(one.accuracy is not None for one in found) else "loss"
    for name in ("client", "cluster", "confidence", metric, "cluster's", "p_value", "samples", ""):
        shown.add_column(name, justify="left" if name in ("client", "") else "right")
    for one in found.placements[:SHOWN]:
        score = one.accuracy if metric == "accuracy" else one.loss
        of_both = ("-" if s is None else f"{s:.1%}" if metric == "accuracy" else f"{s:.4g}" for s in (score, one.usual))
        shown.add_row(
            one.client,
            "-" if one.cluster is None else str(one.cluster),
            "-" if one.confidence is None else f"{one.confidence:.3f}",
            *of_both,
            "-" if one.p_value is None else f"{one.p_value:.2g}",
            str(one.samples) if one.samples else "-",
            _remark(one),
        )
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    console.print(shown)
    if len(found) > SHOWN:
        console.print(f"... and {len(found) - SHOWN} more; --csv has all")
    if any(one.far_below and not one.none_fits for one in found):
        console.print(
            "far below: its accuracy, under the mean of its cluster's clients by 10 points and two standard errors; "
            "clients of this cluster differ as much"
        )
    console.print(str(found))


def _remark(one: Placement) -> str:
    if one.known:
        return "of the run"
    if one.problem:
        return one.problem
    if one.none_fits:
        return "none of these" + ("" if one.nearest is None else f" (nearest {one.nearest})")
    return "far below" if one.far_below else ""


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
