"""A personal section around any method that gives each client one model: the cluster's body with the client's own head.

Not of one paper, so that no published figure is to be met. FedPer (Arivazhagan et al. 2019) is this around FedAvg; with
clusters, the members of each share its body and every client has its own head: clusters stand for the inputs
(rotations, devices), heads for the labels. The wrapped method never sees the section: its models and
distances are of the rest.
A client's own head fits the body that it was trained with, so that bodies cannot be compared by it: every client would
stay where it was once. So where models are compared (IFCA's choice, a newcomer's place), the client first trains a head
on each of them, with the body frozen, for `tune` epochs from the common start, and keeps none of these. With `tune` 0
it compares, and a newcomer predicts, with the head that it has. IFCA's cost at a client is K such trainings per visit.
A newcomer gets its cluster's body and tunes a head to it when it predicts, until it takes part in a round.
The server sees what the wrapped method sees of the shared rest; no client's section is ever sent to it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
from pydantic import NonNegativeInt

from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.parts import Section
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Evaluate
from coterie.methods.cam import Base
from coterie.methods.contract import Ask, Releases, admitted
from coterie.methods.ifca import IFCA
from coterie.methods.personal_ask import NOT_ACCOUNTED, PARTS_STAY, Joining, Split, first_section, for_epochs, rest_of


@dataclass(frozen=True, config=STRICT)
class Personalised:
    """A section of the model stays with each client; the rest is trained by any method that gives clients one model."""

    paper: ClassVar[str] = "after Arivazhagan et al. 2019, arXiv:1912.00818"
    no_server_optimizer: ClassVar[str] = PARTS_STAY
    releases: ClassVar[Releases | str] = NOT_ACCOUNTED

    base: Base  # the method of the shared rest; in a configuration {name: ..., its parameters}
    section: Section = "head"  # what is personal: head, classifier, norms, or names of parameters or modules
    head_epochs: NonNegativeInt = 0  # as FedRep: the section alone for so long, then the rest alone; 0: together
    tune: NonNegativeInt = 5  # epochs in which a section is fitted to models to compare, or for a newcomer; 0: never

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Split:
        """The wrapped method's start without the section, and one random section for all."""
        if bool(model.section(self.section).all()):
            raise CoterieError(
                f"method.section: {self.section} is all of this model, and nothing is left for a cluster; name a part "
                "of it, or write method.name=local",
                code="method-invalid",
            )
        own = first_section(model, self.section, rng)
        return Split(self.base.init(rest_of(model, self.section), roster, rng), own)

    def round(self, state: Split, cohort: Cohort, ask: Ask) -> Split:
        """The wrapped method's round, with each client's own section in every model."""
        return dataclasses.replace(state, base=self.base.round(state.base, cohort, self.joining(state, ask)))

    def joining(self, state: Split, ask: Any) -> Joining:
        """`ask` as the wrapped method gets it."""
        tune = for_epochs(self.base.local, self.tune) if self.tune else None
        return Joining(ask, state.personal(self.section, tune), self.head_epochs)

    def predictor(self, state: Split) -> Evaluate:
        """The wrapped method's model with the client's own section."""
        return self.joining(state, None).whole(self.base.predictor(state.base))

    def admit(self, state: Split, cohort: Cohort, ask: Ask) -> Split:
        """The wrapped method's own rule, if it has one."""
        return dataclasses.replace(state, base=admitted(self.base, state.base, cohort, self.joining(state, ask)))


@dataclass(frozen=True, config=STRICT)
class IFCAPersonal(Personalised):
    """IFCA whose clients keep a head of their own: K bodies, each client trains and uses the one that suits it best."""

    base: IFCA = IFCA()
