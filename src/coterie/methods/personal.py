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

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import NonNegativeInt
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.model import Model, SharedModel
from coterie.core.parts import Section
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import All, Best, Describe, Evaluate, Local, Own, Personal, Pick, Ref, Score, Task
from coterie.methods.cam import Base
from coterie.methods.contract import Ask, Releases, admitted
from coterie.methods.ifca import IFCA

SLOT = "personal"  # where a client keeps its own values
COMMON = "personal.common"  # where nobody keeps anything: the default is meant
NOT_ACCOUNTED = "clients keep a part of the model, and what they send of the rest has not been accounted for"
PARTS_STAY = (  # why there is no server optimizer around such a method
    "leaves a part of the model with clients, its means are of the rest, for which there is no optimizer yet; leave it "
    "out, or take a method that shares the whole"
)
HEAD_OPTIMIZER = "personal.optimizer"  # and the optimiser's state of a training of these alone
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """What the server has: models without the personal section, and what a client's own section starts from."""

    base: Any  # the shared vector, or the state of a method whose models are such vectors
    own: Tensor  # (P_own,); empty where nothing is personal

    def personal(self, section: Section, tune: Local | None = None) -> Personal | None:
        """What tasks say of the section; None where it is empty."""
        return Personal(section, Own(SLOT, All(self.own)), tune) if len(self.own) else None


def rest_of(model: Model, section: Section) -> Model:
    """The model as the server has it: the very model where the section is empty."""
    return SharedModel.of_rest(model, section) if bool(model.section(section).any()) else model


def first_section(model: Model, section: Section, rng: np.random.Generator) -> Tensor:
    """The section of the model that the generator draws next, which it still does: both parts begin as one model."""
    if isinstance(model, SharedModel):
        raise CoterieError(
            "method.base: this method keeps a section of the model with each client itself; write its name as "
            "method.name, with all that is personal in its section, or another base such as ifca",
            code="method-invalid",
        )
    return model.init(copy.deepcopy(rng))[model.section(section)]


def for_epochs(local: Local, epochs: int) -> Local:
    """The same training for so many epochs, which keeps nothing of its optimiser."""
    return dataclasses.replace(local, epochs=epochs, steps=None, keep_optimizer=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Joining:
    """Puts the clients' own section into every model that the wrapped method asks about."""

    ask: Any
    personal: Personal | None
    head_epochs: int = 0  # train the section alone for so long first, and then the rest alone; 0: together

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        single = isinstance(task, Task)
        tasks = [task] if isinstance(task, Task) else list(task)
        sent = [self.rewritten(one) for one in tasks]
        replies = iter(self.ask([one for several in sent for one in several]))
        kept = [[next(replies) for _ in several][-1] for several in sent]
        return kept[0] if single else kept

    def rewritten(self, task: Task) -> list[Task]:
        """The task as clients get it; a training of the section before it, if they are trained in turn."""
        if self.personal is None:
            return [task]
        if isinstance(task, Score):
            return [dataclasses.replace(task, personal=self.personal)]
        if isinstance(task, Evaluate):
            return [self.whole(task)]
        if isinstance(task, Describe):
            return [task if task.model is None else dataclasses.replace(task, model=self.encoder(task.model))]
        if task.offset is not None or task.weights is not None or task.save is not None:
            raise _unsupported("keeps models at clients, adds them or weighs samples")
        anchor = None if task.anchor is None else self.joined(task.anchor)
        fit = dataclasses.replace(task, start=self.joined(task.start), anchor=anchor)
        if not self.head_epochs or not task.keep:
            return [fit]
        local = for_epochs(task.local, self.head_epochs)
        section = self.personal.section
        first = dataclasses.replace(fit, local=local, train=section, send=False, sketch=None)
        return [first, dataclasses.replace(fit, freeze=section)]

    def whole(self, task: Evaluate) -> Evaluate:
        """A prediction with whole models."""
        if self.personal is None:
            return task
        if task.mixture is not None or task.belongs is not None or len(task.models) != 1:
            raise _unsupported("predicts with several models")
        return dataclasses.replace(task, models=tuple(map(self.joined, task.models)))

    def encoder(self, ref: Ref) -> Ref:
        """The same model with the section that everyone began with: descriptions are compared between clients."""
        if self.personal is None:
            return ref
        common = Personal(self.personal.section, Own(COMMON, self.personal.own.default))
        return dataclasses.replace(self, personal=common).joined(ref)

    def joined(self, ref: Ref) -> Ref:
        """The same model with the client's own section."""
        if not isinstance(ref, All | Pick | Best):
            raise _unsupported(f"uses a model by {type(ref).__name__}")
        return dataclasses.replace(ref, personal=self.personal)


def _unsupported(why: str) -> CoterieError:
    return CoterieError(
        f"method.base: a personal section needs a method that gives each client one of the server's models, this one "
        f"{why}; write method.base.name=ifca (or fedavg, fesem, wecfl, stocfl, fedgroup, cfl)",
        code="method-invalid",
    )


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
