"""What the pretend accelerator of `sham.py` counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """What crossed between host and device: copies of tensors, their bytes, and single numbers that were read."""

    up: int = 0
    down: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    reads: int = 0
    refused: int = 0  # operations on the wrong device: code may catch the error, and do without a device
    pinned: int = 0  # copies up from pinned memory, which a device can make while the host goes on

    def reset(self) -> None:
        """Start again from zero."""
        for name in self.__dataclass_fields__:
            setattr(self, name, 0)


COUNTS = Counts()


def refused(error: Exception) -> Exception:
    """An error to raise, counted."""
    COUNTS.refused += 1
    return error
