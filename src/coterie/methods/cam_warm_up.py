"""CAM's warm-up: rounds of FedAvg for Theta_g, or one long local training of all clients without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.core.cohort import Cohort
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.replies import Reply
from coterie.core.tasks import Fit, Task
from coterie.methods.cam_references import References
from coterie.methods.cam_state import Additive
from coterie.methods.contract import Ask

WarmUpBy: TypeAlias = Literal["global", "local"]


def stretched(local: Local, rounds: int) -> Local:
    """The training of that many rounds as one, which leaves no optimiser state behind."""
    once = dataclasses.replace(local, keep_optimizer=False)
    if once.steps is not None:
        return dataclasses.replace(once, steps=once.steps * rounds)
    return dataclasses.replace(once, epochs=(once.epochs or 1) * rounds)


@dataclass(eq=False)
class WarmUp:
    """`ask` in a local warm-up: all clients train for as long as `rounds` rounds take, without a global model."""

    ask: Any
    references: References
    everyone: Tensor  # ids
    rounds: int

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        single = isinstance(task, Task)
        tasks = [task] if isinstance(task, Task) else list(task)
        replies: list[Reply] = self.ask([self.rewrite(one) for one in tasks])
        return replies[0] if single else replies

    def rewrite(self, task: Task) -> Task:
        """Trainings take longer; measurements are the same as in later rounds."""
        task = dataclasses.replace(task, on=self.everyone) if task.on is None else task
        if not isinstance(task, Fit):
            return task
        if task.keep:
            return dataclasses.replace(task, local=stretched(task.local, self.rounds))
        given = self.references.given(task)
        return task if given is None else dataclasses.replace(task, offset=All(given))


def warmed_up_alone(base: Any, state: Additive, cohort: Cohort, ask: Ask, rounds: int) -> Additive:
    """A long round of the base without Theta_g, by all available clients: warm models, and their clusters."""
    nothing, everyone = torch.zeros_like(state.shared), cohort.roster.ids
    warm = WarmUp(ask, References.of(state.base, None, nothing), everyone, rounds)
    after = base.round(state.base, dataclasses.replace(cohort, ids=everyone), warm)
    return dataclasses.replace(state, base=after, reference=References.of(after, None, nothing).shared)


def warmed_up(state: Additive, local: Local, weights: Weighting, ask: Ask) -> Additive:
    """After a round of FedAvg for Theta_g."""
    reply = ask(Fit(state.theta_g, local=local, optimizer_slot="cam.global"))
    shared = mean(reply, weigh(reply, weights), empty=state.shared)
    return dataclasses.replace(state, shared=shared, rounds=state.rounds + 1)
