"""How two processes on one machine pass trees of tensors: the outline by pipe, the numbers by shared memory.

A sender owns one block of shared memory per lane, grown when needed and reused for every message on
that lane, so what `receive` gives is valid until the other side sends on the same lane again.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.codec import TYPES, pack, unpack

ALIGN = 64  # bytes: a cache line, and the alignment of vector instructions


class Block:
    """Memory that another process can map by its path."""

    def __init__(self, size: int) -> None:
        if sys.platform == "linux":
            # Not /dev/shm: containers often cap it at 64 MB.
            self._file = os.memfd_create("coterie")
            self.path, self._named = f"/proc/{os.getpid()}/fd/{self._file}", False
        else:
            self._file, self.path = tempfile.mkstemp(prefix="coterie-")
            self._named = True
        os.ftruncate(self._file, size)
        self.size = size
        self.bytes = mmap.mmap(self._file, size)

    def close(self) -> None:
        """Give the memory back (views of it stay valid until they are gone)."""
        os.close(self._file)
        if self._named:
            Path(self.path).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Place:
    dtype: str
    shape: tuple[int, ...]
    start: int


class Channel:
    """One end of a pipe, with blocks of its own for what it sends."""

    def __init__(self, pipe: Connection, types: Sequence[type]) -> None:
        self.pipe = pipe
        self._types = types
        self._out: dict[int, Block] = {}
        self._in: dict[int, tuple[str, mmap.mmap]] = {}

    def send(self, tree: object, lane: int = 0) -> None:
        """Send a tree; overwrites what was sent on this lane before."""
        outline, tensors = pack(tree)
        places: list[_Place] = []
        end = 0
        for t in tensors:
            places.append(_Place(str(t.dtype).removeprefix("torch."), tuple(t.shape), end))
            end += -(-t.numel() * t.element_size() // ALIGN) * ALIGN
        block = self._room(lane, end)
        for t, place in zip(tensors, places, strict=True):
            if t.numel():
                _view(block.bytes, place).copy_(t.detach())
        rows = [[p.dtype, list(p.shape), p.start] for p in places]
        self.pipe.send_bytes(json.dumps([outline, rows, lane, block.path, block.size]).encode())

    def receive(self) -> Any:
        """Wait for a tree; its tensors are views, valid until the other side sends on its lane again."""
        outline, rows, lane, path, size = json.loads(self.pipe.recv_bytes())
        if lane not in self._in or self._in[lane][0] != path:
            with Path(path).open("r+b") as file:
                self._in[lane] = (path, mmap.mmap(file.fileno(), size))
        places = [_Place(dtype, tuple(shape), start) for dtype, shape, start in rows]
        return unpack(outline, [_view(self._in[lane][1], place) for place in places], self._types)

    def close(self) -> None:
        """Close the pipe and give the blocks back."""
        self.pipe.close()
        for block in self._out.values():
            block.close()
        self._out = {}

    def _room(self, lane: int, size: int) -> Block:
        block = self._out.get(lane)
        if block is None or block.size < size:
            # The new block comes before the old one goes, so that the two never share a path.
            self._out[lane] = Block(max(size + size // 4, mmap.PAGESIZE))
            if block is not None:
                block.close()
        return self._out[lane]


def _view(memory: mmap.mmap, place: _Place) -> Tensor:
    count = 1
    for length in place.shape:
        count *= length
    dtype = TYPES[place.dtype]
    if not count:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=place.start).view(place.shape)
