"""A model card: what a trained model is for, what it has seen, how well it does and for whom not. Markdown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.metrics import worst_decile
from coterie.core.registry import METHODS
from coterie.core.tables import number_of
from coterie.core.tasks import Evaluated
from coterie.core.text import short
from coterie.core.version import __version__
from coterie.data.columns import TableScale
from coterie.data.federation import Federation
from coterie.data.scale import Scale
from coterie.layers.privacy import words
from coterie.serving.caveats import caveats, evaluated
from coterie.serving.export.description import registered_name, rounds_of
from coterie.training.data_record import DataRecord, scale_of
from coterie.training.result import Result

PRIVACY = "none: no differential privacy was used"
NAMED = 30  # classes or columns that are listed
USES = {
    ".onnx": (
        "import numpy, onnxruntime",
        'session = onnxruntime.InferenceSession("{file}")',
        "{example}",
        "{outputs} = session.run(None, {{'inputs': x}})",
    ),
    ".pt2": (
        "import torch",
        'model = torch.export.load("{file}").module()  # as with any .pt2: only from those you trust',
        "{example}",
        "{outputs} = model(x)",
    ),
    ".safetensors": (
        "import json, pathlib, safetensors.torch",
        'said = json.loads(pathlib.Path("{beside}").read_text())  # layers, scaling, classes: docs/export.md',
        'tensors = safetensors.torch.load_file("{file}")',
    ),
    "": (
        "import coterie",
        'result = coterie.load("{run}")',
        'result.export("{name}.onnx", {which})',
        "labels = result.predict({client}, x)  # or here, without exporting",
    ),
}


@dataclasses.dataclass(frozen=True)
class Subject:
    """Whose model a card is about."""

    cluster: int | None
    client: int | None
    clients: tuple[int, ...]
    scale: Scale | None = None  # what its inputs go through
    whole: bool = False  # whether its inputs are whole numbers (words)


def model_card(
    result: Result[Any],
    cluster: int | None = None,
    *,
    client: int | str | None = None,
    file: str = "",
    look_at_data: bool = True,
) -> str:
    """The card of a cluster's model, or of a client's, as Markdown.

    file: the exported model that it lies beside. look_at_data: whether to read the training data, where it is here, to
    find doubtful clients.
    """
    if client is not None:
        number = number_of(result.known, client)
        place = int(result.assignments[number])
        subject = Subject(place if place >= 0 else None, number, (number,), *_inputs(result, number))
        return card_of(result, subject, file, look_at_data)
    used = sorted({int(c) for c in result.assignments if c >= 0})
    if cluster is None and len(used) == 1:
        cluster = used[0]
    if cluster not in used:
        raise CoterieError(
            f"model card: cluster {cluster}, but clients are in {', '.join(map(str, used))}", code="cluster-unknown"
        )
    clients = tuple(np.flatnonzero(result.assignments == cluster).tolist())
    return card_of(result, Subject(cluster, None, clients, *_inputs(result, clients[0])), file, look_at_data)


def _inputs(result: Result[Any], client: int) -> tuple[Scale | None, bool]:
    """How a client's inputs are scaled, and whether they are whole numbers: those of words are not scaled at all."""
    if not isinstance(result.known, Federation | DataRecord):
        return None, False
    scale = scale_of(result.known, client)
    return scale, scale is None


def card_of(result: Result[Any], subject: Subject, file: str = "", look_at_data: bool = True) -> str:
    """The card, part by part."""
    run = result.run_dir.resolve().name if result.run_dir is not None else "not kept"
    what = f"cluster {subject.cluster}" if subject.client is None else f"client {subject.client}"
    parts = [
        f"# Model card: {what} of run {run}",
        "\n".join(_table(("", ""), _facts(result, subject))),
        "## Scores\n\nOf each client's own test samples; every client counts the same.\n\n"
        + "\n".join(_table(("score", "mean", "sd", "worst tenth of clients", "clients"), _scores(result, subject))),
        "## Privacy spent\n\n" + _privacy(result),
        "## Use\n\n```python\n" + "\n".join(_use(result, subject, file)) + "\n```",
        "## Caveats\n\n"
        + "\n".join(f"- {text}" for text in caveats(result, subject.clients, look_at_data=look_at_data)),
        f"## Configuration\n\n```yaml\n{_configuration(result)}```",
    ]
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------------------------------------- parts


def _privacy(result: Result[Any]) -> str:
    spent = result.privacy
    if result.settings.privacy is None:
        return PRIVACY
    if spent is None:
        return "differential privacy was used; the run directory's privacy.json says what each client has paid"
    return f"{words(spent)}. The unit is a client's whole data; scores and this card are not covered"


def _facts(result: Result[Any], subject: Subject) -> Iterator[tuple[str, str]]:
    known, ids = result.known, torch.tensor(subject.clients, dtype=torch.int64)
    used = sorted({int(c) for c in result.assignments if c >= 0})
    reply = evaluated(result)
    here = torch.isin(reply.ids, ids)
    sizes = known.sizes(ids).tolist()
    yield "method", f"{registered_name(METHODS, result.method)}, {rounds_of(result)} rounds"
    yield "made by", f"coterie {__version__}"
    yield "data", known.describe()
    yield "clients", f"{len(ids)} of {len(known)}; the run has {len(used)} cluster{'s' * (len(used) != 1)}"
    if sizes:
        spread = f"{min(sizes):,} to {max(sizes):,} per client, median {statistics.median(sizes):,.0f}"
        yield "training samples", f"{sum(sizes):,} ({spread})"
        yield "test samples", f"{int(reply.n[here].sum()):,}"
    yield from _labels(result, subject)
    columns = _column_names(result, subject)
    if columns:
        yield "columns", _listed(columns)
    for column in subject.scale.columns if isinstance(subject.scale, TableScale) else ():
        if column.values is not None:
            codes = _listed([f"{value} = {code}" for code, value in enumerate(column.values)])
            yield f"codes of {column.name}", f"{codes}; -1 for any other value"
        if column.words:
            yield f"{column.name}", f"text: its words, hashed to {column.words} numbers"
        elif column.fills:
            yield f"{column.name} missing", "accepted: NaN"
    name = type(result.model.blueprint).__name__
    build = getattr(result.model.build, "func", None)
    frozen = result.model.frozen_size
    rest = f"; {frozen:,} frozen, sha256 {result.model.frozen[:16]}" if frozen else ""
    many = f"{result.model.parameters:,} trainable parameters{rest}"
    yield "network", f"{name if build is None else build}, {many}"


def _column_names(result: Result[Any], subject: Subject) -> tuple[str, ...]:
    """What a sample is made of, in the order in which an exported model takes it."""
    if isinstance(subject.scale, TableScale):
        return subject.scale.names
    return tuple(getattr(result.known, "features", None) or ())


def _labels(result: Result[Any], subject: Subject) -> Iterator[tuple[str, str]]:
    known, names = result.known, result.class_names
    if result.model.loss != "cross_entropy":
        yield "task", "regression"
        target = result.target_scale
        if target is not None:
            mean, std = (", ".join(short(v) for v in part.tolist()) for part in (target.mean, target.std))
            yield "targets", f"mean {mean}, standard deviation {std} in training; predictions are in these units"
        return
    outputs = int(getattr(known, "outputs", 0) or getattr(getattr(known, "shape", None), "outputs", 0))
    yield "task", f"classification, {outputs} classes"
    if isinstance(known, Federation) and subject.clients:
        mine = np.isin(known.train.owners(), subject.clients)
        counts = np.bincount(known.labels(known.train)[mine], minlength=outputs).tolist()
        called = names or tuple(map(str, range(len(counts))))
        yield "classes seen", _listed([f"{name} ({n:,})" for name, n in zip(called, counts, strict=True) if n])
    elif names:
        yield "classes", _listed(names)


def _scores(result: Result[Any], subject: Subject) -> Iterator[tuple[str, ...]]:
    reply = evaluated(result)
    here = torch.isin(reply.ids, torch.tensor(subject.clients, dtype=torch.int64)) & (reply.n > 0)
    for name, column, higher in _columns(reply):
        values = column[here].double().numpy()
        values = values[~np.isnan(values)]
        if not len(values):
            continue
        many, percent = len(values), name in ("accuracy", "macro-F1")
        sd = float(values.std(ddof=1)) if many > 1 else None
        numbers = (float(values.mean()), sd, worst_decile(values, higher_is_better=higher))
        yield name, *("-" if v is None else f"{100 * v:.1f} %" if percent else short(v) for v in numbers), str(many)


def _columns(reply: Evaluated) -> Iterator[tuple[str, Tensor, bool]]:
    """The scores of clients, and whether more is better."""
    if reply.mae is None:
        yield from (("accuracy", reply.accuracy, True), ("macro-F1", reply.macro_f1, True), ("loss", reply.loss, False))
        return
    found = (("RMSE", reply.rmse, False), ("MAE", reply.mae, False), ("R2", reply.r2, True))
    yield from ((name, column, higher) for name, column, higher in found if column is not None)


def _use(result: Result[Any], subject: Subject, file: str) -> list[str]:
    stem, dot, ending = file.rpartition(".")
    which = f"cluster={subject.cluster}" if subject.client is None else f"client={subject.client}"
    client = subject.client if subject.client is not None else next(iter(subject.clients), 0)
    outputs = "logits, probabilities, label" if result.model.loss == "cross_entropy" else "value"
    lines = USES.get(dot + ending, USES[""])
    made = _example(_column_names(result, subject), "int64" if subject.whole else "float32", ending == "pt2")
    run = "RUN" if result.run_dir is None else result.run_dir.name
    if ending == "onnx" and outputs == "value":
        outputs = "(value,)"
    words = {"file": file, "beside": f"{stem}.json", "example": made, "outputs": outputs, "run": run}
    words |= {"name": stem or which.replace("=", "-"), "which": which, "client": str(client)}
    return [line.format(**words) for line in lines]


def _example(columns: Sequence[str], dtype: str, torch_format: bool) -> str:
    note = f"  # one row per sample: {', '.join(columns)}" if 0 < len(columns) <= NAMED else ""
    if torch_format:
        return f"x = torch.as_tensor(samples, dtype=torch.{dtype}){note}"
    return f"x = numpy.asarray(samples, dtype=numpy.{dtype}){note}"


def _configuration(result: Result[Any]) -> str:
    """As the run directory has it, every parameter spelled out."""
    file = None if result.run_dir is None else result.run_dir / "config.yaml"
    if file is not None and file.is_file():
        return file.read_text(encoding="utf-8")
    return yaml.safe_dump(
        {"method": repr(result.method), "settings": dataclasses.asdict(result.settings)}, sort_keys=False
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |"
