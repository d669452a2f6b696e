"""Fed-CAM's Eq. 6 as printed: a cluster model is not replaced, it moves by the share of samples its clients hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.methods.cam_ask import Trained


def interpolated(state: Any, trained: Sequence[Trained]) -> Any:
    """Eq. 6: each center moves from where it was only by the share of all samples that its clients hold."""
    for step in trained:
        after = state if isinstance(state, Tensor) else state.centers
        if len(step.centers) < len(after) or not len(step.reply.ids):  # centers that were not there have not moved
            continue
        labels = step.reply.chosen if isinstance(state, Tensor) else state.labels.at(step.reply.ids)
        n = step.reply.n.double()
        share = torch.zeros(len(after), dtype=torch.float64).index_add_(0, labels, n / n.sum())
        centers = torch.lerp(step.centers[: len(after)], after, share.to(after.dtype)[:, None])
        state = centers if isinstance(state, Tensor) else dataclasses.replace(state, centers=centers)
    return state
