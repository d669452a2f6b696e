"""Merging the most alike clusters one pair after another, with a merged cluster's mean taken anew."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.labels import by_first_member
from coterie.clustering.similarity import gram


def merge_recomputing(sums: Tensor, tau: float) -> Tensor:
    """Labels (n,): as `greedy_merge`, most alike first, with a merged cluster's mean taken anew after every merge.

    A sum of vectors stands for their mean, which has the same direction. Inner products with a sum are sums of inner
    products, so the vectors are looked at once, and a merge costs one row.
    """
    dots = gram(sums)
    labels, alive = torch.arange(len(sums)), torch.ones(len(sums), dtype=torch.bool)
    alike = _cosines(dots, dots.diagonal()).fill_diagonal_(-torch.inf)
    best, partner = alike.max(1)  # of each row; the lowest column wins a tie, and then the lowest row
    for _ in range(len(sums) - 1):
        row = int(best.argmax())
        if float(best[row]) <= tau and tau > -1:
            break
        i, j = sorted((row, int(partner[row])))
        labels[labels == j] = i
        alive[j] = False
        before = float(dots[i, i] + dots[j, j])
        dots[i] += dots[j]
        dots[:, i] += dots[:, j]
        if float(dots[i, i]) <= 1e-13 * before:  # opposite ones cancel out; what is left is rounding
            dots[i] = dots[:, i] = 0.0
        alike[i] = torch.where(alive, _cosines(dots[i], dots.diagonal(), float(dots[i, i])), -torch.inf)
        alike[i, i] = -torch.inf
        alike[:, i] = alike[i]
        alike[j] = alike[:, j] = -torch.inf
        # Only rows whose most alike was one of the two, or is the new one, have another now.
        touched = torch.nonzero(alive & ((partner == i) | (partner == j) | (alike[i] >= best)))[:, 0]
        touched = torch.cat([touched, torch.tensor([i, j])])
        best[touched], partner[touched] = alike[touched].max(1)
    return by_first_member(labels)


def _cosines(dots: Tensor, squares: Tensor, own: float | None = None) -> Tensor:
    """From inner products: of everything with everything, or of one with everything; a zero vector is like nothing."""
    lengths = squares.clamp(min=0).sqrt()
    lengths = lengths[:, None] * lengths[None] if own is None else lengths * max(own, 0.0) ** 0.5
    return torch.where(lengths > 0, dots / lengths.clamp(min=1e-300), 0.0).clamp(-1, 1)
