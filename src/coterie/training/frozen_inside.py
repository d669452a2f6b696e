"""Checkpoints of 0.1 of models with frozen parameters: vectors that have these in them, between weights and statistics.

Today's vectors do not. The frozen numbers are compared with those of the network and taken out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.parts import joined

# Frozen numbers were averaged with the others, which rounds: after many rounds they are no longer the same bits.
RELATIVE, ABSOLUTE = 1e-3, 1e-5


def frozen_inside(said: str, model: Model) -> bool:
    """Whether a checkpoint that says this of its model is one of 0.1, of vectors with frozen parameters."""
    return bool(model.frozen) and "frozen" not in said and said.startswith(f"{_then(model)} numbers, ")


def without_frozen(path: Path, tensors: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """The tensors of a checkpoint, with the frozen numbers taken out of every vector."""
    frozen, start, many = joined(model.layout.outside(model.blueprint)), model.parameters, model.frozen_size
    found = {}
    for name, t in tensors.items():
        if not t.is_floating_point() or not t.ndim or t.shape[-1] != _then(model):
            found[name] = t
            continue
        inside = t[..., start : start + many]
        same = torch.isclose(inside, frozen.to(t), rtol=RELATIVE, atol=ABSOLUTE).all(-1)
        if not bool((same | (inside == 0).all(-1)).all()):  # zeros: a difference of models, or a momentum
            raise CoterieError(
                f"{path}: of version 0.1, with frozen parameters that are not those of this network (a network with "
                "frozen parameters must have the same ones whenever it is built); load it with version 0.1, or start "
                "a new run",
                code="checkpoint-mismatch",
            )
        found[name] = torch.cat([t[..., :start], t[..., start + many :]], -1)
    return found


def _then(model: Model) -> int:
    """The length of a vector in 0.1."""
    return model.size + model.frozen_size
