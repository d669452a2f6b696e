"""Robust means: what a few wrong or hostile rows among (n, P) can change is bounded.

Each function takes rows (n, P) and gives one vector (P,). Where a rule has a weighted form, weights (n,) are that of a
client in it; a rule that counts clients (median, Krum) has none, because a client says itself how many samples it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

COLUMNS = 1 << 17  # numbers that are worked on at a time: larger blocks are new memory every time
FEW = 256  # rows up to which all pairs are compared
LEAST = 1e-12  # a distance below it counts as this
Apart: TypeAlias = Callable[[Tensor], Tensor]  # how far each row is (n,) from the sum of share * rows, of shares (n,)


def hostile_count(share: float, n: int) -> int:
    """How many of n clients may be hostile if at most this share is: always fewer than half."""
    return max(0, min(int(share * n + 1e-9), (n - 1) // 2))


def trimmed_mean(rows: Tensor, f: int, weights: Tensor) -> Tensor:
    """Coordinate by coordinate, the weighted mean without the f largest and the f smallest values (Yin et al. 2018).

    With unequal weights, values that equal the largest or smallest of those that are left count too.
    """
    n = len(rows)
    if f == 0:
        return weighted_mean(rows, weights)
    equal, weigh = bool((weights == weights[0]).all()), weights.to(rows.dtype)[:, None]
    out = rows.new_empty(rows.shape[1])
    for first, part, ordered in _sorted(rows):
        if equal:
            middle = ordered[f : n - f].mean(0)
        else:
            kept = weigh * ((part >= ordered[f]) & (part <= ordered[n - f - 1]))
            middle = (part * kept).sum(0) / kept.sum(0)
        out[first : first + part.shape[1]] = middle
    return out


def coordinate_median(rows: Tensor) -> Tensor:
    """Coordinate by coordinate, the middle value, or the mean of the two middle ones; every client counts once."""
    n = len(rows)
    out = rows.new_empty(rows.shape[1])
    for first, part, ordered in _sorted(rows):
        out[first : first + part.shape[1]] = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return out


def geometric_median(rows: Tensor, weights: Tensor, steps: int = 8, smoothing: float = 1e-6) -> Tensor:
    """The point of least weighted sum of distances (RFA, Pillutla et al. 2022), by Weiszfeld's steps from zero.

    smoothing: a distance below it counts as this, so that no row is divided by zero.
    """
    dots = _dots(rows)
    share = geometric_shares(lambda middle: _apart(rows, middle, dots), weights, steps, smoothing)
    return share.to(rows.dtype) @ rows


def geometric_shares(apart: Apart, weights: Tensor, steps: int = 8, smoothing: float = 1e-6) -> Tensor:
    """Of each row in its geometric median (n,); see there."""
    share = torch.zeros(len(weights), dtype=torch.float64)
    for _ in range(steps):
        share = weights.double() / apart(share).clamp(min=smoothing)
        share = share / share.sum()
    return share


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
    dots = _dots(rows)
    share = centered_shares(lambda center: _apart(rows, center, dots), weights, radius, steps)
    return share.to(rows.dtype) @ rows


def centered_shares(apart: Apart, weights: Tensor, radius: float, steps: int = 1) -> Tensor:
    """Of each row in its centered clipping (n,); see there."""
    weigh = weights.double() / weights.double().sum()
    share = torch.zeros(len(weights), dtype=torch.float64)
    for _ in range(steps):
        moved = weigh * (radius / apart(share).clamp(min=LEAST)).clamp(max=1.0)
        share = share * (1 - moved.sum()) + moved
    return share


def clipped_mean(rows: Tensor, weights: Tensor, radius: float) -> Tensor:
    """The weighted mean of rows that are scaled down to this norm where they are longer."""
    share = clipped_shares(torch.linalg.vector_norm(rows, dim=1).double(), weights, radius)
    clipped: Tensor = share.to(rows.dtype) @ rows
    return clipped


def clipped_shares(norms: Tensor, weights: Tensor, radius: float) -> Tensor:
    """Of each row of these norms in their clipped mean (n,); see there."""
    shorter = (radius / norms.clamp(min=LEAST)).clamp(max=1.0)
    return weights.double() / weights.double().sum() * shorter


def weighted_mean(rows: Tensor, weights: Tensor) -> Tensor:
    """The plain weighted mean."""
    share = weights.double() / weights.double().sum()
    return share.to(rows.dtype) @ rows


def mixed(rows: Tensor, f: int, weights: Tensor) -> Tensor:
    """In each row's place the weighted mean of the n - f rows nearest to it, itself among them (NNM, Allouah et al.
    2023): where honest clients differ, their means differ less, and a rule can tell hostile ones."""
    return rows if f == 0 else mixing(squared_distances(rows), f, weights).to(rows.dtype) @ rows


def mixing(far: Tensor, f: int, weights: Tensor) -> Tensor:
    """Of each row in each of the mixed ones (n, n), from their squared distances; see there."""
    n = len(far)
    near = far.sort(dim=1, stable=True).indices[:, : n - f]
    share = torch.zeros(n, n, dtype=torch.float64).scatter_(1, near, weights.double()[near])
    return share / share.sum(1, keepdim=True)


def isolation(points: Tensor, others: int) -> Tensor:
    """How far each point (n, d) is from the nearest one with `others` points (n,) within that distance."""
    return squared_distances(points).sort(dim=1).values[:, min(others, len(points) - 1)].sqrt()


def squared_distances(rows: Tensor) -> Tensor:
    """Between all pairs of rows (n, n), by inner products from their mean."""
    return distances_of(products(rows, rows.mean(0)))


def distances_of(dots: Tensor) -> Tensor:
    """Squared distances from inner products (n, n)."""
    squares = dots.diagonal()
    far = (squares[:, None] + squares[None] - 2 * dots).clamp(min=0)
    return far.fill_diagonal_(0)


def products(rows: Tensor, origin: Tensor | None = None) -> Tensor:
    """Inner products of all pairs (n, n), from an origin, summed up in double precision."""
    dots = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    many = max(1, COLUMNS // len(rows))
    for first in range(0, rows.shape[1], many):
        part = rows[:, first : first + many]
        part = part if origin is None else part - origin[first : first + many]
        dots += (part @ part.T).double()
    return dots


def _dots(rows: Tensor) -> Tensor | None:
    """Inner products, with which distances from any mean of few rows cost nothing; None where there are many."""
    return products(rows) if len(rows) <= FEW else None


def _apart(rows: Tensor, share: Tensor, dots: Tensor | None) -> Tensor:
    """How far each row is (n,) from the sum of share * rows."""
    if dots is None:
        far: Tensor = torch.linalg.vector_norm(rows - share.to(rows.dtype) @ rows, dim=1)
        return far.double()
    return apart_of(dots, share)


def apart_of(dots: Tensor, share: Tensor) -> Tensor:
    """The same from the inner products alone."""
    across = dots @ share
    return (dots.diagonal() - 2 * across + share @ across).clamp(min=0).sqrt()


def _sorted(rows: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The coordinates in parts: the first of each, its values (n, some of P), and these in order, number by number.

    NumPy sorts many short columns several times faster than torch does.
    """
    many = max(1, COLUMNS // len(rows))
    for first in range(0, rows.shape[1], many):
        part = rows[:, first : first + many]
        yield first, part, torch.from_numpy(np.sort(part.numpy(), axis=0))
