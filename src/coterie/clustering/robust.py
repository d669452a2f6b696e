"""Robust means: what a few wrong or hostile rows among (n, P) can change is bounded.

Each function takes rows (n, P) and gives one vector (P,). Where a rule has a weighted form, weights (n,) are that of a
client in it; a rule that counts clients (median, Krum) has none, because a client says itself how many samples it has.
"""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 1 << 20  # numbers that are sorted at a time
LEAST = 1e-12  # a distance below it counts as this


def hostile_count(share: float, n: int) -> int:
    """How many of n clients may be hostile if at most this share is: always fewer than half."""
    return max(0, min(int(share * n + 1e-9), (n - 1) // 2))


def trimmed_mean(rows: Tensor, f: int, weights: Tensor) -> Tensor:
    """Coordinate by coordinate, the weighted mean without the f largest and the f smallest values (Yin et al. 2018)."""
    n = len(rows)
    if f == 0:
        return weighted_mean(rows, weights)
    out = rows.new_empty(rows.shape[1])
    weights = weights.to(rows.dtype)
    for first, part in _columns(rows):
        values, order = part.sort(dim=1, stable=True)
        kept = weights[order[:, f : n - f]]
        out[first : first + len(part)] = (values[:, f : n - f] * kept).sum(1) / kept.sum(1)
    return out


def coordinate_median(rows: Tensor) -> Tensor:
    """Coordinate by coordinate, the middle value, or the mean of the two middle ones; every client counts once."""
    n = len(rows)
    out = rows.new_empty(rows.shape[1])
    for first, part in _columns(rows):
        values = part.sort(dim=1).values
        out[first : first + len(part)] = (values[:, (n - 1) // 2] + values[:, n // 2]) / 2
    return out


def geometric_median(rows: Tensor, weights: Tensor, steps: int = 8, smoothing: float = 1e-6) -> Tensor:
    """The point of least weighted sum of distances (RFA, Pillutla et al. 2022), by Weiszfeld's steps from zero.

    smoothing: a distance below it counts as this, so that no row is divided by zero.
    """
    middle = torch.zeros_like(rows[0])
    for _ in range(steps):
        far = torch.linalg.vector_norm(rows - middle, dim=1).double()
        middle = weighted_mean(rows, weights.double() / far.clamp(min=smoothing))
    return middle


def krum_scores(rows: Tensor, f: int) -> Tensor:
    """Of each row, the mean squared distance to the n - f - 1 rows nearest to it."""
    return squared_distances(rows).sort(dim=1).values[:, 1 : max(len(rows) - f, 2)].mean(1)


def krum(rows: Tensor, f: int) -> Tensor:
    """The row nearest to its neighbours (Blanchard et al. 2017), the first of several; weights have no part in it."""
    return rows[int(krum_scores(rows, f).argmin())]


def multi_krum(rows: Tensor, f: int, weights: Tensor) -> Tensor:
    """The weighted mean of the n - f rows nearest to their neighbours."""
    if len(rows) == 1:
        return rows[0]
    chosen = krum_scores(rows, f).argsort(stable=True)[: len(rows) - f].sort().values
    return weighted_mean(rows[chosen], weights[chosen])


def centered_clipping(rows: Tensor, weights: Tensor, radius: float, steps: int = 1) -> Tensor:
    """The mean of rows clipped to a ball around a center, which moves to it, from zero (Karimireddy et al. 2021)."""
    center = torch.zeros_like(rows[0])
    for _ in range(steps):
        center = center + clipped_mean(rows - center, weights, radius)
    return center


def clipped_mean(rows: Tensor, weights: Tensor, radius: float) -> Tensor:
    """The weighted mean of rows that are scaled down to this norm where they are longer."""
    norms = torch.linalg.vector_norm(rows, dim=1).double()
    shorter = (radius / norms.clamp(min=LEAST)).clamp(max=1.0)
    share = weights.double() / weights.double().sum()
    return (share * shorter).to(rows.dtype) @ rows


def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """The plain weighted mean."""
    share = weights.double() / weights.double().sum()
    return share.to(rows.dtype) @ rows


def isolation(points: Tensor, others: int) -> Tensor:
    """How far each point (n, d) is from the nearest one with `others` points (n,) within that distance."""
    return squared_distances(points).sort(dim=1).values[:, min(others, len(points) - 1)].sqrt()


def squared_distances(rows: Tensor) -> Tensor:
    """Between all pairs of rows (n, n): by inner products from their mean, summed up in double precision."""
    dots = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    many = max(1, COLUMNS // len(rows))
    for first in range(0, rows.shape[1], many):
        part = rows[:, first : first + many]
        part = part - part.mean(0)
        dots += (part @ part.T).double()
    squares = dots.diagonal()
    far = (squares[:, None] + squares[None] - 2 * dots).clamp(min=0)
    return far.fill_diagonal_(0)


def _columns(rows: Tensor) -> list[tuple[int, Tensor]]:
    """The coordinates in parts: the first of each, and its values (some of P, n) side by side."""
    many = max(1, COLUMNS // len(rows))
    return [(first, rows[:, first : first + many].T.contiguous()) for first in range(0, rows.shape[1], many)]
