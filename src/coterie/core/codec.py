"""Trees of dataclasses, tuples, numbers and tensors as JSON plus raw tensors: no pickle, no code.

`pack` gives a JSON-able outline and the tensors in the order it names them; what occurs twice
is sent once. `unpack` rebuilds only the types it is given, so that a file cannot name others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core.decoder import OutlineReader
from coterie.core.errors import CoterieError

TYPES: Mapping[str, torch.dtype] = {
    str(t).removeprefix("torch."): t
    for t in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}

# The outline is JSON. Only `pack` and `unpack` depend on its content.
Outline = Any


def pack(tree: object) -> tuple[Outline, list[Tensor]]:
    """An outline and its tensors."""
    packing = _Packing()
    return packing.walk(tree), packing.tensors


class _Packing:
    """A tree on its way into an outline.

    Not a function within a function that calls itself: such a one refers to itself, and the tensors it has seen, models
    of many megabytes, would stay until Python looks for such circles.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # keeps temporary objects alive, so that an id is never reused

    def walk(self, node: object) -> Outline:
        """What stands for a node in the outline."""
        if isinstance(node, Tensor):
            if id(node) not in self._seen:
                self._seen[id(node)] = len(self.tensors)
                self.tensors.append(node)
            return {"tensor": self._seen[id(node)]}
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            return self._dataclass(node)
        if isinstance(node, Mapping):
            return {"map": {str(k): self.walk(v) for k, v in node.items()}}
        if isinstance(node, list | tuple):
            return [self.walk(v) for v in node]
        if isinstance(node, float) and not math.isfinite(node):
            return {"float": str(node)}
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise CoterieError(
            f"cannot write down a {type(node).__name__}: only tensors, numbers, text and dataclasses of them",
            code="state-unsupported",
        )

    def _dataclass(self, node: Any) -> Outline:
        if id(node) in self._seen:
            return {"same": self._seen[id(node)]}
        number = self._seen[id(node)] = len(self._kept)
        self._kept.append(node)
        values = {f.name: self.walk(getattr(node, f.name)) for f in dataclasses.fields(node)}
        return {"is": type(node).__name__, "number": number, "has": values}


def unpack(outline: Outline, tensors: Sequence[Tensor], types: Iterable[type]) -> Any:
    """Rebuild the tree, of these dataclasses only. Lists become tuples."""
    return OutlineReader(tensors, list(types), typed=False).read(outline)
