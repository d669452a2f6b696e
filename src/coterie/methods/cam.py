"""Fed-CAM: a global model and the cluster's model, added. Wraps any method with hard clusters.

Ma et al., Structured Federated Learning through Clustered Additive Modeling, NeurIPS 2023 (Algorithm 1).
y = h(x; Theta_g) + f(x; Theta_k): the base method trains, scores and clusters residuals of the global model, and the
global model is trained on residuals of the cluster models, both from the round's start.
The server sees what the base method sees, and needs the mean of the clients' copies of Theta_g.

A global warm-up takes `warmup` rounds. A local one needs no server and takes none: in the first round all available
clients train alone for as long as `warmup` rounds would take, the base clusters these warm models, and the joint
rounds start from the cluster models, as in Algorithm 1 (the paper's 100 rounds with 30 of local warm-up are 70 here).
Eq. 4 and 13 scale the client's gradient by n_i/n, which would freeze it: the plain gradient is used, as in the
authors' code (all of it: `papers/methods/cam.py`). So is the mean per cluster; `cluster_update="eq6"` is as printed.
IFCA-CAM, FeSEM-CAM and WeCFL-CAM are the paper's; `cam` wraps any other method: method.name=cam method.base.name=clove.
FeSEM-CAM weighs k-means by n_i (Eq. 10-11); the authors' code does not (base.kmeans_weights: equal).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from pydantic import AfterValidator, NonNegativeFloat, NonNegativeInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Best, Pick, Ref, describe_value
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Describe, Evaluate, Fit, Fitted, Reply, Score, Task
from coterie.methods.cfl import CFL
from coterie.methods.contract import Admits, Ask, Releases
from coterie.methods.fedgroup import FedGroup
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.methods.stocfl import StoCFL
from coterie.methods.wecfl import WeCFL


@dataclasses.dataclass(frozen=True, eq=False)
class References:
    """Models that the base measures updates from, and Theta_g when each was first used so (see `measured_from`).

    FedGroup's first updates, StoCFL's representations and the splits of CFL are measured from a model of an earlier
    round: with Theta_g as it was in that round, so that those of different rounds are comparable.
    """

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


def _is_method(given: Any) -> Any:
    if isinstance(given, type) or not all(hasattr(given, name) for name in ("init", "round", "predictor")):
        raise ValueError(f"expected the method to wrap, for example IFCA(k=4), got {describe_value(given)}")
    return given


Base: TypeAlias = Annotated[Any, AfterValidator(_is_method)]


@dataclasses.dataclass(frozen=True, eq=False)
class Additive:
    """Theta_g, and the state of the base method, whose models are residuals of it."""

    shared: Tensor  # (P,) Theta_g
    base: Any
    warm: Tensor  # (P,) where clients start their own warm-up (local_unclustered)
    rounds: int  # done so far
    reference: Tensor | None = None  # (r, P) Theta_g to measure with, for each model that the base measures from

    @property
    def theta_g(self) -> All:
        """Theta_g, for everyone."""
        return All(self.shared)

    @property
    def references(self) -> References:
        """What the base measures from."""
        return References.of(self.base, self.reference, self.shared)

    def after(self, base: Any, shared: Tensor, references: References) -> Additive:
        """The state after a round of the base: what it measures from since then is given this round's Theta_g."""
        reference = References.of(base, references.shared, self.shared).shared
        return dataclasses.replace(self, base=base, shared=shared, rounds=self.rounds + 1, reference=reference)


def refuse_soft_clusters(method: Any, state: Any) -> None:
    """CAM adds a client's one cluster model to the global one: the method it wraps must give each client one."""
    task: Evaluate = method.predictor(state)
    hard = isinstance(method, Admits) or any(isinstance(ref, Pick | Best) for ref in task.models)
    if not hard or task.mixture is not None or task.belongs is not None:
        name = type(method).__name__
        raise CoterieError(
            f"method.base: CAM wraps methods with hard clusters; {name} has soft ones, or none", code="method-invalid"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """Cluster models as they were sent, and what came back."""

    centers: Tensor
    reply: Fitted


@dataclasses.dataclass(eq=False)
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


WarmUpBy: TypeAlias = Literal["global", "local"]


def stretched(local: Local, rounds: int) -> Local:
    """The training of that many rounds as one, which leaves no optimiser state behind."""
    once = dataclasses.replace(local, keep_optimizer=False)
    if once.steps is not None:
        return dataclasses.replace(once, steps=once.steps * rounds)
    return dataclasses.replace(once, epochs=(once.epochs or 1) * rounds)


@dataclasses.dataclass(eq=False)
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


@dataclass(frozen=True, config=STRICT)
class CAM:
    """A global model and the cluster's model, added: wraps any method with hard clusters."""

    paper: ClassVar[str] = "Ma et al. 2023, NeurIPS 2023"
    releases: ClassVar[Releases | str] = (
        "it needs a global model beside those of the clusters, and scores with both of them"
    )

    base: Base  # the clustered method; in a configuration {name: ..., its parameters}
    warmup: NonNegativeInt = 10  # beta; the paper's experiments use 30 of 100 rounds
    warmup_by: WarmUpBy = "global"  # that many rounds of FedAvg for Theta_g, or of each client alone
    lam: NonNegativeFloat = 0.0  # lambda: pull of a client's model to its cluster's (Eq. 12)
    cluster_update: Literal["mean", "eq6"] = "mean"
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Additive:
        """A random Theta_g, and the base method's own start."""
        base = self.base.init(model, roster, rng)
        refuse_soft_clusters(self.base, base)
        return Additive(model.init(rng), base, model.init(rng), 0)

    @property
    def revision(self) -> int:
        """1: a local warm-up ends in clusters; StoCFL's own global model is a residual of the current Theta_g."""
        return int(self.warmup_by == "local" or isinstance(self.base, StoCFL))

    def round(self, state: Additive, cohort: Cohort, ask: Ask) -> Additive:
        """Warm up, or the base method's round on residuals while the global model is trained too."""
        if self.warmup_by == "global" and state.rounds < self.warmup:
            return self.warm_up(state, ask)
        if self.warmup_by == "local" and state.rounds == 0 and self.warmup:
            state = warmed_up_alone(self.base, state, cohort, ask, self.warmup)
        residual = self.residual(state, ask)
        base = self.base.round(state.base, cohort, residual)
        base = interpolated(base, residual.clusters) if self.cluster_update == "eq6" else base
        return state.after(base, residual.trained(self.weights), residual.references)

    def residual(self, state: Additive, ask: Any, train: bool = True) -> Residual:
        """`ask` as the base method gets it. train: whether Theta_g trains together with cluster models."""
        return Residual(ask, state.theta_g, state.references, self.local, self.lam, train)

    def warm_up(self, state: Additive, ask: Ask) -> Additive:
        """A round of FedAvg for Theta_g."""
        return warmed_up(state, self.local, self.weights, ask)

    def joined(self, state: Additive) -> bool:
        """Whether the base method has had its first round."""
        return state.rounds > (self.warmup if self.warmup_by == "global" else 0)

    def predictor(self, state: Additive) -> Evaluate:
        """h + f; while the global model warms up, h."""
        if not self.joined(state):
            return Evaluate((state.theta_g,))
        task: Evaluate = self.base.predictor(state.base)
        scored = map(self.residual(state, None).scored, task.models)
        return dataclasses.replace(task, models=(state.theta_g, *scored))

    def admit(self, state: Additive, cohort: Cohort, ask: Ask) -> Additive:
        """The base method's own rule, on residuals."""
        if not self.joined(state) or not isinstance(self.base, Admits):
            return state
        base = self.base.admit(state.base, cohort, self.residual(state, ask, train=False))
        return dataclasses.replace(state, base=base)


@dataclass(frozen=True, config=STRICT)
class IFCACAM(CAM):
    """IFCA on the residuals of a global model (IFCA-CAM)."""

    base: IFCA = IFCA()


@dataclass(frozen=True, config=STRICT)
class FeSEMCAM(CAM):
    """FeSEM on the residuals of a global model (FeSEM-CAM)."""

    base: FeSEM = FeSEM(features="classifier", kmeans_weights="size", weights="size")  # section 5, Eq. 10-11
    warmup_by: WarmUpBy = "local"
    lam: NonNegativeFloat = 0.01


@dataclass(frozen=True, config=STRICT)
class WeCFLCAM(CAM):
    """WeCFL on the residuals of a global model (WeCFL-CAM)."""

    base: WeCFL = WeCFL()
    warmup_by: WarmUpBy = "local"
    lam: NonNegativeFloat = 0.01


@dataclass(frozen=True, config=STRICT)
class FedGroupCAM(CAM):
    """FedGroup on the residuals of a global model."""

    base: FedGroup = FedGroup()


@dataclass(frozen=True, config=STRICT)
class StoCFLCAM(CAM):
    """StoCFL on the residuals of a global model."""

    base: StoCFL = StoCFL()


@dataclass(frozen=True, config=STRICT)
class CFLCAM(CAM):
    """CFL on the residuals of a global model."""

    base: CFL = CFL()
