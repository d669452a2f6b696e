"""The files of a run directory without some clients: rows are deleted, texts that name them are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.files import write_durably
from coterie.core.text import parse_yaml
from coterie.data.membership import identity_without
from coterie.training import serving_file
from coterie.training.data_record import DataRecord
from coterie.training.sketches import BEFORE, SKETCH, read_sketch

MADE_AGAIN = ("report.html",)  # by a command, from the other files


@dataclass(frozen=True)
class Who:
    """The clients to forget, as files name them."""

    ids: tuple[int, ...]
    names: tuple[str, ...] = ()

    def named_in(self, text: str) -> bool:
        """Whether a sentence is about one of them."""
        numbers = "|".join(map(str, self.ids))
        return any(name in text for name in self.names) or re.search(rf"\bclients? ({numbers})\b", text) is not None


def scrub_files(path: Path, who: Who) -> None:
    """Rewrite every file but the checkpoints. Each is written whole; doing it again changes nothing."""
    for name in ("assignments.json", "clients.json", "newcomers.json"):
        _rewrite(path / name, lambda tree: _rows(tree, who))
    _rewrite(path / serving_file.FILE, lambda tree: _serving(tree, who))
    _rewrite(path / "run.json", lambda tree: _run(tree, who))
    _rewrite(path / "warnings.json", lambda tree: [text for text in tree if not who.named_in(str(text))])
    _rewrite(path / "status.json", lambda tree: _status(tree, who))
    _rewrite(path / "learning_rate.json", lambda tree: _without_ids(tree, who))
    _lines(path / "rounds.jsonl", lambda line: _round(line, who))
    _trace(path / "trace.jsonl", who)
    for name in (SKETCH, BEFORE):
        _sketch(path, name, who)
    for name in MADE_AGAIN:
        (path / name).unlink(missing_ok=True)
    for file in [
        *path.glob("*.part"),
        *(path / "checkpoints").glob("*.part"),
        *(path / "checkpoints").glob("*.damaged"),
    ]:
        file.unlink()


def _rewrite(file: Path, change: Any) -> None:
    try:
        tree = parse_json(file.read_bytes())
    except FileNotFoundError:
        return
    except DecodeError:  # damaged: nobody can read it, and it may name them
        file.unlink()
        return
    new = change(tree)
    if new != tree:
        write_durably(file, json.dumps(new, indent=1) + "\n")


def _rows(tree: Any, who: Who) -> Any:
    if isinstance(tree, dict):
        return {key: value for key, value in tree.items() if int(key) not in who.ids}
    return [row for row in tree if row["client"] not in who.ids]


def _serving(tree: Any, who: Who) -> Any:
    record = DataRecord.from_json(tree["data"])
    known = [client for client in who.ids if client < len(record)]
    return tree | {"data": json.loads(json.dumps(record.without(known).to_json()))}


def _run(tree: Any, who: Who) -> Any:
    belongs = dict(tree.get("belongs", {}))
    if "data" in belongs:
        belongs["data"] = identity_without(belongs["data"], who.ids)
    return tree | {"belongs": belongs}


def _status(tree: Any, who: Who) -> Any:
    about = str(tree.get("reason", ""))
    return {key: value for key, value in tree.items() if key != "reason" or not who.named_in(about)}


def _without_ids(tree: Any, who: Who) -> Any:
    """Lists of client ids without these."""
    if isinstance(tree, Mapping):
        return {
            key: [c for c in value if c not in who.ids] if key == "clients" else _without_ids(value, who)
            for key, value in tree.items()
        }
    return [_without_ids(one, who) for one in tree] if isinstance(tree, list) else tree


def _round(line: dict[str, Any], who: Who) -> dict[str, Any]:
    """A line of rounds.jsonl; the mean of the worst tenth may be one client's own score."""
    out = dict(line)
    for key in ("missing", "unscored"):
        out[key] = [one for one in line.get(key, []) if one["client"] not in who.ids]
    if "rejected" in line:
        out["rejected"] = [client for client in line["rejected"] if client not in who.ids]
    if line.get("worst_decile") is not None:
        out["worst_decile"] = None
    if isinstance(line.get("validation"), dict) and line["validation"].get("worst_decile") is not None:
        out["validation"] = line["validation"] | {"worst_decile": None}
    return out


def _lines(file: Path, change: Any) -> None:
    if not file.is_file():
        return
    kept = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            kept.append(json.dumps(change(parse_json(text))))
        except (DecodeError, KeyError, TypeError):  # damaged lines are not read by anyone
            continue
    write_durably(file, "".join(f"{line}\n" for line in kept))


def _trace(file: Path, who: Who) -> None:
    """trace.jsonl has a column per client, in the order of its first line."""
    if not file.is_file():
        return
    keep: list[int] = []

    def change(line: dict[str, Any]) -> dict[str, Any]:
        if "ids" in line and "cluster" not in line:
            keep[:] = [i for i, client in enumerate(line["ids"]) if client not in who.ids]
            return {"ids": [line["ids"][i] for i in keep]}
        return {
            key: [value[i] for i in keep if i < len(value)] if isinstance(value, list) else value
            for key, value in line.items()
        }

    _lines(file, change)


def _sketch(path: Path, name: str, who: Who) -> None:
    found = read_sketch(path, name)
    if found is None:
        (path / name).unlink(missing_ok=True)
        return
    keep = ~np.isin(found["ids"], who.ids)
    kept = {key: value[keep] if key != "centers" else value for key, value in found.items()}
    write_durably(path / name, safetensors.numpy.save({key: np.ascontiguousarray(v) for key, v in kept.items()}))


def still_named(path: Path, who: Who) -> list[str]:
    """The files, and the values of the configuration, in which a name is left."""
    found = []
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        content = file.read_bytes()
        if any(name.encode() in content for name in who.names if len(name) > 2):
            found.append(str(file.relative_to(path)))
    return found


def source_of(path: Path) -> str | None:
    """Where the configuration says that the clients' samples are."""
    try:
        data = parse_yaml((path / "config.yaml").read_text(encoding="utf-8")).get("data")
    except (OSError, ValueError, AttributeError):
        return None
    return str(data["path"]) if isinstance(data, dict) and "path" in data else None


def without(ids: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """Both, each once, ascending."""
    return tuple(sorted({*ids, *more}))
