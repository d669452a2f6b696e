"""rounds.jsonl: one line per round, and what can still be read of a damaged file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coterie.core.aggregation import Defence
from coterie.core.decoder import DecodeError, decode, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import plain_bytes
from coterie.core.metrics import Summary
from coterie.engines.contract import Missing
from coterie.training import round_format
from coterie.training.events import RoundDone, ServingModel
from coterie.training.privacy.ledger import Spent

FILE = "rounds.jsonl"
MEASURED = ("discrepancy", "clusterability", "bytes_down", "bytes_up", "client_seconds", "update_norm")  # of a round


def line_of(event: RoundDone) -> str:
    """A round as a line of JSON, in which NaN and infinity are null."""
    line = dataclasses.asdict(dataclasses.replace(event, fresh=None))
    del line["fresh"]
    for absent in (*line["missing"], *line["unscored"]):
        if absent["name"] is None:
            del absent["name"]
    for optional in ("counted", "privacy", "defence", "serves"):
        if not line[optional]:
            del line[optional]
    if "privacy" in line:
        line["privacy"] = line["privacy"] | {
            "epsilon": number(line["privacy"]["epsilon"]),
            "clients": [(number(epsilon), count) for epsilon, count in line["privacy"]["clients"]],
        }
    summary, validation = line.pop("summary") or {}, line.pop("validation")
    for scored in (summary, validation):
        if scored and scored["scores"] is None:
            del scored["scores"]
    if validation is not None:
        line["validation"] = {name: number(value) for name, value in validation.items()}
    finite = {name: number(value) for name, value in (line | summary).items()}
    return json.dumps({"format": round_format.FORMAT} | finite)


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
    rejected: tuple[int, ...] = ()
    defence: Defence | None = None
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
    measured["clusterability"] = round_format.clusterability(line)
    return RoundDone(
        **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)},
        **measured,
        counted=round_format.counted(line),
        summary=_summary(line),
        validation=validation,
        privacy=_spent(line.get("privacy")),
    )


def _spent(found: Any) -> Spent | None:
    """What privacy had cost by then; an infinite epsilon is null in the line."""
    if found is None:
        return None
    clients = tuple((math.inf if one is None else float(one), _whole(many)) for one, many in found["clients"])
    epsilon = math.inf if found["epsilon"] is None else float(found["epsilon"])
    return Spent(**found | {"epsilon": epsilon, "clients": clients})


def _summary(line: dict[str, Any]) -> Summary | None:
    if "loss" not in line:
        return None
    known = {f.name: line[f.name] for f in dataclasses.fields(Summary) if f.name in line}
    return Summary(**known | {"sizes": tuple(map(_whole, known["sizes"]))})


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
