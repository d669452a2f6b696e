"""Files and log lines that are written whole or not at all, also if the disk is full."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

from coterie.core.errors import CoterieError


@contextlib.contextmanager
def writing(path: Path, instead: str = "make room, or choose another place") -> Iterator[None]:
    """Raise an error with a clear message if this file cannot be written. instead: what the user can do."""
    try:
        yield
    except OSError as error:
        raise CoterieError(
            f"{path}: cannot be written ({error.strerror or error}); {instead}", code="disk-write"
        ) from None


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: the old or the new one is there even after a crash; raises OSError."""
    temporary = path.with_name(f"{path.name}.part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        replace_durably(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_durably(temporary: Path, path: Path) -> None:
    """Put a finished file in its place, so that it is there even after the power fails."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def save_tensors(tensors: Mapping[str, Any], path: Path, metadata: Mapping[str, str]) -> None:
    """A safetensors file whose bytes follow from its content; raises OSError and SafetensorError.

    The library writes metadata in an order that differs from process to process. Sorted, it has the same length.
    """
    import safetensors.torch

    safetensors.torch.save_file(dict(tensors), path, metadata=dict(metadata))
    with path.open("rb+") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(ordered) <= size:  # spaces may follow a header
            file.seek(8)
            file.write(ordered.ljust(size))


def plain_bytes(path: Path) -> bytes:
    """What a file holds. A pipe or a device, which may have no end, is refused; raises OSError."""
    if not S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a directory", str(path))
    return path.read_bytes()


def check_run_files(run_dir: Path) -> None:
    """Refuse a received run directory that would make its reader wait for ever, or delete files elsewhere."""
    checkpoints = run_dir / "checkpoints"
    if checkpoints.is_symlink():
        raise CoterieError(
            f"{checkpoints}: is a symbolic link, and what a run deletes there would be somebody else's; put the "
            "directory itself in its place",
            code="run-damaged",
        )
    for folder in (run_dir, checkpoints):
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise CoterieError(f"{file}: is a pipe or a device, not a file; remove it", code="run-damaged")


def sync_directory(path: Path) -> None:
    """Flush the names in a directory to the disk: a file that was just made is not found there before; raises OSError.

    Windows cannot open a directory, and does not need this.
    """
    if os.name == "nt":
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory and those above it, so that they are there even after the power fails; raises OSError.

    mode: of this directory, if it is new, less what the umask takes away.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True, mode=mode)
    sync_directory(path.parent)


def user_path(text: str, key: str = "data.path") -> Path:
    """A path that a user wrote, with ~ as their home. Devices and pipes are refused: they may have no end."""
    try:
        path = Path(text).expanduser()
        plain = path.is_file() or path.is_dir() or not path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, the home of nobody
        why = getattr(error, "strerror", None) or error
        raise CoterieError(f"{key}: {text[:200]!r} cannot be used ({why})", code="data-file-missing") from None
    if not plain:
        raise CoterieError(f"{key}: {path} is neither a file nor a directory", code="data-file-format")
    return path


class LineLog:
    """A file that grows line by line. A line that does not fit on the disk leaves nothing behind."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def add(self, line: str) -> None:
        """Append a line; raises OSError."""
        left, size = memoryview(line.encode() + b"\n"), os.fstat(self._file.fileno()).st_size
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            raise

    def sync(self) -> None:
        """Flush all lines to the disk, so that they survive a power failure; raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; all lines are written already."""
        self._file.close()
