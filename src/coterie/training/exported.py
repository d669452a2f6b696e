"""What an export has written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.core.settings import explained


@explained
@dataclass(frozen=True)
class ExportedModel:
    """A model in a file that others use without this library."""

    path: Path
    format: str  # onnx, safetensors or torch
    cluster: int | None
    client: str | None  # where it is a client's model
    files: tuple[Path, ...]  # the model, what belongs beside it, its card
    difference: (
        float | None
    )  # the largest from what the library predicts; None where nothing that reads it is installed
    checked_by: str  # what has read it
