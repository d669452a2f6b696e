"""`coterie clusters`, `assign` and `predict`: a finished run at work, without its training data."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError
from coterie.core.text import as_written, counted
from coterie.tools.cli.options import AsJson, Trust

if TYPE_CHECKING:
    from coterie.serving.assign import Placement, Placements
    from coterie.training.exported import ExportedModel
    from coterie.training.result import Result


SHOWN = 30  # newcomers in the table; --csv and --json have all
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a row per client to this file.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file where it exists.")]
Data = Annotated[Path, typer.Option("--data", metavar="FILE", help="New rows: a csv, parquet or npz file.")]
Labels = Annotated[str | None, typer.Option("--y", metavar="COLUMN", help="Labels, where not called as in training.")]
ClientColumn = Annotated[
    str | None, typer.Option("--client-column", metavar="COLUMN", help="Clients, where not called as in training.")
]
Level = Annotated[
    float, typer.Option("--level", help="Of newcomers that fit, so many may be said to fit none of the clusters.")
]


def clusters(
    run: RunDirectory,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="Say why this client is in its cluster.")
    ] = None,
    csv: Csv = None,
    overwrite: Overwrite = False,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Say who is where: sizes, scores, nearest clusters, typical and doubtful clients. It needs no training data.

    With --client: why it is in its cluster, the runner-up, its nearest clients, what distinguishes the cluster.

    Example: coterie clusters runs/a --csv clients.csv, or coterie clusters runs/a --client 3
    """
    if client is not None:
        if csv is not None:
            raise CoterieError("--client and --csv: a table is of all clients; leave one out", code="option-conflict")
        result = _loaded(run, trust)
        why = result.explain(as_written(result.known.names, client))
        if as_json:
            _print_json(dataclasses.asdict(why) | {"answer": str(why).splitlines()})
            return
        typer.echo(str(why))
        return
    from coterie.serving.cluster_report import clusters as found_clusters
    from coterie.serving.cluster_words import KINDS, table
    from coterie.serving.table_files import open_table

    _free(csv, overwrite)
    found = found_clusters(run, trust=tuple(trust or ()))
    if csv is not None:
        with open_table(csv, KINDS) as writer:
            writer.add(table(found))
    if as_json:
        _print_json(dataclasses.asdict(found) | {"answer": str(found).splitlines()})
        return
    typer.echo(str(found))


def _free(file: Path | None, overwrite: bool) -> None:
    """A file that is there may be somebody's: it is replaced only by those who say so."""
    if file is not None and file.exists() and not overwrite:
        raise CoterieError(f"{file}: exists already; remove it, or write --overwrite", code="file-exists")


def assign(
    run: RunDirectory,
    data: Data,
    csv: Csv = None,
    overwrite: Overwrite = False,
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

    _free(csv, overwrite)
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
    overwrite: Overwrite = False,
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

    _free(out, overwrite)
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


DRIFT = 3  # the exit code


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    new: Annotated[
        Path, typer.Option("--data", metavar="NEW", help="New samples: a file as the run's own data, or YAML.")
    ],
    alpha: Annotated[float, typer.Option(help="How often a watch without any drift may call one.")] = 0.01,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Test on new samples of known clients whether the clustering still fits. Exit code 0: it does, 3: drift.

    Where no client could be tested, that is an error (exit code 2).

    Example: coterie watch runs/a --data today.csv
    """
    import dataclasses
    import json
    import sys

    from coterie.core.errors import CoterieError
    from coterie.network.server import load
    from coterie.serving.watch import FEWEST
    from coterie.serving.watch import watch as test
    from coterie.training.build import build_addition
    from coterie.training.config import RunConfig, read, read_file
    from coterie.training.going_on import data_of
    from coterie.training.trust import consent_of

    result = load(run, trust=tuple(trust or ()))
    tree = read_file(run / "config.yaml")
    config = read(None, base=tree, consent=consent_of(run, trust or ())) if "data" in tree else RunConfig()
    named = data_of(new, config)
    if new.suffix not in (".yaml", ".yml"):
        named.pop("drift", None)  # of the run's own data: its periods would leave most of the new rows out
    found = test(result, build_addition(config, named), alpha=alpha)
    if as_json:
        document = dataclasses.asdict(found) | {"answer": str(found).splitlines()}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        typer.echo(str(found))
    if not any(one.samples >= FEWEST for one in found.clients):
        why = f"clients are found by the run's names (coterie clusters {run} --csv F), and need {FEWEST} samples"
        if found.left_out:
            why = f"{found.left_out:,} of its rows the run had already (or later ones); no client has {FEWEST} others"
        raise CoterieError(f"{new}: nothing could be tested; {why}", code="data-empty")
    if found.drifts:
        raise typer.Exit(DRIFT)


def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="A client's name, or its number.")],
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Take a client out of a run: delete its rows everywhere, leave it out of rounds to come, say what stays.

    Example: coterie forget runs/a 3
    """
    import dataclasses
    import json
    import sys

    from coterie.serving.forget import STAYS
    from coterie.serving.forget import forget as take_out

    found = take_out(run, as_written(_names(run), client), trust=tuple(trust or ()))
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found) | {"stays": STAYS}, indent=2) + "\n")
        return
    typer.echo(str(found))


def _names(run: Path) -> Sequence[str] | None:
    """Of the clients of this run, where they have names."""
    from coterie.training import serving_file

    said = serving_file.read(run, None)
    return None if said is None else said.data.names


class Kind(StrEnum):
    """Kinds of model files."""

    onnx = "onnx"
    safetensors = "safetensors"
    torch = "torch"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    cluster: Annotated[int | None, typer.Option(metavar="K", help="The model of this cluster.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="The models of all clusters that have clients.")] = False,
    client: Annotated[
        str | None, typer.Option(metavar="ID", help="The model that this client predicts with: its name, or number.")
    ] = None,
    format_: Annotated[
        Kind | None, typer.Option("--format", help="ONNX when not given, and the file's ending does not say.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR_OR_FILE", help="Where it goes; RUN/export when not given.")
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="Only the model card, without the model.")] = False,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as one file that others use without this library, with a model card beside it.

    Example: coterie export runs/a --cluster 2 --format onnx
    """
    import json
    import sys

    from coterie.network.server import load

    if (cluster is not None) + all_ + (client is not None) > 1:
        raise CoterieError("--cluster, --all and --client exclude one another; write one", code="option-conflict")
    if card and format_ is not None:
        raise CoterieError("--card writes no model; leave --format out", code="option-conflict")
    result = load(run, trust=tuple(trust or ()))
    place = run / "export" if out is None else out
    if card:
        paths = _cards(result, place, cluster, client)
        sys.stdout.write(json.dumps({"cards": list(map(str, paths))}, indent=2) + "\n" if as_json else _lines(paths))
        return
    made = _models(result, place, cluster, all_, client, None if format_ is None else format_.value)
    if as_json:
        sys.stdout.write(json.dumps([to_json(one) for one in made], indent=2) + "\n")
        return
    for one in made:
        typer.echo(f"{one.path} ({said_of(one)})")


def to_json(made: ExportedModel) -> dict[str, Any]:
    """The document that `--json` promises; keys stay."""
    return {
        "path": str(made.path),
        "format": made.format,
        "cluster": made.cluster,
        "client": made.client,
        "files": list(map(str, made.files)),
        "difference": made.difference,
        "checked_by": made.checked_by,
    }


def said_of(made: ExportedModel) -> str:
    """What the check has found."""
    if made.difference is None:
        return f"not checked: {made.checked_by} is not installed, pip install 'coterie[onnx]'"
    return f"checked by {made.checked_by}: differs by {made.difference:.1e} at most"


def _models(
    result: Result[Any], place: Path, cluster: int | None, all_: bool, client: str | None, format_: str | None
) -> list[ExportedModel]:
    from coterie.serving.export.export import export_clusters

    if all_:
        return export_clusters(result, place, format=format_)
    return [result.export(place, cluster=cluster, client=_client(result, client), format=format_)]


def _cards(result: Result[Any], place: Path, cluster: int | None, client: str | None) -> list[Path]:
    from coterie.serving.export.export import write_cards
    from coterie.serving.export.selection import clusters_in_use

    if client is not None:
        raise CoterieError("--card is of clusters; leave --client out", code="option-conflict")
    return write_cards(result, place, clusters_in_use(result) if cluster is None else [cluster])


def _client(result: Result[Any], client: str | None) -> int | str | None:
    return None if client is None else as_written(result.known.names, client)


def _lines(paths: list[Path]) -> str:
    return "".join(f"{path}\n" for path in paths)


def api(
    runs: Annotated[list[str], typer.Argument(metavar="[NAME=]RUN...", help="Directories of runs, with names or not.")],
    host: Annotated[str, typer.Option(help="The address to listen at; beyond this machine a token is needed.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Has the bearer token; or set COTERIE_API_TOKEN.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="A certificate, to serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    body: Annotated[int, typer.Option(min=1, help="The largest body of a request, in bytes.")] = 10_000_000,
    rows: Annotated[int, typer.Option(min=1, help="The most samples of a request.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="The time to receive a request, and to answer it.")] = 30.0,
    reload: Annotated[
        float, typer.Option(min=0.0, help="Seconds between two looks for newer checkpoints; 0: on SIGHUP only.")
    ] = 5.0,
    trust: Trust = None,
) -> None:
    """Serve trained runs over HTTP: POST /predict and /assign, GET /clusters, /healthz, /metrics, /docs.

    Example: coterie api runs/a --port 8001
    """
    _require_serve()
    if (tls_cert is None) != (tls_key is None):
        raise CoterieError("--tls-cert and --tls-key go together; give both", code="option-conflict")
    from coterie.serving.address import address_of, is_local, listen
    from coterie.serving.api.limits import ApiLimits
    from coterie.serving.api.runs import Runs, named
    from coterie.serving.api.server import Security, serve
    from coterie.serving.api.token import read_token

    token = read_token(host, token_file)
    served = Runs(named(runs), ApiLimits(body=body, rows=rows, seconds=seconds), tuple(trust or ()))
    sock = listen(host, port)
    address = address_of(sock, host)
    if tls_cert is not None:
        address = address.replace("http://", "https://")
    elif not is_local(host):
        sys.stderr.write("warning: without --tls-cert the token and the data are sent in the clear\n")
    sys.stderr.write(f"serving {', '.join(served.by_name)}: {address}docs (end it with Ctrl-C)\n")
    sys.stderr.flush()
    try:
        serve(served, sock, host, Security(token, tls_cert, tls_key), reload)
    except KeyboardInterrupt:
        sys.stderr.write("\n")


def _require_serve() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise CoterieError("coterie api needs fastapi: pip install 'coterie[serve]'", code="extra-missing") from None
