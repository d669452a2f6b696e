"""Angles between subspaces, each given by unit vectors as rows; a row of zeros is no vector."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Angle: TypeAlias = Literal["smallest", "sum"]


def subspace_angles(bases: Tensor, others: Tensor, angle: Angle) -> Tensor:
    """Degrees (n, m) between subspaces (n, q, d) and others (m, q, d).

    smallest: the least principal angle, whose cosine is the largest singular value of U V^T.
    sum: of the angles between corresponding vectors, regardless of their signs; what neither has counts nothing, what
    only one has is at a right angle.
    """
    if angle == "smallest":
        # One client after another: all pairs of vectors of all pairs of clients may be many.
        largest = [torch.linalg.matrix_norm(others.double() @ one.double().T, ord=2) for one in bases]
        found = torch.stack(largest) if largest else bases.new_zeros(0, len(others))
        return torch.rad2deg(found.clamp(0, 1).acos())
    cosines = torch.einsum("iqd,jqd->ijq", bases.double(), others.double()).abs().clamp(0, 1)
    either = bases.any(2)[:, None] | others.any(2)[None]
    return (torch.rad2deg(cosines.acos()) * either).sum(2)
