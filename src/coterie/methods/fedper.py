"""FedPer: the body of the model is shared, the head stays with each client; both are trained together.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019 (Algorithm 1): a client joins the shared base
layers with its own personalisation layers, trains all of them, and sends the base layers.
The server needs the mean of the clients' bodies only (secure aggregation possible); heads are never sent.
The paper's head is the last block or blocks of a ResNet: name them (section=[layer4, fc]). Here it is the last layer.
Its results were not run again: they are curves of ResNet-34 and MobileNet, too large for the CPUs used here.
It leaves open how heads begin (here: one random head for all) and what a client without one predicts with: here a
newcomer trains a head on the frozen body for `tune` epochs (as FedRep's authors do after the last round), and keeps
none of it. With an empty section (section=[]) this is FedAvg; with all of the model in it (where the
model is a single layer, that is its head), local training.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.core.model import Model
from coterie.core.parts import Section
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import All, Evaluate, Fit, Local
from coterie.methods.contract import Ask, Releases
from coterie.methods.personal import NOT_ACCOUNTED, PARTS_STAY, Split, first_section, for_epochs, rest_of


@dataclass(frozen=True, config=STRICT)
class FedPer:
    """A shared body and a personal head, trained together."""

    paper: ClassVar[str] = "Arivazhagan et al. 2019, arXiv:1912.00818"
    no_server_optimizer: ClassVar[str] = PARTS_STAY
    releases: ClassVar[Releases | str] = NOT_ACCOUNTED

    local: Local = Local()
    weights: Weighting = "size"  # n_k / n
    section: Section = "head"  # what is personal: head, classifier, norms, or names of parameters or modules
    tune: NonNegativeInt = 10  # epochs in which a newcomer fits its section before it predicts; 0: the random start

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Split:
        """One random model for all to start from: its body is shared, its head everyone's first."""
        own = first_section(model, self.section, rng)
        return Split(rest_of(model, self.section).init(rng), own)

    def round(self, state: Split, cohort: Cohort, ask: Ask) -> Split:
        """w <- sum_k n_k/n w_k, where client k trains w together with its own head and sends w_k."""
        reply = ask(Fit(self.start(state), local=self.local))
        return self.averaged(state, mean(reply, weigh(reply, self.weights), empty=state.base))

    def start(self, state: Split) -> All:
        """The shared body with the client's own head."""
        return All(state.base, state.personal(self.section))

    def averaged(self, state: Split, w: Tensor) -> Split:
        """The state with this body."""
        return dataclasses.replace(state, base=w)

    def predictor(self, state: Split) -> Evaluate:
        """The shared body with the client's own head; a client without one fits it first."""
        tune = for_epochs(self.local, self.tune) if self.tune else None
        return Evaluate((All(state.base, state.personal(self.section, tune)),))
