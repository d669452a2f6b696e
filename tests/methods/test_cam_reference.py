"""What CAM's base measures from one model for all stays comparable from round to round."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie import CAM, Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Fit, Fitted
from coterie.methods.cam import Additive, References
from coterie.methods.cfl import CFL, Tree
from coterie.methods.fedgroup import FedGroup
from coterie.methods.stocfl import StoCFL

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


def test_what_stocfl_trains_is_a_residual_of_the_current_global_model() -> None:
    """Representations of later clients stay comparable; omega, which cluster models are pulled to, moves with them."""
    cam = CAM(base=StoCFL(tau=0.5, local=Local()), warmup=0)
    ask: Any = Moving()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), ROSTER, np.random.default_rng(0))
    first, anchor = state.shared, state.base.anchor
    state = cam.round(state, Cohort(torch.tensor([3]), 0, ROSTER, np.random.default_rng(0)), ask)
    assert not torch.equal(state.shared, first)
    assert not torch.equal(state.base.omega, anchor)
    now, ask.measured, ask.trained = state.shared, [], []
    cam.round(state, Cohort(torch.tensor([7]), 1, ROSTER, np.random.default_rng(1)), ask)
    psi, omega = ask.measured
    assert torch.equal(psi, first)
    assert torch.equal(omega, now)


class Settled(Moving):
    """The same clients, to whom omega is perfect as it is: its training brings back the model that was sent."""

    def one(self, task: Fit) -> Fitted:
        reply = super().one(task)
        if task.optimizer_slot != "stocfl.global":
            return reply
        assert isinstance(task.start, All)
        return dataclasses.replace(reply, sent=task.start.theta.expand(len(reply.ids), -1))


def test_a_training_from_the_model_that_is_measured_from_is_given_the_current_global_model() -> None:
    """StoCFL's omega is still its anchor in round 1, when the global model has moved to client 3's (3, 3)."""
    cam = CAM(base=StoCFL(tau=0.5, local=Local()), warmup=0)
    ask: Any = Settled()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), ROSTER, np.random.default_rng(0))
    first = state.shared
    state = cam.round(state, Cohort(torch.tensor([3]), 0, ROSTER, np.random.default_rng(0)), ask)
    assert torch.equal(state.base.omega, state.base.anchor)
    assert state.shared.tolist() == [3.0, 3.0]
    ask.measured = []
    cam.round(state, Cohort(torch.tensor([7]), 1, ROSTER, np.random.default_rng(1)), ask)
    psi, omega = ask.measured  # both begin at the anchor: one is measured, the other trained
    assert psi.tolist() == first.tolist()
    assert omega.tolist() == [3.0, 3.0]


def test_each_fork_of_cfl_is_measured_given_the_global_model_of_its_own_round() -> None:
    stems = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    tree = Tree(stems, ByClient.empty(), torch.arange(2), torch.tensor([0, 0]), torch.tensor([1, 2]), stems, stems)
    early, late, now = torch.tensor([5.0, 5.0]), torch.tensor([6.0, 6.0]), torch.tensor([7.0, 7.0])
    found = References.of(tree, early[None], late)  # the second fork came in the round that began with `late`
    kept = Additive(now, tree, now, 2, found.shared)
    residual = CAM(base=CFL(), warmup=0).residual(kept, None, train=False)
    offsets = [residual.rewrite(Fit(All(model), local=Local(), keep=False))[0][0].offset for model in (*stems, now)]  # type: ignore[union-attr]
    assert [o.theta.tolist() for o in offsets] == [[5.0, 5.0], [6.0, 6.0], [7.0, 7.0]]  # type: ignore[union-attr]


def test_a_local_warm_up_measures_without_a_global_model_and_so_do_later_rounds() -> None:
    cam = CAM(base=FedGroup(k=1, alpha=1, local=Local()), warmup=2, warmup_by="local")
    ask: Any = Moving()
    state = cam.init(Model(lambda: nn.Linear(2, 1, bias=False)), ROSTER, np.random.default_rng(0))
    for t, ids in enumerate(([3], [7])):
        state = cam.round(state, Cohort(torch.tensor(ids), t, ROSTER, np.random.default_rng(t)), ask)
    newcomer = Cohort(torch.tensor([13]), 2, ROSTER, np.random.default_rng(2))
    cam.admit(state, newcomer, ask)
    assert all(not offset.any() for offset in ask.measured)
    assert any(offset.any() for offset in ask.trained)
