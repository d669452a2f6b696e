"""Rows put in order by client, on disk: a client's rows may be anywhere in a file, and the file need not fit in memory.

A counting sort. The number of rows of each client is known from a first pass, so that each row has its place in one
temporary file without a name, which is gone when it is closed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.allocation import directory
from coterie.core.files import writing


@dataclass(frozen=True, eq=False)
class ClientRows:
    """All rows of a client, in the order of the file."""

    row: NDArray[np.int64]
    test: NDArray[np.bool_]
    y: NDArray[np.float64]  # (n, targets)
    x: Tensor  # as the training data is stored


class RecordFile:
    """Records of one size in a temporary file, by number."""

    def __init__(self, kind: np.dtype[np.void]) -> None:
        self.kind = kind
        self._file = tempfile.TemporaryFile(dir=directory())  # noqa: SIM115  # closed by `close`

    def close(self) -> None:
        """Give up the file."""
        self._file.close()

    def put(self, numbers: NDArray[np.int64], records: NDArray[np.void]) -> None:
        """Store records under these numbers; a run of consecutive numbers is written at once."""
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
        with writing(directory(), "set TMPDIR to a directory with room"):
            for begin, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
                self._write(memoryview(records[begin:end].tobytes()), int(numbers[begin]) * self.kind.itemsize)

    def _write(self, left: memoryview, place: int) -> None:
        while left:
            done = os.pwrite(self._file.fileno(), left, place)
            left, place = left[done:], place + done

    def get(self, first: int, count: int) -> NDArray[np.void]:
        """Records of consecutive numbers; zeros where nothing was stored."""
        size = count * self.kind.itemsize
        content = os.pread(self._file.fileno(), size, first * self.kind.itemsize)
        return np.frombuffer(content.ljust(size, b"\0"), self.kind).copy()


class Spool(RecordFile):
    """The rows of clients 0..n-1, of which each has as many as `counts` says."""

    def __init__(self, counts: Sequence[int], sample: Tensor, targets: int) -> None:
        """sample: stored inputs, for their type and shape."""
        x = sample.numpy()
        fields = [("row", "<i8"), ("test", "?"), ("y", "<f8", (targets,)), ("x", x.dtype.str, x.shape[1:])]
        super().__init__(np.dtype(fields))
        self._counts = np.asarray(counts, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._counts)])
        self._filled = self._starts[:-1].copy()

    def add(
        self,
        client: NDArray[np.int64],
        row: NDArray[np.int64],
        test: NDArray[np.bool_],
        y: NDArray[np.float64],
        x: Tensor,
    ) -> None:
        """Rows of these clients, in the order of the file."""
        order = np.argsort(client, kind="stable")
        records = np.empty(len(client), self.kind)
        for name, values in (("row", row), ("test", test), ("y", y), ("x", x.numpy())):
            records[name] = values[order]
        mine = client[order]
        known, begin, many = np.unique(mine, return_index=True, return_counts=True)
        places = np.arange(len(mine)) - np.repeat(begin, many) + self._filled[mine]
        self.put(places, records)
        self._filled[known] += many

    def client(self, client: int) -> ClientRows:
        """The rows of one client."""
        found = self.get(int(self._starts[client]), int(self._counts[client]))
        x = torch.from_numpy(found["x"].copy())
        return ClientRows(found["row"].copy(), found["test"].copy(), found["y"].copy(), x)
