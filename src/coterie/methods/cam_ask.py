"""`ask` as CAM gives it to the method it wraps: all that it trains or scores is a residual of the global model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.core.local import Local
from coterie.core.references import All, Best, Ref
from coterie.core.replies import Fitted, Reply
from coterie.core.tasks import Describe, Evaluate, Fit, Score, Task
from coterie.methods.cam_references import References


@dataclass(frozen=True, eq=False)
class Trained:
    """Cluster models as they were sent, and what came back."""

    centers: Tensor
    reply: Fitted


@dataclass(eq=False)
class Residual:
    """Adds the global logits to every task and, where cluster models train, the training of the global one."""

    ask: Any
    shared: All  # Theta_g
    references: References
    local: Local  # how Theta_g trains
    lam: float = 0.0
    train_shared: bool = True
    clusters: list[Trained] = dataclasses.field(default_factory=list)
    shared_replies: list[Fitted] = dataclasses.field(default_factory=list)

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        single = isinstance(task, Task)
        tasks = [task] if isinstance(task, Task) else list(task)
        out: list[Task] = []
        mine: list[int] = []  # the positions of the base's own tasks among those sent
        for one in tasks:
            several, own = self.rewrite(one)
            mine.append(len(out) + own)
            out += several
        replies: list[Reply] = self.ask(out)
        kept = [replies[i] for i in mine]
        for one, reply in zip(tasks, kept, strict=True):
            if isinstance(one, Fit) and one.clusters is not None and isinstance(reply, Fitted):
                self.clusters.append(Trained(one.clusters, reply))
        others = (r for i, r in enumerate(replies) if i not in mine and isinstance(r, Fitted))
        self.shared_replies += [r for r in others if r.sent is not None]
        return kept[0] if single else kept

    def trained(self, weights: Weighting) -> Tensor:
        """Theta_g after the round: the mean of the clients' copies (Eq. 7)."""
        shared = self.shared.theta
        for reply in self.shared_replies:
            shared = mean(reply, weigh(reply, weights), empty=shared)
        return shared

    def rewrite(self, task: Task) -> tuple[list[Task], int]:
        """The task on residuals, with the other tasks of the same visit, and its position among them."""
        if isinstance(task, Evaluate | Describe):
            return [task], 0
        if isinstance(task, Score):
            return [dataclasses.replace(task, given=self.scored_with())], 0
        if task.clusters is not None:
            return self.train(task, self.scored(task.start))
        given = self.references.given(task)
        offset = self.shared if given is None else All(given)
        return [dataclasses.replace(task, start=self.scored(task.start), offset=offset)], 0

    def scored_with(self) -> All | None:
        """What is added to a cluster model's logits while clusters are chosen: the global ones (Eq. 2)."""
        return self.shared

    def scored(self, ref: Ref) -> Ref:
        """A choice by loss is a choice by the loss of the sum."""
        return dataclasses.replace(ref, given=self.scored_with()) if isinstance(ref, Best) else ref

    def train(self, task: Fit, start: Ref) -> tuple[list[Task], int]:
        """Eq. 12 and 14: each model is trained on the residuals of the other at the round's start."""
        fit = self.held(dataclasses.replace(task, start=start, offset=self.shared), start)
        return ([fit, self.beside(task, start)] if self.train_shared else [fit]), 0

    def held(self, fit: Fit, start: Ref) -> Fit:
        """The pull of a client's model to its cluster's, unless the base has one of its own."""
        return dataclasses.replace(fit, anchor=start, mu=self.lam) if self.lam and fit.anchor is None else fit

    def beside(self, task: Fit, cluster: Ref) -> Fit:
        """The training of the global model by the same clients, given their cluster model."""
        return Fit(self.shared, local=self.local, offset=cluster, optimizer_slot="cam.global", on=task.on)
