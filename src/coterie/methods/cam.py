"""Fed-CAM: a global model and the cluster's model, added. Wraps any method with hard clusters.

Ma et al., Structured Federated Learning through Clustered Additive Modeling, NeurIPS 2023 (Algorithm 1).
y = h(x; Theta_g) + f(x; Theta_k): the base method trains, scores and clusters what the global model leaves over, and
the global model is trained on what the cluster models leave over, both from the round's start (`simultaneous`).
The server sees what the base method sees, and needs the mean of the clients' copies of Theta_g.

The base asks as it always does; its tasks are given the global logits on their way out, and where it trains cluster
models, the client trains the global one in the same visit. Eq. 4 and 13 scale the client's gradient by n_i/n, which
would freeze it: the plain gradient is used, as in the authors' code. So is the mean per cluster; `cluster_update="eq6"`
is the printed interpolation. The authors' code further has order: cluster_first (IFCA) or global_first (FeSEM), no
gradient in the lambda term (lam: 0), and for IFCA score: alone with base.choose_by: accuracy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.domains import STRICT
from coterie.errors import CoterieError
from coterie.means import Weighting, mean, weigh
from coterie.methods.cfl import CFL
from coterie.methods.contract import Admits, Ask
from coterie.methods.fedgroup import FedGroup
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.methods.stocfl import StoCFL
from coterie.methods.wecfl import WeCFL
from coterie.model import Model
from coterie.tasks import All, Best, Cohort, Evaluate, Fit, Fitted, Local, Own, Pick, Ref, Reply, Roster, Score, Task

WARM = "cam.warm"  # where a client keeps the model it trains alone in a local warm-up


@dataclasses.dataclass(frozen=True, eq=False)
class Additive:
    """Theta_g, and the state of the base method, whose models are residuals of it."""

    shared: Tensor  # (P,) Theta_g
    base: Any
    warm: Tensor  # (P,) where a local warm-up begins
    rounds: int  # done so far


@dataclass(frozen=True, config=STRICT)
class CAM:
    """A global model and the cluster's model, added: wraps any method with hard clusters."""

    paper: ClassVar[str] = "Ma et al. 2023, NeurIPS 2023"

    base: Any  # the clustered method; in a configuration {name: ..., its parameters}
    warmup: NonNegativeInt = 10  # beta; the paper's experiments use 30 of 100 rounds
    warmup_by: Literal["global", "local"] = "global"  # FedAvg of Theta_g, or clients alone before the first clustering
    lam: NonNegativeFloat = 0.0  # lambda: pull of a client's model to its cluster's (Eq. 12)
    order: Literal["simultaneous", "cluster_first", "global_first"] = "simultaneous"
    score: Literal["additive", "alone"] = "additive"  # whether clusters are chosen with the global logits (Eq. 2)
    cluster_update: Literal["mean", "eq6"] = "mean"
    without_global: bool = False  # ablation: Theta_g stays zero, which leaves the base method
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Additive:
        """Theta_g at random, beside the base method's own start."""
        base = self.base.init(model, roster, rng)
        if self.base.predictor(base).mixture is not None:
            raise CoterieError(
                f"method.base: CAM wraps methods with hard clusters, {type(self.base).__name__} has soft ones"
            )
        shared = model.init(rng)
        return Additive(torch.zeros_like(shared) if self.without_global else shared, base, model.init(rng), 0)

    def round(self, state: Additive, cohort: Cohort, ask: Ask) -> Additive:
        """Warm up, or the base method's round on residuals with the global model trained beside it."""
        after = dataclasses.replace(state, rounds=state.rounds + 1)
        if state.rounds < self.warmup:
            return self.warm_up(after, ask)
        residual = Residual(self, state, ask)
        base = self.base.round(state.base, cohort, residual)
        if self.cluster_update == "eq6":
            base = interpolated(state.base, base, residual.fits)
        shared = state.shared
        for reply in residual.shared:
            shared = mean(reply.theta, weigh(reply, self.weights), empty=shared)
        return dataclasses.replace(after, base=base, shared=shared)

    def warm_up(self, state: Additive, ask: Ask) -> Additive:
        """A round of FedAvg for Theta_g, or of everyone for itself."""
        if self.warmup_by == "local":
            ask(Fit(Own(WARM, All(state.warm)), local=self.local, save=WARM, send=False))
            return state
        reply = ask(Fit(All(state.shared), local=self.local, optimizer_slot="cam.global"))
        return dataclasses.replace(state, shared=mean(reply.theta, weigh(reply, self.weights), empty=state.shared))

    def predictor(self, state: Additive) -> Evaluate:
        """h + f; while warming up, with what is being warmed up."""
        if not self._joined(state):
            alone: Ref = Own(WARM, All(state.warm)) if self.warmup_by == "local" else All(state.shared)
            return Evaluate((alone,))
        task: Evaluate = self.base.predictor(state.base)
        given = Residual(self, state, None)
        return dataclasses.replace(task, models=(All(state.shared), *(given.scored(ref) for ref in task.models)))

    def _joined(self, state: Additive) -> bool:
        return state.rounds > self.warmup

    def admit(self, state: Additive, cohort: Cohort, ask: Ask) -> Additive:
        """The base method's own rule, on residuals."""
        if not self._joined(state) or not isinstance(self.base, Admits):
            return state
        return dataclasses.replace(
            state, base=self.base.admit(state.base, cohort, Residual(self, state, ask, train=False))
        )


class Residual:
    """`ask` as the base method gets it: whatever it trains or scores is a residual of the global model."""

    def __init__(self, cam: CAM, state: Additive, ask: Any, train: bool = True) -> None:
        self.cam, self.given, self.ask = cam, All(state.shared), ask
        self.train = train and not cam.without_global
        self.first = state.rounds == cam.warmup and cam.warmup_by == "local" and cam.warmup > 0
        self.fits: list[Fitted] = []
        self.shared: list[Fitted] = []

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        single = isinstance(task, Fit | Score | Evaluate)
        tasks = [task] if isinstance(task, Fit | Score | Evaluate) else list(task)
        out: list[Task] = []
        mine: list[int] = []  # where the base's own tasks stand among those sent
        for one in tasks:
            pair = self.rewrite(one)
            mine.append(len(out) + (0 if self.cam.order != "global_first" else len(pair) - 1))
            out += pair
        replies: list[Reply] = self.ask(out)
        kept = [replies[i] for i in mine]
        self.fits += [r for r in kept if isinstance(r, Fitted) and r.theta is not None]
        self.shared += [r for i, r in enumerate(replies) if i not in mine and isinstance(r, Fitted)]
        return kept[0] if single else kept

    def scored(self, ref: Ref) -> Ref:
        """A choice by loss is a choice by the loss of the sum."""
        if isinstance(ref, Best) and self.cam.score == "additive":
            return dataclasses.replace(ref, given=self.given)
        return ref

    def rewrite(self, task: Task) -> list[Task]:
        """The task on residuals, and with it the global model's training where cluster models train."""
        if isinstance(task, Score):
            return [dataclasses.replace(task, given=self.given if self.cam.score == "additive" else None)]
        if isinstance(task, Evaluate):
            return [task]
        start = self.scored(task.start)
        clustered = isinstance(start, Pick | Best)
        pulled = clustered and task.anchor is None and self.cam.lam > 0
        fit = dataclasses.replace(
            task,
            start=Own(WARM, start) if self.first and clustered else start,
            offset=self.given,
            anchor=start if pulled else task.anchor,
            mu=self.cam.lam if pulled else task.mu,
        )
        if not (clustered and self.train):
            return [fit]
        shared = Fit(self.given, local=self.cam.local, offset=start, optimizer_slot="cam.global", on=task.on)
        match self.cam.order:
            case "simultaneous":
                return [fit, shared]
            case "cluster_first":
                own = Own("cam.theta", start)
                return [dataclasses.replace(fit, save="cam.theta"), dataclasses.replace(shared, offset=own)]
            case "global_first":
                own = Own("cam.shared", self.given)
                return [dataclasses.replace(shared, save="cam.shared"), dataclasses.replace(fit, offset=own)]


def interpolated(old: Any, new: Any, fits: Sequence[Fitted]) -> Any:
    """Eq. 6: each center moves only by the share of all samples that its clients hold."""
    before, after = (s if isinstance(s, Tensor) else s.centers for s in (old, new))
    if before.shape != after.shape or not fits:
        return new
    reply = fits[-1]
    labels = reply.chosen if isinstance(new, Tensor) else new.labels.at(reply.ids)
    n = reply.n.double()
    share = torch.zeros(len(after), dtype=torch.float64).index_add_(0, labels, n / n.sum())
    centers = torch.lerp(before, after, share.to(after.dtype)[:, None])
    return centers if isinstance(new, Tensor) else dataclasses.replace(new, centers=centers)


@dataclass(frozen=True, config=STRICT)
class IFCACAM(CAM):
    """IFCA on what a global model leaves over (IFCA-CAM)."""

    base: IFCA = IFCA()


@dataclass(frozen=True, config=STRICT)
class FeSEMCAM(CAM):
    """FeSEM on what a global model leaves over (FeSEM-CAM)."""

    base: FeSEM = FeSEM(features="classifier", weights="size")  # section 5 and Eq. 11
    warmup_by: Literal["global", "local"] = "local"
    lam: NonNegativeFloat = 0.01


@dataclass(frozen=True, config=STRICT)
class WeCFLCAM(CAM):
    """WeCFL on what a global model leaves over (WeCFL-CAM)."""

    base: WeCFL = WeCFL()
    warmup_by: Literal["global", "local"] = "local"
    lam: NonNegativeFloat = 0.01


@dataclass(frozen=True, config=STRICT)
class FedGroupCAM(CAM):
    """FedGroup on what a global model leaves over."""

    base: FedGroup = FedGroup()


@dataclass(frozen=True, config=STRICT)
class StoCFLCAM(CAM):
    """StoCFL on what a global model leaves over."""

    base: StoCFL = StoCFL()


@dataclass(frozen=True, config=STRICT)
class CFLCAM(CAM):
    """CFL on what a global model leaves over."""

    base: CFL = CFL()
