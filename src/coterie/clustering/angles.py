"""Angles between subspaces, each given by unit vectors as rows; a row of zeros is no vector."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Angle: TypeAlias = Literal["smallest", "sum"]


SAME = 1e-6  # of the largest singular value: a direction below is a combination of the others


def subspace_angles(bases: Tensor, others: Tensor, angle: Angle, orthonormal: bool = True) -> Tensor:
    """Degrees (n, m) between subspaces (n, q, d) and others (m, q, d).

    smallest: the least principal angle, whose cosine is the largest singular value of U V^T; of vectors that are not
    orthonormal within a subspace, after they have been made so.
    sum: of the angles between corresponding vectors, regardless of their signs; what neither has counts nothing, what
    only one has is at a right angle.
    """
    if angle == "smallest":
        if not orthonormal:
            bases, others = _orthonormal(bases), _orthonormal(others)
        # One client after another: all pairs of vectors of all pairs of clients may be many.
        largest = [torch.linalg.matrix_norm(others.double() @ one.double().T, ord=2) for one in bases]
        found = torch.stack(largest) if largest else bases.new_zeros(0, len(others))
        return torch.rad2deg(found.clamp(0, 1).acos())
    cosines = torch.einsum("iqd,jqd->ijq", bases.double(), others.double()).abs().clamp(0, 1)
    either = bases.any(2)[:, None] | others.any(2)[None]
    return (torch.rad2deg(cosines.acos()) * either).sum(2)


def _orthonormal(bases: Tensor) -> Tensor:
    """The same subspaces (n, q, d) by orthonormal rows, with zeros where there are fewer directions than vectors."""
    values: Tensor
    rows: Tensor
    _, values, rows = torch.linalg.svd(bases.double(), full_matrices=False)
    return rows * (values > SAME * values[:, :1])[:, :, None]
