"""CAM's base may measure updates from a model of an earlier round (FedGroup's first updates, StoCFL's representations,
the splits of CFL). These measurements use Theta_g as it was in that round, so that those of different rounds are
comparable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.references import All
from coterie.core.tasks import Fit


@dataclass(frozen=True, eq=False)
class References:
    """Models that the base measures updates from, and Theta_g when each was first used so (see `measured_from`)."""

    models: Tensor  # (r, P)
    shared: Tensor  # (r, P)

    @classmethod
    def of(cls, base: Any, known: Tensor | None, now: Tensor) -> References:
        """Those of a base's state: rows that are not known yet are measured from now on, given this Theta_g."""
        find = getattr(base, "measured_from", None)
        models: Tensor = now[:0].reshape(0, len(now)) if find is None else find()
        kept = models[:0] if known is None else known.reshape(-1, len(now))  # one row was kept as a vector once
        return cls(models, torch.cat([kept, now.expand(max(len(models) - len(kept), 0), -1)]))

    def given(self, task: Fit) -> Tensor | None:
        """Theta_g to measure with; None if the task is a training, or starts from no model that is measured from."""
        if task.keep or not isinstance(task.start, All):
            return None
        for row, model in enumerate(self.models):
            if torch.equal(model, task.start.theta):
                return self.shared[row]
        return None
