"""A run goes back to an earlier round. Nothing is lost: what came after it is moved to RUN/abandoned-1, -2, ...

Each of these is a run directory of its own, which can be loaded and compared.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from coterie.core.decoder import parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import write_durably, writing
from coterie.layers.privacy import check_unchanged
from coterie.training import checkpoint, lineage, serving_file
from coterie.training.config import read_file
from coterie.training.data_record import DataRecord

ABANDONED = "abandoned"
COPIED = (
    *("config.yaml", "run.json", "rounds.jsonl", "trace.jsonl", "sketch.safetensors", "assignments.json"),
    *("clients.json", "newcomers.json", "warnings.json", "status.json", "serving.json", "learning_rate.json"),
    *(lineage.ADDITIONS, lineage.FORGOTTEN),
)


def round_of(save: Path) -> int:
    """The round of a checkpoint: that of its name, if the file agrees."""
    checkpoint.check_name(save)
    return int(save.stem.removeprefix("round-"))


def saves_of(path: Path) -> list[Path]:
    """The checkpoints of a run directory, the oldest first."""
    return sorted((path / "checkpoints").glob("round-*.safetensors"))


def abandoned(path: Path) -> list[Path]:
    """What was moved aside when the run went back."""
    return sorted(one for one in path.glob(f"{ABANDONED}-*") if one.is_dir())


def go_back(path: Path, round: int, say: Callable[[str], None]) -> None:
    """The run as it was after this round; later rounds are moved aside. The caller holds the run's lock."""
    check_unchanged(
        path, read_file(path / "config.yaml"), "go back: what its later rounds have cost the clients is spent"
    )
    saves = {round_of(save): save for save in saves_of(path)}
    if round not in saves:
        there = ", ".join(map(str, sorted(saves))) or "none"
        raise CoterieError(
            f"{path}: has no checkpoint of round {round} to go back to; there are those of rounds {there} "
            "(from now on, keep_checkpoints=all checkpoint_every=1 keeps one of every round)",
            code="checkpoint-missing",
        )
    said = checkpoint.belongs_of(saves[round])
    later = [saves[number] for number in sorted(saves) if number > round]
    with writing(path):
        if later:
            aside = _copied(path, later)
            for save in later:  # the newest last: until then the run is as it was
                save.unlink()
            last = round_of(later[-1])
            many = f"rounds {round + 1} to {last} are" if last > round + 1 else f"round {last} is"
            say(f"back at round {round}; {many} kept in {aside}")
        history = lineage.read(path)
        known = history.clients_in(said["data"])
        if known is not None:
            _shorten(path, known, said["data"])
            kept = tuple(one for one in history.added if one.clients <= known)
            dataclasses.replace(history, added=kept).write_additions(path)
        tree = read_file(path / "config.yaml") | {"rounds": round}
        write_durably(path / "config.yaml", yaml.safe_dump(tree, sort_keys=False))


def _shorten(path: Path, clients: int, identity: str) -> None:
    """Leave clients that were added later out of serving.json."""
    file = path / serving_file.FILE
    if file.is_file():
        tree = parse_json(file.read_bytes())
        record = DataRecord.from_json(tree["data"]).first(clients, identity)
        write_durably(file, json.dumps(tree | {"data": record.to_json()}, indent=1) + "\n")


def _copied(path: Path, later: list[Path]) -> Path:
    """A run directory with all that is known now, and with the later checkpoints."""
    number = 1 + max((int(one.name.rpartition("-")[2]) for one in abandoned(path)), default=0)
    aside = path / f"{ABANDONED}-{number}"
    part = path / f".{ABANDONED}.part"
    shutil.rmtree(part, ignore_errors=True)
    (part / "checkpoints").mkdir(parents=True)
    for name in COPIED:
        if (path / name).is_file():
            shutil.copy2(path / name, part / name)
    for save in later:
        shutil.copy2(save, part / "checkpoints" / save.name)
    part.rename(aside)
    return aside
