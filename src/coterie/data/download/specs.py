"""What a data set is: its files with their checksums, its sources, its place in the cache."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from coterie.core.errors import CoterieError
from coterie.data.download.http import Download
from coterie.data.download.sources import Present, Room, Source


@dataclass(frozen=True)
class File:
    """A file of a data set as it is kept: uncompressed."""

    name: str
    md5: str | None = None
    bytes: int | None = None

    def fault(self, path: Path, md5: str | None = None) -> str | None:
        """What is wrong with it, if anything; `md5` is what it was, where none is published."""
        if not path.is_file():
            return f"{self.name} is missing"
        size = path.stat().st_size
        if self.bytes not in (None, size):
            what = "cut short" if size < (self.bytes or 0) else "not the published file"
            return f"{self.name} is {what}: {size:,} bytes, not {self.bytes:,}"
        expected = self.md5 or md5
        if expected and (found := md5_of(path)) != expected:
            return f"{self.name} is damaged or another file: MD5 {found}, not {expected}"
        return None


@dataclass(frozen=True)
class DatasetSpec:
    """What a data set is, where it comes from and which files it consists of."""

    name: str  # also its directory in the cache
    title: str
    shape: str
    classes: int
    samples: int
    bytes: int  # to download, about
    licence: str
    homepage: str
    files: tuple[File, ...] = ()  # none: whatever lies in its directory
    sources: tuple[Source, ...] = ()  # in the order they are tried
    by_hand: str = ""  # instead of the usual words; {directory} is where the files belong

    @property
    def directory(self) -> Path:
        """Where its files are kept, or would be."""
        return cache_directory() / self.name

    @property
    def instructions(self) -> str:
        """What a person does when no source can be reached."""
        if self.by_hand:
            return self.by_hand.format(directory=self.directory)
        names = ", ".join(file.name for file in self.files)
        archives = [remote.url for source in self.downloads() for remote in source.remotes]
        return (
            f"download {' '.join(archives) or self.homepage} elsewhere and put it, or the files in it ({names}), "
            f"into {self.directory}; or name the directory they lie in with data.path"
        )

    def downloads(self) -> list[Download]:
        """Its official sources."""
        return [source for source in self.sources if isinstance(source, Download)]


def cache_directory() -> Path:
    """Where data sets are kept: $COTERIE_DATA, or a place of the user's cache."""
    chosen = os.environ.get("COTERIE_DATA")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("coterie")) / "data"


def gather(spec: DatasetSpec, place: Path, into: Path) -> None:
    """Files as they are or as .gz, or the official archive, from a directory; or from the archive itself."""
    for download in spec.downloads():
        archives = [place / remote.name if place.is_dir() else place for remote in download.remotes]
        if all(archive.is_file() for archive in archives) and len(set(archives)) == len(archives):
            for remote, archive in zip(download.remotes, archives, strict=True):
                download.take(remote, archive, into)
            return
    if not place.is_dir():
        raise CoterieError("not an archive this data set comes in", code="data-file-format")
    nowhere = into / ".none"
    Present(str(place), tuple(f.name for f in spec.files)).put(Room(into, nowhere, nowhere, lambda *_: None))


def md5_of(path: Path) -> str:
    """For telling files apart, not for security."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
