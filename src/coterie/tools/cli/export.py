"""`coterie export`: a trained model as a file that others use without this library, and its model card."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError
from coterie.core.text import as_written
from coterie.tools.cli.options import AsJson, Trust

if TYPE_CHECKING:
    from coterie.training.exported import ExportedModel
    from coterie.training.result import Result


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
