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
    tensors: list[Tensor] = []
    seen: dict[int, int] = {}
    kept: list[object] = []  # keeps temporary objects alive, so that an id is never reused

    def walk(node: object) -> Outline:
        if isinstance(node, Tensor):
            if id(node) not in seen:
                seen[id(node)] = len(tensors)
                tensors.append(node)
            return {"tensor": seen[id(node)]}
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            if id(node) in seen:
                return {"same": seen[id(node)]}
            seen[id(node)] = len(kept)
            kept.append(node)
            values = {f.name: walk(getattr(node, f.name)) for f in dataclasses.fields(node)}
            return {"is": type(node).__name__, "number": seen[id(node)], "has": values}
        if isinstance(node, Mapping):
            return {"map": {str(k): walk(v) for k, v in node.items()}}
        if isinstance(node, list | tuple):
            return [walk(v) for v in node]
        if isinstance(node, float) and not math.isfinite(node):
            return {"float": str(node)}
        if node is None or isinstance(node, bool | int | float | str):
            return node
        raise CoterieError(
            f"cannot write down a {type(node).__name__}: only tensors, numbers, text and dataclasses of them",
            code="state-unsupported",
        )

    return walk(tree), tensors


def unpack(outline: Outline, tensors: Sequence[Tensor], types: Iterable[type]) -> Any:
    """Rebuild the tree, of these dataclasses only. Lists become tuples."""
    return OutlineReader(tensors, list(types), typed=False).read(outline)
