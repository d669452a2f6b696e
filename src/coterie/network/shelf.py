"""Where a client keeps what it keeps between visits (a personal model, an optimiser's state), version by version.

With every errand the server says which version it last heard of. A later one (its report was lost, the server went
back to a checkpoint) is as if it had never been written, so a lost or repeated visit changes nothing. Earlier ones are
kept as far back as the server may still go. The high half of a version's number is the round it was written in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import safetensors
import safetensors.torch
from torch import Tensor

from coterie.checkpoint import replace_durably
from coterie.errors import CoterieError

SHIFT = 32


def next_version(round: int, base: int | None) -> int:
    """Above every version before it."""
    return max(round << SHIFT, base or 0) + 1


def round_of(version: int) -> int:
    """The round in which a version was written."""
    return version >> SHIFT


class Shelf(Protocol):
    """What a client keeps for a run."""

    def read(self, run: str, version: int) -> Mapping[str, Tensor] | None:
        """The values of a version; None where they are lost."""

    def write(self, run: str, version: int, values: Mapping[str, Tensor]) -> None:
        """Keep the values of a new version."""

    def forget(self, run: str, versions: list[int]) -> None:
        """Throw versions away."""

    def versions(self, run: str) -> list[int]:
        """What there is, oldest first."""


def tidy(shelf: Shelf, run: str, base: int | None, since: int) -> None:
    """Throw away what will not be asked for again: versions after the one the server knows of, and those replaced
    before round `since`, the earliest it may still go back to."""
    there = shelf.versions(run)
    never = [version for version in there if base is None or version > base]
    old = [version for version in there if version not in never and round_of(version) < since]
    shelf.forget(run, [*never, *old[:-1]])


@dataclass(frozen=True)
class Folder:
    """A shelf on the disk: outlives the client's process, its node and the server's."""

    path: Path

    def read(self, run: str, version: int) -> Mapping[str, Tensor] | None:
        """See `Shelf.read`."""
        try:
            return safetensors.torch.load_file(self._file(run, version))
        except (OSError, safetensors.SafetensorError):
            return None

    def write(self, run: str, version: int, values: Mapping[str, Tensor]) -> None:
        """See `Shelf.write`."""
        file = self._file(run, version)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(file.name + ".part")
            safetensors.torch.save_file({k: v.detach().clone().contiguous() for k, v in values.items()}, part)
            replace_durably(part, file)
        except OSError as error:
            raise CoterieError(f"{file.parent}: cannot be written ({error.strerror}); choose another --state") from None

    def forget(self, run: str, versions: list[int]) -> None:
        """See `Shelf.forget`."""
        for version in versions:
            self._file(run, version).unlink(missing_ok=True)

    def versions(self, run: str) -> list[int]:
        """See `Shelf.versions`."""
        found = (file.stem for file in self._file(run, 0).parent.glob("*.safetensors"))
        return sorted(int(stem) for stem in found if stem.isdigit())

    def _file(self, run: str, version: int) -> Path:
        if not run.isalnum():
            raise CoterieError(f"'{run}' is not the name of a run")
        return self.path / run / f"{version}.safetensors"
