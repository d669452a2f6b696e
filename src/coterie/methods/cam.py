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
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt

from coterie.clustering.averaging import Weighting
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.tasks import Evaluate
from coterie.core.types import STRICT
from coterie.methods.cam_ask import Residual
from coterie.methods.cam_eq6 import interpolated
from coterie.methods.cam_state import Additive, Base, refuse_soft_clusters
from coterie.methods.cam_warm_up import WarmUpBy, warmed_up, warmed_up_alone
from coterie.methods.contract import Admits, Ask, Releases
from coterie.methods.stocfl import StoCFL


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
