"""Rows of different lengths, stored end to end: the sample numbers of each client."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.settings import explained


@explained
@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of sample numbers, one per client, end to end."""

    numbers: Tensor  # (total,)
    ends: Tensor  # (clients + 1,), first 0

    @staticmethod
    def of(rows: Sequence[ArrayLike]) -> Ragged:
        """From one list of numbers per client."""
        arrays = [np.asarray(row, dtype=np.int64) for row in rows]
        ends = np.concatenate([[0], np.cumsum([len(a) for a in arrays])])
        numbers = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
        return Ragged(torch.from_numpy(numbers), torch.from_numpy(ends.astype(np.int64)))

    @staticmethod
    def by(owner: NDArray[np.int64], numbers: NDArray[np.int64], clients: int) -> Ragged:
        """From the owner of each number; in a client's row the numbers keep their order."""
        order = np.argsort(owner, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients))])
        return Ragged(torch.from_numpy(numbers[order]), torch.from_numpy(ends.astype(np.int64)))

    def owners(self) -> NDArray[np.int64]:
        """The client of each number."""
        return np.repeat(np.arange(len(self)), self.lengths.numpy())

    def take(self, clients: ArrayLike) -> Ragged:
        """The rows of these clients, in this order; a client may come twice."""
        return Ragged.of([self.row(int(c)).numpy() for c in np.asarray(clients)])

    @staticmethod
    def join(parts: Sequence[Ragged], starts: Sequence[int] | NDArray[np.int64]) -> Ragged:
        """The rows of all parts; the numbers of a part begin at its start."""
        numbers = torch.cat([rows.numbers + int(start) for rows, start in zip(parts, starts, strict=False)])
        lengths = torch.cat([rows.lengths for rows in parts])
        return Ragged(numbers, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))

    def checksum(self, crc: int) -> int:
        """Of all numbers, and of the row each belongs to."""
        for numbers in (self.numbers, self.ends):
            crc = zlib.crc32(numbers.contiguous().numpy().data, crc)
        return crc

    def __len__(self) -> int:
        return len(self.ends) - 1

    def row(self, client: int) -> Tensor:
        """The sample numbers of a client."""
        return self.numbers[self.ends[client] : self.ends[client + 1]]

    @property
    def lengths(self) -> Tensor:
        """How many samples each client has."""
        return self.ends.diff()


def spread(counts: NDArray[np.int64]) -> str:
    """The range of counts in words: "5 each", or "min/median/max 5/6/8"."""
    low, middle, high = int(counts.min()), int(np.median(counts)), int(counts.max())
    return f"{low:,} each" if low == high else f"min/median/max {low:,}/{middle:,}/{high:,}"


def joined_marks(
    parts: Sequence[NDArray[np.bool_] | None], starts: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.bool_] | None:
    """The marks of samples end to end, part by part; None where no part has any. Part i begins at starts[i]."""
    if all(part is None for part in parts):
        return None
    lengths = np.diff(np.asarray(starts))
    return np.concatenate(
        [np.zeros(n, dtype=bool) if part is None else part for part, n in zip(parts, lengths, strict=True)]
    )
