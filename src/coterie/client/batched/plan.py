"""Which samples each step takes when many clients train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.client.training import LocalTraining, cuts, orders
from coterie.core.local import Local


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All steps of a group: which rows of the stacked samples each takes, and how many of them count."""

    rows: Tensor  # (T, G, b) into the stacked samples
    starts: list[int]  # (G,) where a client's samples begin among them
    sizes: Tensor  # (T, G) samples that count; 0: the client has finished
    segments: list[tuple[int, int, int]]  # (first, last, clients still training): steps in which no client finishes
    full: list[bool]  # (T,) every batch full: nothing to mask
    same: bool  # all steps take the same samples (full batches)

    def to(self, device: torch.device) -> BatchPlan:
        """The same plan on a device: it is made on the host, so that every device sees the same batches."""
        return replace(self, rows=self.rows.to(device), sizes=self.sizes.to(device))


def make_plan(trainings: Sequence[LocalTraining], starts: Sequence[int]) -> BatchPlan:
    """starts: where each client's samples begin among those of all."""
    parts = [cuts(len(training.y), training.local) for training in trainings]
    steps = [steps_of(len(training.y), training.local) for training in trainings]
    widest = max(own[0][1] for own in parts)
    rows = np.zeros((max(steps), len(trainings), widest), dtype=np.int64)
    sizes = np.zeros((max(steps), len(trainings)), dtype=np.int64)
    for g, training in enumerate(trainings):
        _plan_client(training, parts[g], steps[g], starts[g], rows[:, g], sizes[:, g])
    active = (sizes > 0).sum(1)
    ends = [*(np.flatnonzero(np.diff(active)) + 1).tolist(), len(active)]
    segments = [(first, last, int(active[first])) for first, last in pairwise([0, *ends])]
    full = (sizes == widest).sum(1) == active
    same = all(len(own) == 1 for own in parts)
    return BatchPlan(torch.from_numpy(rows), list(starts), torch.from_numpy(sizes), segments, full.tolist(), same)


def _plan_client(
    training: LocalTraining,
    parts: Sequence[tuple[int, int]],
    steps: int,
    start: int,
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Fill in one client's rows (T, b) and batch sizes (T,)."""
    n, size, per_epoch = len(training.y), parts[0][1], len(parts)
    batch_sizes = [end - begin for begin, end in parts]
    order = orders(n, training.local, training.rng)
    for first in range(0, steps, per_epoch):
        drawn = next(order)
        # A short batch is padded with one of the client's own samples, with weight zero.
        filled = np.full(per_epoch * size, start, dtype=np.int64)
        filled[:n] = (np.arange(n) if drawn is None else drawn) + start
        last = min(first + per_epoch, steps)
        rows[first:last, :size] = filled.reshape(per_epoch, size)[: last - first]
        rows[first:last, size:] = start
        sizes[first:last] = batch_sizes[: last - first]


def steps_of(n: int, local: Local) -> int:
    """How many steps a client with n samples takes."""
    return local.steps if local.steps is not None else (local.epochs or 1) * len(cuts(n, local))
