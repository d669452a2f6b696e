"""k: auto for methods that begin with K random models: a rule reads K off what clients learn from a common start.

The method draws more models than a rule may choose, and its first round begins with the question how many are needed:
`ASKED` clients, or all there are, train from the first model (the few of a round may not show every kind). "auto" looks
at two halves of each client's data (see `count_by_halves`), the other rules at the directions in which clients move.
`IFCA(k="auto")` is `AutoK(IFCA(), "auto")`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.cohort import Cohort, Roster
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.tasks import Evaluate, Fit
from coterie.methods.cluster_count import MOST, ClusterCount, at_least, count, enough_clients
from coterie.methods.contract import Ask, admitted
from coterie.methods.count_by_halves import ASKED, count_by_halves

T = TypeVar("T")


def random_models(k: ClusterCount, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
    """k independent random models; as many as a rule may choose where it has not chosen yet."""
    enough_clients(k, roster)
    return torch.stack([model.init(rng) for _ in range(k if isinstance(k, int) else MOST)])


@dataclasses.dataclass(frozen=True)
class AutoK:
    """A method that begins with K random models, and a rule that chooses K in the first round."""

    base: Any
    rule: ClusterCount = "auto"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Any:
        """As many models as the rule may choose, and one more: it has not chosen yet."""
        return dataclasses.replace(self.base, k=self.rule).init(model, roster, rng)

    def round(self, state: Any, cohort: Cohort, ask: Ask) -> Any:
        """The first time choose K; then the method's round."""
        return self.base.round(self.choose(state, cohort, ask), cohort, ask)

    def choose(self, state: Any, cohort: Cohort, ask: Ask) -> Any:
        """The state with the models to begin with; as it is where K was chosen, or given."""
        models: Tensor = state if isinstance(state, Tensor) else state.centers
        if isinstance(self.rule, int) or len(models) < MOST:
            return state
        kept = models[: self.many(models[0], cohort, ask)]
        return kept if isinstance(state, Tensor) else dataclasses.replace(state, centers=kept)

    def many(self, start: Tensor, cohort: Cohort, ask: Ask) -> int:
        """How many models the rule wants."""
        if self.rule == "auto":
            return count_by_halves(start, self.base.local, cohort, ask)
        reply = ask(Fit(All(start), local=self.base.local, keep=False, on=at_least(ASKED, cohort)))
        directions = functional.normalize(reply.models - start)
        return count(directions, self.rule, torch.ones(len(directions), dtype=torch.float64), cohort)

    def predictor(self, state: Any) -> Evaluate:
        """The method's own."""
        task: Evaluate = self.base.predictor(state)
        return task

    def admit(self, state: Any, cohort: Cohort, ask: Ask) -> Any:
        """The method's own rule, if it has one."""
        return admitted(self.base, state, cohort, ask)


def takes_auto_k(method: type[T]) -> type[T]:
    """A decorator of methods that begin with K random models: where their k is a rule, `AutoK` chooses it."""
    plain: Any = method.round  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def round(self: Any, state: Any, cohort: Cohort, ask: Ask) -> Any:
        return plain(self, AutoK(self, self.k).choose(state, cohort, ask), cohort, ask)

    method.round = round  # type: ignore[attr-defined]
    return method
