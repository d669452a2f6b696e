"""What CAM's base measures from one model for all stays comparable from round to round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from coterie import CAM, Local
from coterie.methods.fedgroup import FedGroup
from coterie.model import Model
from coterie.tasks import All, Cohort, Fit, Fitted, Roster

ROSTER = Roster(torch.tensor([3, 7, 11]), torch.tensor([10, 10, 10]))


class Moving:
    """Clients that move every start by their own step; remembers the offsets of what began at one model for all."""

    def __init__(self) -> None:
        self.measured: list[torch.Tensor] = []
        self.trained: list[torch.Tensor] = []

    def __call__(self, task: Any) -> Any:
        return [self.one(t) for t in task] if isinstance(task, list) else self.one(task)

    def one(self, task: Fit) -> Fitted:
        ids = ROSTER.ids if task.on is None else task.on
        if isinstance(task.offset, All):
            (self.measured if isinstance(task.start, All) else self.trained).append(task.offset.theta)
        theta = torch.stack([torch.full((2,), float(i)) for i in ids.tolist()])
        return Fitted(ids, torch.full((len(ids),), 10), torch.zeros(len(ids)), theta, torch.zeros_like(ids))


def test_newcomers_of_later_rounds_are_measured_given_the_global_model_that_the_first_were() -> None:
    """FedGroup(k=1) pre-trains 3 in round 0 and meets 7 in round 1, when the global model has moved on."""
    cam = CAM(base=FedGroup(k=1, alpha=1, local=Local()), warmup=0)
    ask: Any = Moving()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), ROSTER, np.random.default_rng(0))
    first = state.shared
    for t, ids in enumerate(([3], [7], [11])):
        state = cam.round(state, Cohort(torch.tensor(ids), t, ROSTER, np.random.default_rng(t)), ask)
    assert not torch.equal(state.shared, first)
    assert len(ask.measured) >= 3
    assert all(torch.equal(offset, first) for offset in ask.measured)
    assert any(not torch.equal(offset, first) for offset in ask.trained)  # cluster models follow the current one
