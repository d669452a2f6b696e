"""`coterie forget`: a client is taken out of a run. Its rows are deleted; what it gave to averages is said to stay.

forgotten.json with its id is written first: from then on the run leaves it out, whatever happens next. Then every
checkpoint and every other file is written without it. If that is interrupted, the same command ends it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie.client.contract import Memory
from coterie.core.errors import CoterieError
from coterie.core.files import check_run_files, write_durably, writing
from coterie.core.settings import explained, explained_call
from coterie.core.tables import number_of
from coterie.data.membership import identity_without, placeholder
from coterie.methods.contract import Method
from coterie.serving.forget_files import Who, scrub_files, source_of, still_named, without
from coterie.training import checkpoint, lineage
from coterie.training.build import AnyModel
from coterie.training.config import read_file
from coterie.training.evaluation import client_weights
from coterie.training.going_back import abandoned, saves_of
from coterie.training.going_on import locked
from coterie.training.lineage import without_clients
from coterie.training.loading import RunParts, parts_of

FORMAT = "coterie-forgotten-1"
STAYS = (
    "Averages that it had a part in stay as they are: the models of clusters and of all clients, the scores over all "
    "clients of earlier rounds, and the means and deviations by which inputs were standardised. To take out its part "
    "in these too, train again without it."
)


@explained
@dataclass(frozen=True)
class Forgotten:
    """What was done to forget a client; `print` shows it in words."""

    client: int
    checkpoints: int  # that were written without it
    own_clusters: tuple[int, ...]  # clusters that it was the only client of: their models were replaced
    still_named: tuple[str, ...]  # files in which its name is left, which are yours
    source: str | None  # where its samples still are
    left: int  # clients of the run now

    def __str__(self) -> str:
        lines = [
            f"Client {self.client} is forgotten: its rows, sketches and personal values are deleted from "
            f"{self.checkpoints} checkpoint{'s' * (self.checkpoints != 1)} and every other file, and rounds to come "
            f"leave it out. {self.left} clients are left, with their ids.",
        ]
        if self.own_clusters:
            which = ", ".join(map(str, self.own_clusters))
            lines.append(f"It was alone in cluster {which}: that model was its own, and is now the mean of the others.")
        lines.append(STAYS)
        if self.still_named:
            lines.append(f"Its name is still in {', '.join(self.still_named)}: change these yourself.")
        if self.source is not None:
            lines.append(f"Its samples are where they were ({self.source}); the run does not use them any more.")
        return "\n".join(lines)


@explained_call
def forget(
    run_dir: str | Path,
    client: int | str,
    *,
    method: Method[Any] | None = None,
    model: AnyModel | None = None,
    trust: Sequence[str] = (),
) -> Forgotten:
    """Take a client out of a run: delete its rows from every file, and leave it out of rounds to come.

    client: its number, or its name. method, model, trust: as in `coterie.load`. What stays is in `forgotten.json`.
    """
    path = Path(run_dir)
    check_run_files(path)
    if not (path / "config.yaml").is_file():
        raise CoterieError(f"{path}: not a run (it has no config.yaml)", code="run-not-found")
    tree = read_file(path / "config.yaml")
    if "network" in tree:
        raise CoterieError(
            f"{path}: is a run over a network, whose clients keep their own state; revoke the client's key instead: "
            "coterie certs DIR --revoke NAME",
            code="run-kind",
        )
    with locked(path), writing(path):
        places = {
            place: parts_of(place, read_file(place / "config.yaml"), method=method, model=model, trust=trust)
            for place in (path, *abandoned(path))
        }
        main = _who(places[path], client)
        found = {path: main} | {place: _same(main, client, places, place) for place in places if place != path}
        known = next((who for who in found.values() if who is not None), None)
        if known is None:
            number_of(places[path].known, client)  # raises, and says which clients there are
        assert known is not None
        done = [_forget_in(place, places[place], who) for place, who in found.items() if who is not None]
        named = tuple(still_named(path, known))
    left = len(places[path].known) - len(lineage.read(path).forgotten)
    own = {cluster for _, clusters in done for cluster in clusters}
    many = sum(checkpoints for checkpoints, _ in done)
    return Forgotten(known.ids[0], many, tuple(sorted(own)), named, source_of(path), left)


def _forget_in(place: Path, parts: RunParts, who: Who) -> tuple[int, set[int]]:
    """Forget clients in one run directory: how many checkpoints were written, and the clusters that they had alone."""
    gone = without(lineage.read(place).forgotten, who.ids)
    if len(gone) >= len(parts.known):
        raise CoterieError(f"{place}: this is its last client; delete the directory instead", code="client-invalid")
    _write(place, gone, False)
    saves = saves_of(place)
    own = {cluster for save in saves for cluster in _scrub_checkpoint(save, parts, who)}
    scrub_files(place, who)
    _write(place, gone, True)
    return len(saves), own


def _same(main: Who | None, client: int | str, places: Mapping[Path, RunParts], place: Path) -> Who | None:
    """The same client in what was abandoned, where an id may be another client's if both were added."""
    if main is None:
        return _who(places[place], client)
    if main.names:
        return _who(places[place], main.names[0])
    began = min(lineage.read(one).began or len(parts.known) for one, parts in places.items())
    return _who(places[place], main.ids[0]) if main.ids[0] < began else None


def _who(parts: RunParts, client: int | str) -> Who | None:
    """The client as one run directory knows it; None where it does not."""
    try:
        number = number_of(parts.known, client)
    except CoterieError:
        return None
    names = parts.known.names
    if names is None or names[number] == placeholder(number):
        return Who((number,))
    return Who((number,), (names[number],))


def _scrub_checkpoint(save: Path, parts: RunParts, who: Who) -> set[int]:
    """Write a checkpoint without these clients; the clusters that they had alone."""
    try:
        found = checkpoint.load(save, parts.template(), parts.method, {})
    except checkpoint.DamagedError:  # nobody can resume from it, and it may hold their rows
        save.unlink()
        return set()
    ids = torch.tensor(who.ids)
    weigh = partial(client_weights, parts.settings, parts.known)
    new = without_clients(found, ids, identity_without(found.data, who.ids), weigh)
    memory = Memory()
    memory.restore(new.memory)
    checkpoint.save(save, new.state, memory, new.round, new.belongs, new.also)
    return _own(found.state, ids)


def _own(state: Any, ids: torch.Tensor) -> set[int]:
    inner = getattr(state, "base", state)  # CAM's state has that of the method it wraps
    return set(inner.only_of(ids).tolist()) if hasattr(inner, "only_of") else set()


def _write(path: Path, ids: Sequence[int], complete: bool) -> None:
    """forgotten.json: ids only. Until it says complete, some file may still have rows of them."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"format": FORMAT, "clients": list(ids), "complete": complete, "when": when, "stays": STAYS}
    write_durably(path / lineage.FORGOTTEN, json.dumps(about, indent=1) + "\n")
