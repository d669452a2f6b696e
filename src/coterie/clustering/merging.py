"""Merge the most similar pair of clusters, recompute the mean of the merged cluster, and repeat."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.labels import by_first_member
from coterie.clustering.similarity import gram


def merge_recomputing(sums: Tensor, tau: float) -> Tensor:
    """Labels (n,): as `greedy_merge`, most similar first, with the merged cluster's mean recomputed after every merge.

    A sum of vectors represents their mean, which has the same direction. Inner products with a sum are sums of inner
    products, so the vectors themselves are used only once, and a merge costs one row.
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
        if float(dots[i, i]) <= 1e-13 * before:  # opposite vectors cancel out; the remainder is rounding
            dots[i] = dots[:, i] = 0.0
        alike[i] = torch.where(alive, _cosines(dots[i], dots.diagonal(), float(dots[i, i])), -torch.inf)
        alike[i, i] = -torch.inf
        alike[:, i] = alike[i]
        alike[j] = alike[:, j] = -torch.inf
        # Only rows whose nearest cluster was one of the two, or is the merged one, have to be updated.
        touched = torch.nonzero(alive & ((partner == i) | (partner == j) | (alike[i] >= best)))[:, 0]
        touched = torch.cat([touched, torch.tensor([i, j])])
        best[touched], partner[touched] = alike[touched].max(1)
    return by_first_member(labels)


def _cosines(dots: Tensor, squares: Tensor, own: float | None = None) -> Tensor:
    """Cosines from inner products: of all pairs, or of one vector with all; 0 for a zero vector."""
    lengths = squares.clamp(min=0).sqrt()
    lengths = lengths[:, None] * lengths[None] if own is None else lengths * max(own, 0.0) ** 0.5
    return torch.where(lengths > 0, dots / lengths.clamp(min=1e-300), 0.0).clamp(-1, 1)
