"""Fed-CAM as in its authors' code: one model trains after the other within a visit.

IFCA-CAM is order: cluster_first, score: alone (clusters are chosen without the global logits) and the base ifca-authors
with weights: size, choose_by: accuracy. FeSEM-CAM is order: global_first, lam: 0 (its lambda term has no gradient),
warmup_by: local and the base fesem-authors. In the authors' code, IFCA's clients choose after a training that
started from the choice of the round before; this is not implemented.
`warmup_by="local_unclustered"` is neither in their code nor in the paper: only the first round's clients warm up, and
that round starts from their own warm models.

`order="global_first"` is unstable, probably because a cluster model is trained to complement its client's own copy of
Theta_g, and then used with the mean of all copies. On Fashion-MNIST with momentum 0.9 (20 clients, 20 rounds, seed 0)
it ended with 18.7 %, `simultaneous` with 93.9 % and `cluster_first` with 94.0 % (`python -m papers cam-order`).

Fed-CAM without its global model, which leaves the method it wraps (after a warm-up that trains nothing).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Roster
from coterie.core.tasks import All, Fit, Own, Ref, Task
from coterie.methods.cam import CAM, Additive, Residual, stretched
from coterie.methods.contract import Ask

WARM = "cam.warm"  # where a client keeps the model it has trained alone (local_unclustered)
Order: TypeAlias = Literal["simultaneous", "cluster_first", "global_first"]


@dataclasses.dataclass(eq=False)
class InTurn(Residual):
    """Both models train in one visit, one after the other."""

    order: Order = "simultaneous"
    additive_scores: bool = True
    alone: Fit | None = None  # what a client trains first on its own, and continues from

    def scored_with(self) -> All | None:
        """The global logits, or nothing."""
        return self.shared if self.additive_scores else None

    def train(self, task: Fit, start: Ref) -> tuple[list[Task], int]:
        """The model that trains second is given the client's own result of the first."""
        first: list[Task] = [] if self.alone is None else [dataclasses.replace(self.alone, on=task.on)]
        begin: Ref = start if self.alone is None else Own(WARM, start)
        fit = dataclasses.replace(task, start=begin, offset=self.shared)
        fit = self.held(fit, start) if self.alone is None else fit
        shared = self.beside(task, begin)
        if not self.train_shared:
            return [*first, fit], len(first)
        if self.order == "cluster_first":
            fit = dataclasses.replace(fit, save="cam.theta")
            return [*first, fit, dataclasses.replace(shared, offset=Own("cam.theta", begin))], len(first)
        if self.order == "global_first":
            shared = dataclasses.replace(shared, save="cam.shared")
            fit = dataclasses.replace(fit, offset=Own("cam.shared", self.shared))
            return [*first, shared, fit], len(first) + 1
        return [*first, fit, shared], len(first)


@dataclass(frozen=True, config=STRICT)
class CAMAuthors(CAM):
    """Fed-CAM as in its authors' code: one model trains after the other within a visit."""

    warmup_by: Literal["global", "local", "local_unclustered"] = "global"  # type: ignore[assignment]
    order: Order = "cluster_first"
    score: Literal["additive", "alone"] = "additive"  # whether clusters are chosen with the global logits (Eq. 2)

    def residual(self, state: Additive, ask: Any, train: bool = True) -> Residual:
        """`ask` as the base method gets it."""
        first = state.rounds == 0 and self.warmup > 0 and self.warmup_by == "local_unclustered"
        local = stretched(self.local, self.warmup) if first else self.local
        alone = Fit(All(state.warm), local=local, save=WARM, send=False) if first else None
        plain = vars(super().residual(state, ask, train))
        return InTurn(**plain, order=self.order, additive_scores=self.score == "additive", alone=alone)


@dataclass(frozen=True, config=STRICT)
class CAMWithoutGlobal(CAM):
    """Fed-CAM whose global model stays zero: the method it wraps, and nothing else (ablation)."""

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Additive:
        """Theta_g is zero."""
        state = super().init(model, roster, rng)
        return dataclasses.replace(state, shared=torch.zeros_like(state.shared))

    def residual(self, state: Additive, ask: Any, train: bool = True) -> Residual:
        """Theta_g is never trained."""
        return super().residual(state, ask, train=False)

    def warm_up(self, state: Additive, ask: Ask) -> Additive:
        """There is nothing to warm up."""
        return dataclasses.replace(state, rounds=state.rounds + 1)
