"""rounds.jsonl: one line per round, and what can still be read of a damaged file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coterie.core.decoder import DecodeError, decode, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import plain_bytes
from coterie.core.metrics import Summary
from coterie.core.tables import Counted
from coterie.engines.contract import Missing
from coterie.training.events import RoundDone, ServingModel

FILE = "rounds.jsonl"
FORMAT = 3  # of a line
MEASURED = ("discrepancy", "clusterability", "client_seconds")  # of a round


def line_of(event: RoundDone) -> str:
    """A round as a line of JSON, in which NaN and infinity are null."""
    line = dataclasses.asdict(dataclasses.replace(event, fresh=None))
    del line["fresh"]
    for absent in (*line["missing"], *line["unscored"]):
        for usual in ("name", "rejected"):
            if not absent[usual]:
                del absent[usual]
    for optional in ("counted", "serves"):
        if not line[optional]:
            del line[optional]
    summary, validation = line.pop("summary") or {}, line.pop("validation")
    for scored in (summary, validation):
        if scored and scored["scores"] is None:
            del scored["scores"]
    if validation is not None:
        line["validation"] = {name: number(value) for name, value in validation.items()}
    finite = {name: number(value) for name, value in (line | summary).items()}
    return json.dumps({"format": FORMAT} | finite)


def number(value: Any) -> Any:
    """NaN and infinity are not JSON."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> dict[int, tuple[str, RoundDone]]:
    """The rounds of a run by number, as lines and as events; lines that cannot be read are left out."""
    try:
        raw = plain_bytes(path / FILE)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CoterieError(f"{path / FILE}: cannot be read ({error.strerror})", code="disk-read") from None
    found = {}
    for line in raw.split(b"\n"):
        try:
            text = line.decode("utf-8")
            event = _event(parse_json(text))
        except (DecodeError, ValueError, KeyError, TypeError):  # cut short by a crash, or damaged
            continue
        found[event.round] = (text, event)
    return {number: found[number] for number in sorted(found)}


def missing_rounds(rounds: Iterable[int], done: int) -> str | None:
    """Which of the first rounds are not among these, in words: 3, 7-9."""
    lost = sorted(set(range(1, done + 1)) - set(rounds))
    if not lost:
        return None
    starts = [r for r in lost if r - 1 not in lost]
    ends = [r for r in lost if r + 1 not in lost]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


@dataclasses.dataclass(frozen=True)
class _Line:
    """What every line has. The rest was added later, or is there only if the round was evaluated."""

    round: int
    asked: int
    answered: int
    attempts: int
    seconds: float
    missing: tuple[Missing, ...]
    unscored: tuple[Missing, ...]
    serves: ServingModel | None = None


def _event(line: Any) -> RoundDone:
    """The round that a line describes; raises DecodeError, KeyError, TypeError or ValueError if it does not."""
    found = decode(line, _Line, ignore_unknown=True)
    if found.round < 1:
        raise DecodeError("round: counted from 1")
    validation = _summary(line.get("validation") or {})
    if validation is not None and validation.loss is None:
        validation = dataclasses.replace(validation, loss=math.nan)
    measured = {key: line[key] for key in MEASURED if key in line and isinstance(line[key], int | float | None)}
    return RoundDone(
        **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)},
        **measured,
        counted=tuple(Counted(**one | {"scores": tuple(map(tuple, one["scores"]))}) for one in line.get("counted", [])),
        summary=_summary(line),
        validation=validation,
        layers={str(key): dict(said) for key, said in line["layers"].items()},
    )


def _summary(line: dict[str, Any]) -> Summary | None:
    if "loss" not in line:
        return None
    known = {f.name: line[f.name] for f in dataclasses.fields(Summary) if f.name in line}
    return Summary(**known | {"sizes": tuple(map(_whole, known["sizes"]))})


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
