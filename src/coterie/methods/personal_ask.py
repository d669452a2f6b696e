"""A section of the model that stays with clients: the state of such a method, and `ask` as a wrapped method gets it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.model import Model, SharedModel
from coterie.core.parts import Section
from coterie.core.references import All, Best, Own, Personal, Pick, Ref
from coterie.core.tasks import Describe, Evaluate, Score, Task

SLOT = "personal"  # where a client keeps its own values
COMMON = "personal.common"  # where nobody keeps anything: the default is meant
NOT_ACCOUNTED = "clients keep a part of the model, and what they send of the rest has not been accounted for"
PARTS_STAY = (  # why there is no server optimizer around such a method
    "leaves a part of the model with clients, its means are of the rest, for which there is no optimizer yet; leave it "
    "out, or take a method that shares the whole"
)
HEAD_OPTIMIZER = "personal.optimizer"  # and the optimiser's state of a training of these alone
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
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
