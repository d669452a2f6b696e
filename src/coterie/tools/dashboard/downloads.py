"""Files that the pages offer: who is in which cluster, and the model of a cluster or of a client."""

from __future__ import annotations

import csv
import importlib.util
import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.text import cell
from coterie.tools.report.record import RunRecord
from coterie.training.result import Result

FORMATS = {"safetensors": (), "onnx": ("onnx", "onnxscript")}  # and the packages that each needs


def formats() -> list[str]:
    """Those that can be written here."""
    return [name for name, needs in FORMATS.items() if all(importlib.util.find_spec(one) for one in needs)]


def assignments(record: RunRecord) -> str:
    """A table of the clients: cluster and scores, and epsilon in a run with privacy. What is not known stays empty."""
    clients = record.clients
    if clients is None:
        raise CoterieError(f"{record.name}: has not been evaluated yet", code="run-not-evaluated")
    scores = {
        name: values
        for name in ("samples", "loss", "accuracy", "macro_f1", "rmse", "mae", "r2")
        if not np.isnan(values := getattr(clients, name)).all()
    }
    if record.epsilon:
        scores["epsilon"] = np.array([record.epsilon.get(client, np.nan) for client in clients.ids.tolist()])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["client", "name", "cluster", *scores])
    for row, client in enumerate(clients.ids.tolist()):
        numbers = [_plain(values[row]) for values in scores.values()]
        writer.writerow([client, cell(record.names.get(client, "")), int(clients.cluster[row]), *numbers])
    return out.getvalue()


def model_archive(result: Result[Any], format: str, cluster: int | None, client: int | None) -> bytes:
    """The model with all that belongs to it (how inputs are scaled, its card), as a zip file."""
    if format not in formats():
        raise CoterieError(
            f"format: '{format}'; here there are {', '.join(formats())} (onnx needs: pip install 'coterie[onnx]')",
            code="option-invalid",
        )
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        who: str | int | None = client
        if client is not None and result.known.names is not None:
            who = result.known.names[client]
        for file in result.export(Path(place), cluster=cluster, client=who, format=format).files:
            archive.write(file, file.name)
    return packed.getvalue()


def _plain(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.12g}"
