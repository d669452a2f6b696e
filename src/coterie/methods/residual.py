"""`ask` as CAM hands it to the method it wraps: whatever that trains or scores is a residual of the global model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from coterie.tasks import All, Best, Evaluate, Fit, Fitted, Local, Own, Pick, Ref, Reply, Score, Task

WARM = "cam.warm"  # where a client keeps the model it has trained alone
Order: TypeAlias = Literal["simultaneous", "cluster_first", "global_first"]


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
    reference: All  # Theta_g when the base method began
    local: Local  # how Theta_g trains
    lam: float = 0.0
    order: Order = "simultaneous"
    additive_scores: bool = True
    alone: Fit | None = None  # what a client trains on its own first, to go on from (the local warm-up)
    train_shared: bool = True
    answered: bool = False  # whether anyone has, so far
    clusters: list[Trained] = dataclasses.field(default_factory=list)
    shared_replies: list[Fitted] = dataclasses.field(default_factory=list)

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        single = isinstance(task, Fit | Score | Evaluate)
        tasks = [task] if isinstance(task, Fit | Score | Evaluate) else list(task)
        out: list[Task] = []
        mine: list[int] = []  # where the base's own tasks stand among those sent
        for one in tasks:
            several, own = self.rewrite(one)
            mine.append(len(out) + own)
            out += several
        replies: list[Reply] = self.ask(out)
        self.answered |= any(len(reply.ids) for reply in replies)
        kept = [replies[i] for i in mine]
        for one, reply in zip(tasks, kept, strict=True):
            if isinstance(one, Fit) and isinstance(one.start, Pick | Best) and isinstance(reply, Fitted):
                self.clusters.append(Trained(one.start.centers, reply))
        others = (r for i, r in enumerate(replies) if i not in mine and isinstance(r, Fitted))
        self.shared_replies += [r for r in others if r.sent is not None]
        return kept[0] if single else kept

    def scored(self, ref: Ref) -> Ref:
        """A choice by loss is a choice by the loss of the sum."""
        return dataclasses.replace(ref, given=self.shared) if isinstance(ref, Best) and self.additive_scores else ref

    def rewrite(self, task: Task) -> tuple[list[Task], int]:
        """The task on residuals, with whatever else trains in the same visit, and where among these it stands."""
        if isinstance(task, Score):
            return [dataclasses.replace(task, given=self.shared if self.additive_scores else None)], 0
        if isinstance(task, Evaluate):
            return [task], 0
        start = self.scored(task.start)
        if not isinstance(start, Pick | Best):
            return [dataclasses.replace(task, offset=self.reference)], 0
        first: list[Task] = [] if self.alone is None else [dataclasses.replace(self.alone, on=task.on)]
        begin: Ref = start if self.alone is None else Own(WARM, start)
        fit = dataclasses.replace(task, start=begin, offset=self.shared)
        if task.anchor is None and self.lam and self.alone is None:
            fit = dataclasses.replace(fit, anchor=start, mu=self.lam)
        if not self.train_shared:
            return [*first, fit], len(first)
        shared = Fit(self.shared, local=self.local, offset=begin, optimizer_slot="cam.global", on=task.on)
        match self.order:
            case "simultaneous":
                return [*first, fit, shared], len(first)
            case "cluster_first":
                own = Own("cam.theta", begin)
                saved = dataclasses.replace(fit, save="cam.theta")
                return [*first, saved, dataclasses.replace(shared, offset=own)], len(first)
            case "global_first":
                own = Own("cam.shared", self.shared)
                saved = dataclasses.replace(shared, save="cam.shared")
                return [*first, saved, dataclasses.replace(fit, offset=own)], len(first) + 1


def interpolated(state: Any, trained: Sequence[Trained]) -> Any:
    """Eq. 6: each center moves from where it was only by the share of all samples that its clients hold."""
    for step in trained:
        after = state if isinstance(state, Tensor) else state.centers
        if len(step.centers) < len(after) or not len(step.reply.ids):  # the clustering that makes K centers out of one
            continue
        labels = step.reply.chosen if isinstance(state, Tensor) else state.labels.at(step.reply.ids)
        n = step.reply.n.double()
        share = torch.zeros(len(after), dtype=torch.float64).index_add_(0, labels, n / n.sum())
        centers = torch.lerp(step.centers[: len(after)], after, share.to(after.dtype)[:, None])
        state = centers if isinstance(state, Tensor) else dataclasses.replace(state, centers=centers)
    return state
