"""What a fuzz target is, and how one case of it is judged."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from coterie.core.errors import CoterieError

SLOW = 10.0  # seconds of computing: a case that takes longer counts as a hang
MEMORY = 512 << 20  # bytes that one case may add to the process's peak


@dataclass(frozen=True)
class Target:
    """Reads bytes that may be anything. `seeds` are valid inputs, `words` are tokens that mutations insert."""

    name: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes], object]  # raises nothing but CoterieError
    words: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Fault:
    """Why a case is a defect."""

    kind: str  # the exception, or message, hang, memory
    where: str  # the line that raised; cases with the same one are counted as one defect
    why: str = ""


def peak() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def judge(target: Target, data: bytes) -> Fault | None:
    """None where the input was read, or refused with the library's error, in time and within bounds."""
    before, began = peak(), time.process_time()
    try:
        target.read(data)
    except CoterieError as error:
        said = str(error)
        if not said or len(said) > 100_000:
            return Fault("message", error.code, f"{len(said)} characters")
    except Exception as error:
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else "?"
        return Fault(type(error).__name__, place, str(error)[:200])
    took, grew = time.process_time() - began, peak() - before
    if took > SLOW:
        return Fault("hang", "", f"{took:.1f} seconds")
    if grew > MEMORY:
        return Fault("memory", "", f"{grew >> 20} MiB")
    return None
