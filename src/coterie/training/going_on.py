"""A run that has ended goes on: for more rounds, with more clients, or from an earlier round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock, Timeout
from numpy.typing import ArrayLike

from coterie.core.errors import CoterieError
from coterie.data.federate import with_validation
from coterie.data.federation import Federation
from coterie.data.membership import identity_without, key_of
from coterie.layers.privacy import check_unchanged
from coterie.training import checkpoint, lineage
from coterie.training.build import build_addition, build_data, build_model
from coterie.training.checks import check_fit
from coterie.training.config import RunConfig, read_file
from coterie.training.early_stopping import EarlyStopping
from coterie.training.going_back import go_back, round_of, saves_of
from coterie.training.predict import as_federation
from coterie.training.run_directory import PATIENCE, read_history
from coterie.training.settings import Settings
from coterie.training.status import LOCK

Clients: TypeAlias = Federation | Sequence[tuple[ArrayLike, ...]]
TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".npz": "npz"}


@dataclasses.dataclass(frozen=True)
class Change:
    """What is different when a run goes on."""

    more: int | None = None  # rounds after those that are done
    new: Path | None = None  # data of clients to add: a file in the form of the run's own, or a YAML file with `data:`
    back_to: int | None = None  # a round

    @property
    def any(self) -> bool:
        """Whether anything is."""
        return self != Change()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else works on this run meanwhile."""
    lock = FileLock(path / LOCK, timeout=PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        raise CoterieError(f"{path}: another process is working on this run", code="run-locked") from None
    except OSError as error:
        raise CoterieError(f"{path}: cannot be written ({error.strerror})", code="disk-write") from None
    try:
        yield
    finally:
        (path / LOCK).unlink(missing_ok=True)
        lock.release()


def prepared(path: Path, config: RunConfig, change: Change, say: Callable[[str], None]) -> RunConfig:
    """Change a run directory so that resuming it with the configuration returned goes on as asked."""
    with locked(path):
        if change.back_to is not None:
            go_back(path, change.back_to, say)
            config = dataclasses.replace(config, rounds=change.back_to)
        config = dataclasses.replace(config, rounds=rounds_of(path, config.rounds, change.more))
        check_not_stopped(path, config.settings)
        if change.new is not None:
            tree = data_of(change.new, config)
            began = build_data(config)
            data = lineage.applied(lineage.read(path), began, partial(build_addition, config))
            joined = lineage.added_to(data, build_addition(config, tree))
            check_fit(build_model(config, began), joined)
            write_addition(path, data, joined, tree)
            say(f"{len(joined) - len(data)} clients added, with the ids {len(data)} to {len(joined) - 1}")
    return config


def rounds_of(path: Path, rounds: int, more: int | None) -> int:
    """How many rounds a run has, if `more` follow those that are done."""
    if more is None:
        return rounds
    if more < 1:
        raise CoterieError(f"more: {more}; expected a number of rounds above 0", code="argument-invalid")
    saves = saves_of(path)
    return more + (round_of(saves[-1]) if saves else 0)


def check_not_stopped(path: Path, settings: Settings) -> None:
    """A run that early stopping has ended would end again at once."""
    saves = saves_of(path)
    done = round_of(saves[-1]) if saves else 0
    if done < settings.rounds and EarlyStopping(settings, read_history(path, done)).now:
        raise CoterieError(
            f"{path}: stopped after round {done}, since its validation loss had not improved for {settings.stop_after} "
            "rounds, and would stop again at once; allow more (stop_after=50), or none (stop_after=null)",
            code="option-conflict",
        )


def data_of(new: Path, config: RunConfig) -> dict[str, Any]:
    """The data of new clients as a configuration names it."""
    if new.suffix in (".yaml", ".yml"):
        found = read_file(new).get("data")
        if not isinstance(found, dict | str):
            raise CoterieError(
                f"{new}: has no key `data` that says where the new clients' data is", code="config-missing-key"
            )
        return {"name": found} if isinstance(found, str) else found
    own = dict(config.dump()["data"])
    kind = own["name"] if new.is_dir() else TABLES.get(new.suffix)
    if kind is None:
        raise CoterieError(
            f"{new}: expected a file in the form of the run's own data ({', '.join(sorted(TABLES))}), or a YAML file "
            "with the key `data`",
            code="data-file-format",
        )
    if kind == own["name"] or {kind, own["name"]} == {"csv", "parquet"}:
        return own | {"name": kind, "path": str(new)}
    return {"name": kind, "path": str(new)}


def write_addition(path: Path, data: Federation, joined: Federation, tree: Mapping[str, Any] | None) -> None:
    """Write down that a run has these clients from now on. data: the run's own until now."""
    check_unchanged(
        path, read_file(path / "config.yaml"), "take in more clients: how they join its clusters is not accounted for"
    )
    saves = saves_of(path)
    if not saves:
        raise CoterieError(
            f"{path}: has no checkpoint yet, so there is nothing to go on from; start a run with all clients",
            code="checkpoint-missing",
        )
    history = lineage.read(path)
    saved = identity_without(checkpoint.belongs_of(saves[-1])["data"], history.forgotten)
    known = {key_of(saved), *(one.key for one in history.added)}
    if key_of(data.identity()) not in known:
        raise CoterieError(
            f"{path}: the run's own data has changed since: it was {saved}, it is {data.identity()}",
            code="data-changed",
        )
    history = history.of(data)
    addition = lineage.Addition(
        round_of(saves[-1]), len(joined), key_of(joined.identity()), None if tree is None else dict(tree)
    )
    dataclasses.replace(history, added=(*history.added, addition)).write_additions(path)


def joined_with(data: Federation, new: Clients, settings: Settings) -> Federation:
    """The data of a run and that of new clients, given in Python."""
    held = with_validation(as_federation(new, data), settings.validation, settings.seed)
    return lineage.added_to(data, held)
