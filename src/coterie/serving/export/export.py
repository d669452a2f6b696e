"""Export a trained model: written, checked against the library, and put in its place only if it is right."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from coterie.core.errors import CoterieError, suggest
from coterie.core.files import writing
from coterie.serving.export.description import describe
from coterie.serving.export.formats import ENDINGS, Format, graph_dtype, need_onnx, write
from coterie.serving.export.graph import as_graph
from coterie.serving.export.parity import check
from coterie.serving.export.selection import Selected, select, select_all
from coterie.serving.model_card import Subject, card_of, model_card
from coterie.training.exported import ExportedModel
from coterie.training.result import Result

ELSEWHERE = "make room, or choose another place with --out"


def export(
    result: Result[Any],
    path: str | Path,
    *,
    cluster: int | None = None,
    client: int | str | None = None,
    format: str | None = None,
) -> ExportedModel:
    """Write the model of a cluster or of a client; see `Result.export`."""
    kind = format_of(format, Path(path))
    chosen = select(result, cluster, client)
    directory, name = place_of(Path(path), chosen.name, kind)
    (made,) = _write_all(result, [chosen], directory, [name], kind)
    return made


def export_clusters(result: Result[Any], directory: str | Path, *, format: str | None = None) -> list[ExportedModel]:
    """Write the model of every cluster that has clients, or of every client where each has its own: all, or none."""
    kind = format_of(format, None)
    chosen = select_all(result)
    return _write_all(result, chosen, Path(directory), [one.name + ENDINGS[kind] for one in chosen], kind)


def write_cards(result: Result[Any], directory: Path, clusters: Sequence[int]) -> list[Path]:
    """Write model cards without models, as cluster-K.md; of models that lie there already, where they do."""
    texts = {}
    for cluster in clusters:
        beside = [file for end in ENDINGS.values() if (file := directory / f"cluster-{cluster}{end}").exists()]
        texts[f"cluster-{cluster}.md"] = model_card(result, cluster, file=beside[0].name if beside else "")
    with staged(directory) as stage:
        for name, text in texts.items():
            (stage / name).write_text(text, encoding="utf-8")
    return [directory / name for name in texts]


def format_of(format: str | None, path: Path | None) -> Format:
    """As given, or by the ending of the file; ONNX where neither says."""
    by_ending = next((kind for kind, end in ENDINGS.items() if path is not None and path.suffix == end), None)
    found = format or by_ending or "onnx"
    for known in get_args(Format):
        if known == found:
            if by_ending not in (None, known):
                raise CoterieError(
                    f"export: {path} does not end as format {known} does; write {ENDINGS[known]}",
                    code="argument-conflict",
                )
            kind: Format = known
            return kind
    raise CoterieError(f"export: unknown format '{found}'.{suggest(found, ENDINGS)}", code="argument-invalid")


def place_of(path: Path, name: str, kind: Format) -> tuple[Path, str]:
    """The directory and the name of the file: of a path that ends as the format does, or else of a directory."""
    if path.suffix == ENDINGS[kind] and not path.is_dir():
        return path.parent, path.name
    return path, name + ENDINGS[kind]


def _write_all(
    result: Result[Any], chosen: Sequence[Selected], directory: Path, names: Sequence[str], kind: Format
) -> list[ExportedModel]:
    if kind == "onnx":
        need_onnx()
    made = []
    with staged(directory) as stage:
        for one, name in zip(chosen, names, strict=True):
            made.append(_write_one(result, one, stage / name, kind))
    return [
        replace(one, path=directory / one.path.name, files=tuple(directory / file.name for file in one.files))
        for one in made
    ]


def _write_one(result: Result[Any], chosen: Selected, file: Path, kind: Format) -> ExportedModel:
    graph = as_graph(chosen.network, chosen.loss, chosen.scale, chosen.target, graph_dtype(chosen))
    said = describe(result, chosen)
    written = write(kind, graph, chosen, said, file)
    apart = None if written.read is None else check(written.read, chosen, file.name)
    card = file.with_suffix(".md")
    whole = not chosen.dtype.is_floating_point
    subject = Subject(chosen.cluster, chosen.client, chosen.clients, chosen.scale, whole)
    card.write_text(card_of(result, subject, file.name), encoding="utf-8")
    beside = [file.with_suffix(".json")] if kind == "safetensors" else []
    return ExportedModel(file, kind, chosen.cluster, said.client, (file, *beside, card), apart, written.by)


@contextlib.contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """A directory to write into; its files move to where they belong when all has gone well, and are gone if not."""
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    with writing(directory, ELSEWHERE):
        directory.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".export-", dir=directory))
    try:
        with writing(directory, ELSEWHERE):
            yield stage
            for file in sorted(stage.iterdir()):
                file.replace(directory / file.name)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        for one in made:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise
    shutil.rmtree(stage, ignore_errors=True)
