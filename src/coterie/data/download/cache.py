"""Public data sets in a cache: fetched once, checked against published checksums, never half there.

Everything happens in a directory beside the final one, under a lock; files reach their place by renaming, after they
were checked. A stamp remembers size and time of the checked files, so that looking again costs nothing.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from coterie.core.errors import CoterieError
from coterie.core.files import user_path
from coterie.data.download.sources import Progress, Room
from coterie.data.download.specs import DatasetSpec, File, cache_directory, gather, md5_of

__all__ = ["DatasetSpec", "File", "Progress", "cache_directory", "get", "opened", "where"]

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


def _md5_of_old(seen: Seen, file: File) -> str | None:
    return seen[file.name][2] if file.name in seen else None


def _signature(path: Path, file: File, seen: Seen) -> tuple[int, int, str]:
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
