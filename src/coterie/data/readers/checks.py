"""What every loader does before it believes a file: sizes are checked, and what a parser raises is told in words."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError, CoterieWarning

LARGEST = 1 << 30  # bytes that a file may inflate to, unless it is itself larger or the configuration says otherwise


@contextmanager
def reading(file: Path | str) -> Iterator[None]:
    """Of a damaged file a parser may raise anything: it becomes the library's error, with the file."""
    try:
        yield
    except (CoterieError, CoterieWarning):  # a warning is raised where a user turned warnings into errors
        raise
    except MemoryError:
        raise CoterieError(f"{file}: is larger than the memory that is left", code="data-file-too-large") from None
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise CoterieError(
            f"{file}: cannot be read, it is damaged or of another format ({type(error).__name__}: {why})",
            code="data-file-damaged",
        ) from error


def check_inflated(file: Path, size: int, largest: int, key: str = "data.largest") -> None:
    """Refuse a file that would take far more memory than it has bytes. Called before anything is allocated."""
    if size > max(largest, file.stat().st_size):
        raise CoterieError(
            f"{file}: would take {size:,} bytes of memory, {key} allows {largest:,}; raise it if so meant",
            code="data-file-too-large",
        )


def read_member(file: Path, archive: zipfile.ZipFile, name: str, largest: int) -> NDArray[Any]:
    """An array of an npz file, once its header promises no more than the member holds; nothing is executed."""
    entry = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)
    check_inflated(file, entry.file_size, largest)
    with archive.open(entry) as stream:
        shape, dtype, head, _ = array_header(stream)
        if dtype.hasobject or not dtype.itemsize:
            raise CoterieError("Python objects are not read; store numbers or strings", code="data-file-format")
        check_promise(shape, dtype, entry.file_size - head)
    with archive.open(entry) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def check_promise(shape: tuple[int, ...], dtype: np.dtype[Any], there: int) -> None:
    """Refuse an array whose header promises more or less than the bytes that follow it."""
    promised = math.prod(shape) * dtype.itemsize
    if promised != there:
        raise CoterieError(f"its header promises {promised:,} bytes, the file has {there:,}", code="data-file-damaged")


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int, bool]:
    """The shape and type that an array's header names, where its data begins, and whether it is in Fortran order."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise CoterieError(
            f"it is of the format {version[0]}.{version[1]} of numpy, which is not read", code="data-file-format"
        )
    shape, by_columns, dtype = read(stream)
    if any(n < 0 for n in shape):
        raise CoterieError(f"its header names the shape {shape}", code="data-file-damaged")
    return shape, dtype, stream.tell(), by_columns
