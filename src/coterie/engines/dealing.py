"""Which clients are visited together: hands of about equal work, the largest clients first."""

from __future__ import annotations

import torch
from torch import Tensor


def deal(ids: Tensor, sizes: Tensor, hands: int) -> list[tuple[int, ...]]:
    """About so many hands; no worker waits long for another, since the last ones are the lightest."""
    order = torch.argsort(sizes, descending=True, stable=True)
    share = float(sizes.sum()) / hands
    dealt: list[tuple[int, ...]] = []
    hand: list[int] = []
    work = 0
    for client, size in zip(ids[order].tolist(), sizes[order].tolist(), strict=True):
        hand.append(client)
        work += size
        if work >= share:
            dealt.append(tuple(hand))
            hand, work = [], 0
    return [*dealt, tuple(hand)] if hand else dealt
