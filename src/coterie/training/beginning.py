"""How a run began to compute, from its directory: one that continues otherwise gives other digits, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import CoterieError
from coterie.core.text import parse_yaml


def recorded_arithmetic(path: Path) -> str | None:
    """Of the engine that a run began with; None where that is not known (a run of 0.1 made in Python)."""
    try:
        found = parse_json((path / "run.json").read_bytes())["arithmetic"]
    except (OSError, DecodeError, ValueError, KeyError, TypeError):
        try:
            name = parse_yaml((path / "config.yaml").read_text(encoding="utf-8"))["engine"]["name"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        found = name if name in ("batched", "ray") else "sequential"
    return str(found)


def recorded_device(path: Path) -> str:
    """On which a run began to compute its clients: the CPU, before there was a choice."""
    try:
        return str(parse_json((path / "run.json").read_bytes())["device"])
    except (OSError, DecodeError, ValueError, KeyError, TypeError):
        return "cpu"


def recorded_precision(path: Path) -> str | None:
    """In which a run began to compute; None where that is not known (a run made in Python by an earlier version)."""
    try:
        return str(parse_json((path / "run.json").read_bytes())["precision"])
    except (OSError, DecodeError, ValueError, KeyError, TypeError):
        pass
    try:
        return str(parse_yaml((path / "config.yaml").read_text(encoding="utf-8"))["precision"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_precision(path: Path, precision: str) -> None:
    """A run keeps its precision: half of it in another one would be the result of neither."""
    began = recorded_precision(path)
    if began not in (None, precision):
        raise CoterieError(
            f"{path}: the run began with precision={began} and cannot go on with {precision}; write "
            f"precision={began}, or choose another directory",
            code="checkpoint-mismatch",
        )


def began_otherwise(path: Path, arithmetic: str, device: str) -> Iterator[str]:
    """What to say of a run that continues with another arithmetic, or on another kind of device."""
    before = recorded_arithmetic(path)
    if before not in (None, arithmetic):
        yield (
            f"{path}: the run began with the arithmetic of the engine '{before}' and continues with that of "
            f"'{arithmetic}': its results will differ in the last digits from those of one engine alone"
        )
    began_on = recorded_device(path)
    if began_on.partition(":")[0] != device.partition(":")[0]:
        yield (
            f"{path}: the run began on the device '{began_on}' and continues on '{device}': its results will differ in "
            "the last digits from those of one device alone"
        )
