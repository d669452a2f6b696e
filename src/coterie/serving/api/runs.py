"""The runs of a service by name, and how a newer state takes the place of an older one while requests go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, suggest
from coterie.network.server import load
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.problems import RequestError
from coterie.serving.api.served_run import ServedRun
from coterie.training.result import Result

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
Stamp = tuple[tuple[str, int, int], ...]  # names, times and sizes of the checkpoints


@dataclass(frozen=True)
class Named:
    """A run directory and what it is called in addresses."""

    name: str
    path: Path


def named(words: Sequence[str]) -> list[Named]:
    """NAME=DIR, or DIR, whose last part is its name."""
    found: list[Named] = []
    for word in words:
        name, sign, rest = word.partition("=")
        given = bool(sign) and NAME.fullmatch(name) is not None and not Path(word).exists()
        one = Named(name, Path(rest)) if given else Named(Path(word).resolve().name, Path(word))
        if NAME.fullmatch(one.name) is None:
            raise CoterieError(
                f"{word}: '{one.name}' cannot stand in an address; give it a name: NAME={word}", code="option-invalid"
            )
        if any(other.name == one.name for other in found):
            raise CoterieError(
                f"{word}: another run is called '{one.name}' too; give it a name: NAME={word}", code="option-conflict"
            )
        found.append(one)
    return found


class LiveRun:
    """A run directory and its newest state that could be loaded."""

    def __init__(self, path: Path, limits: ApiLimits, open_run: Callable[[Path], Result[Any]]) -> None:
        self.path, self._limits, self._open = path, limits, open_run
        self._stamp = _stamp(path)
        self.now = ServedRun(open_run(path), limits)

    @property
    def stale(self) -> bool:
        """Whether the directory has other checkpoints than those that were looked at last."""
        return _stamp(self.path) != self._stamp

    def reload(self) -> list[str]:
        """Load the directory again. Requests that have begun keep the state that they began with.

        Newcomers that were kept are admitted again; the names of those that could not be are returned.
        """
        stamp = _stamp(self.path)
        new = ServedRun(self._open(self.path), self._limits)
        lost = new.keep_again(self.now.kept)
        self._stamp, self.now = stamp, new
        return lost


class Runs:
    """All runs of a service."""

    def __init__(self, runs: Sequence[Named], limits: ApiLimits, trust: Sequence[str] = ()) -> None:
        self.limits = limits
        self.by_name: Mapping[str, LiveRun] = {
            run.name: LiveRun(run.path, limits, lambda path: load(path, trust=tuple(trust))) for run in runs
        }

    @property
    def only(self) -> LiveRun | None:
        """The run, where there is just one."""
        return next(iter(self.by_name.values())) if len(self.by_name) == 1 else None

    def find(self, name: str | None, path: str | None = None) -> tuple[str, ServedRun]:
        """The run that a request is about: named by its address, else by its body, else the only one."""
        if path is not None and name is not None and name != path:
            raise RequestError(
                f"run: '{name}', but the address says '{path}'; leave one out", code="request-invalid", field="run"
            )
        wanted = name if path is None else path
        if wanted is None and len(self.by_name) == 1:
            wanted = next(iter(self.by_name))
        if wanted is None:
            known = ", ".join(self.by_name)
            raise RequestError(f"run: required, as there are several: {known}", code="request-invalid", field="run")
        if wanted not in self.by_name:
            raise RequestError(
                f"run: there is none of the name '{wanted[:64]}'.{suggest(wanted[:64], self.by_name)}",
                code="run-not-found",
                status=404,
                field="run",
            )
        return wanted, self.by_name[wanted].now


def _stamp(path: Path) -> Stamp:
    found = []
    for file in sorted((path / "checkpoints").glob("round-*.safetensors")):
        try:
            about = file.stat()
        except OSError:
            continue  # removed in the meantime
        found.append((file.name, about.st_mtime_ns, about.st_size))
    return tuple(found)
