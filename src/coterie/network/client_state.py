"""Where a client keeps its state between visits (a personal model, an optimiser's state), version by version.

Every request names the version that the server last heard of. A later version (its reply was lost, or the server went
back to a checkpoint) is ignored, so that a lost or repeated visit changes nothing. Earlier versions are kept as far
back as the server may go. The high half of a version's number is the round it was written in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import safetensors
import safetensors.torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.files import make_directory, replace_durably

SHIFT = 32


def next_version(round: int, base: int | None) -> int:
    """Above every version before it."""
    return max(round << SHIFT, base or 0) + 1


def round_of(version: int) -> int:
    """The round in which a version was written."""
    return version >> SHIFT


class StateStore(Protocol):
    """The versions of a client's state in a run."""

    def read(self, run: str, version: int) -> Mapping[str, Tensor] | None:
        """The values of a version; None if they are lost."""

    def write(self, run: str, version: int, values: Mapping[str, Tensor]) -> None:
        """Keep the values of a new version."""

    def forget(self, run: str, versions: list[int]) -> None:
        """Delete versions."""

    def versions(self, run: str) -> list[int]:
        """The versions that are kept, oldest first."""

    def frozen(self, hash: str) -> Tensor | None:
        """What is frozen of a network, as received from a server (bytes); None if it never was, or is lost."""

    def keep_frozen(self, hash: str, values: Tensor) -> None:
        """Keep what a server sent of a network, for all runs to come."""


def remove_unused_versions(store: StateStore, run: str, base: int | None, since: int) -> None:
    """Delete versions that will not be needed: those after the one the server knows of, and those replaced before round
    `since`, the earliest that the server may go back to."""
    there = store.versions(run)
    never = [version for version in there if base is None or version > base]
    old = [version for version in there if version not in never and round_of(version) < since]
    store.forget(run, [*never, *old[:-1]])


FROZEN = "frozen-parts"  # a directory beside those of runs, whose names have letters and digits only


@dataclass(frozen=True)
class DirectoryStore:
    """A store on disk, which outlives the processes of client and server."""

    path: Path

    def read(self, run: str, version: int) -> Mapping[str, Tensor] | None:
        """See `StateStore.read`."""
        try:
            return safetensors.torch.load_file(self._file(run, version))
        except (OSError, safetensors.SafetensorError):
            return None

    def write(self, run: str, version: int, values: Mapping[str, Tensor]) -> None:
        """See `StateStore.write`."""
        self._save(self._file(run, version), values)

    def frozen(self, hash: str) -> Tensor | None:
        """See `StateStore.frozen`."""
        try:
            return safetensors.torch.load_file(self.path / FROZEN / f"{hash}.safetensors")["bytes"]
        except (OSError, KeyError, safetensors.SafetensorError):
            return None

    def keep_frozen(self, hash: str, values: Tensor) -> None:
        """See `StateStore.keep_frozen`."""
        self._save(self.path / FROZEN / f"{hash}.safetensors", {"bytes": values})

    def _save(self, file: Path, values: Mapping[str, Tensor]) -> None:
        part = file.with_name(file.name + ".part")
        try:
            make_directory(file.parent, mode=0o700)
            safetensors.torch.save_file({k: v.detach().clone().contiguous() for k, v in values.items()}, part)
            replace_durably(part, file)
        except (OSError, safetensors.SafetensorError) as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            why = getattr(error, "strerror", None) or error
            raise CoterieError(
                f"{file.parent}: cannot be written ({why}); make room, or choose another --state", code="disk-write"
            ) from None

    def forget(self, run: str, versions: list[int]) -> None:
        """See `StateStore.forget`."""
        for version in versions:
            self._file(run, version).unlink(missing_ok=True)

    def versions(self, run: str) -> list[int]:
        """See `StateStore.versions`."""
        found = (file.stem for file in self._file(run, 0).parent.glob("*.safetensors"))
        return sorted(int(stem) for stem in found if stem.isdigit())

    def _file(self, run: str, version: int) -> Path:
        if not run.isalnum():
            raise CoterieError(f"'{run}' is not the name of a run", code="wire-invalid-name")
        return self.path / run / f"{version}.safetensors"
