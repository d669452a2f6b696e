"""A table of samples as the clients of one domain see it: scaled, rotated, relabelled."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from coterie.core.model import channels_last
from coterie.core.settings import Kind, explained
from coterie.data.encoding import TableScale
from coterie.data.scale import Scale
from coterie.data.targets import TargetScale

Samples: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Fault:
    """What is wrong with some samples: NaN or Inf in x or y, or a label outside 0..outputs-1."""

    what: Literal["x", "y", "label"]
    outputs: int
    text: str

    def is_in(self, x: Tensor, y: Tensor) -> bool:
        """Whether these samples, as a client sees them, have it."""
        if self.what == "label":
            return bool(((y < 0) | (y >= self.outputs)).any())
        return not bool((x if self.what == "x" else y).isfinite().all())


@explained
@dataclass(frozen=True, eq=False)
class Domain:
    """A table of samples, seen through a scale, a quarter turn or a change of labels."""

    x: Tensor  # (n, ...) as stored: bytes, half precision, ...
    y: Tensor  # (n,) int64 labels, or (n, outputs) targets
    scale: Scale | None = Scale()  # None: as they are (the numbers of words)
    turns: int = 0  # quarter turns counter-clockwise over the last two axes
    relabel: Tensor | None = None  # new label of each old one
    target: TargetScale | None = None  # how targets of a regression are standardised; None: they are learnt as stored

    def take(self, rows: Tensor) -> Samples:
        """These samples, as the clients of this domain see them."""
        x, y = self.x[rows], self.y[rows]
        early = self.scale is None or self.scale.uniform  # then it may be turned first, while it is small
        x = self._turned(x) if early else x
        x = self.inputs(channels_last(x))
        x = x if early else self._turned(x)
        if self.target is not None:
            return x, self.target(y)
        return x, y if self.relabel is None else self.relabel[y]

    def _turned(self, x: Tensor) -> Tensor:
        return torch.rot90(x, self.turns, (-2, -1)) if self.turns % 4 else x

    def inputs(self, x: Tensor) -> Tensor:
        """What a network is given for samples as stored (not turned)."""
        return x if self.scale is None else self.scale(x)

    def labels(self, rows: Tensor) -> Tensor:
        """The labels of these samples, as the clients of this domain see them."""
        return self.y[rows] if self.relabel is None else self.relabel[self.y[rows]]

    def faults(self, kind: Kind, outputs: int) -> Iterator[Fault]:
        """What is wrong with the stored samples."""
        if self.x.is_floating_point() and not bool(self._finite().all()):
            yield Fault("x", outputs, "has NaN or Inf in its inputs; clean or drop those samples")
        if self.y.is_floating_point() and not bool(self.y.isfinite().all()):
            yield Fault("y", outputs, "has NaN or Inf in its targets; clean or drop those samples")
        if kind == "classification" and len(self.y):
            labels = self.y if self.relabel is None else self.relabel[self.y]
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= outputs:
                from_one = ". Do yours start at 1? Subtract 1." if low == 1 and high == outputs else ""
                text = f"has a label outside 0..{outputs - 1}; raise `outputs` or map the labels{from_one}"
                yield Fault("label", outputs, text)

    def _finite(self) -> Tensor:
        """Of each stored number whether it is one; holes in a table are no fault where they are filled in."""
        filled = self.scale.filled if isinstance(self.scale, TableScale) else False
        return self.x.isfinite() | (self.x.isnan() & filled)

    def checksum(self, crc: int) -> int:
        """Of all samples and how they are seen."""
        crc = zlib.crc32(f"{self.turns} {self.relabel}".encode(), crc)
        crc = zlib.crc32(b"" if self.scale is None else self.scale.bytes(), crc)
        crc = zlib.crc32(b"" if self.target is None else self.target.bytes(), crc)
        for table in (self.x, self.y):
            crc = zlib.crc32(table.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
        return crc
