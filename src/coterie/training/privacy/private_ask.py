"""`ask` in a run with `privacy`: every answer is made private before the method sees it, and every use is counted.

Models are sealed (see `sealed`), sketches and votes get noise, and what a client says of its number of samples and its
loss is left out: all clients weigh the same. What the method's declaration does not allow is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.aggregation import Aggregator
from coterie.core.errors import CoterieError, NoAnswerError
from coterie.core.references import Ref, length_of, starts_of, vectors_of, walk
from coterie.core.tasks import Describe, Described, Evaluate, Fit, Fitted, Reply, Score, Scored, Task
from coterie.training.ask import RoundAsk
from coterie.training.privacy.ledger import Ledger
from coterie.training.privacy.mechanisms import clipped, lifted, noise, noisy_sketches
from coterie.training.privacy.private_mean import PrivateMean
from coterie.training.privacy.sealed import SealedModels, none_of

SKETCH, VOTE, MODELS = 2, 3, 4  # words of the keys that noise is drawn from


class PrivateAsk:
    """One attempt at a round. `ledger` has what was spent, this attempt included."""

    def __init__(
        self,
        ask: RoundAsk,
        ledger: Ledger,
        round: int,
        attempt: int,
        around: Callable[[Aggregator], Aggregator | None] | None = None,
    ) -> None:
        """around: what is done with private means (a server optimizer): it sees nothing else of the clients."""
        self._ask, self._plan, self._words = ask, ledger.plan, (round, attempt)
        self.ledger = ledger.begun()
        self._mean = PrivateMean(ledger.plan, round, attempt)
        self._aggregator = self._mean if around is None else around(self._mean)
        self._charged = torch.empty(0, dtype=torch.int64)
        self._calls = 0  # so that no two releases get the same noise

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        tasks: tuple[Any, ...] = tuple(task) if isinstance(task, list | tuple) else (task,)
        for one in tasks:
            self._check(one)
        try:
            replies: list[Reply] = self._ask(list(tasks))
        except NoAnswerError:
            if not self._plan.amplified:
                raise
            replies = [_of_nobody(one) for one in tasks]  # whether anybody was drawn must not show
        self._charge([r.ids for t, r in zip(tasks, replies, strict=True) if isinstance(t, Fit) and t.send])
        looks = [r.ids for t, r in zip(tasks, replies, strict=True) if isinstance(t, Fit) and t.sketch is not None]
        if looks:
            self.ledger = self.ledger.signalled(torch.cat(looks).unique())
        private = [self._private(t, r, len(looks)) for t, r in zip(tasks, replies, strict=True)]
        return private if isinstance(task, list | tuple) else private[0]

    def given_up(self) -> None:
        """Too few answered, and the round will be repeated: whose answers came is charged all the same."""
        answered = sorted(self._ask.asked - set(self._ask.missing))
        self._charge([torch.tensor(answered, dtype=torch.int64)])

    def _charge(self, ids: list[Tensor]) -> None:
        """Count the round for clients whose models are used in it, each once."""
        new = torch.cat([self._charged[:0], *ids]).unique()
        new = new[~torch.isin(new, self._charged)]
        self._charged = torch.cat([self._charged, new])
        self.ledger = self.ledger.answered(new)

    def _check(self, task: Task) -> None:
        """Refuse a question whose answer has no noise planned for it."""
        allowed, what = self._plan.releases, ""
        if isinstance(task, Evaluate):
            what = "scores of single clients (Evaluate)"
        elif isinstance(task, Score) and (not allowed.votes or task.rule != "loss"):
            what = f"scores of single clients (Score by {task.rule})"
        elif isinstance(task, Fit) and task.sketch is not None and not allowed.sketches:
            what = "sketches of single updates"
        elif isinstance(task, Describe) and not allowed.descriptions:
            what = f"descriptions of single clients' data (Describe {task.kind})"
        elif self._plan.amplified and task.on is not None and not bool(torch.isin(task.on, self._ask.cohort).all()):
            # Amplification is for clients that nobody knows to take part. These would have been picked.
            what = "clients that were not drawn for the round (on=...)"
        if what:
            raise CoterieError(
                f"privacy: the method asks for {what}, which its declaration does not account for",
                code="privacy-unaccounted",
            )

    # --------------------------------------------------------------------------------------------- answers

    def _private(self, task: Task, reply: Reply, sketched: int) -> Reply:
        """An answer as the method sees it. sketched: how many sketches a client sends in this visit."""
        if isinstance(task, Score) and isinstance(reply, Scored):
            return self._votes(reply)
        if isinstance(task, Describe) and isinstance(reply, Described):
            return self._described(reply)
        assert isinstance(task, Fit)
        assert isinstance(reply, Fitted)
        sent = None if reply.sent is None else SealedModels(reply.sent, self._mean, self._looked_at(task, reply))
        return dataclasses.replace(
            reply,
            n=torch.ones_like(reply.n),
            loss=torch.full_like(reply.loss, math.nan),
            sent=sent,
            sketch=None if reply.sketch is None else self._sketches(reply.sketch, sketched),
            aggregator=self._aggregator,
            start=task.start,
        )

    def _sketches(self, sketches: Tensor, together: int) -> Tensor:
        """Several sketches of a client in one visit are one release: its norm is sqrt(together) times the bound."""
        bound = self._plan.settings.clip
        deviation = self._plan.signal_noise * bound * math.sqrt(together)
        found = clipped(sketches, bound)
        return (found + noise(tuple(found.shape), deviation, *self._key(SKETCH))).to(sketches.dtype)

    def _votes(self, reply: Scored) -> Scored:
        """Which center fits best, as a vector of zeros and one 1, with noise: the most likely is still the best."""
        self.ledger = self.ledger.signalled(reply.ids)
        votes = functional.one_hot(reply.scores.argmin(1), reply.scores.shape[1]).double()
        votes += noise(tuple(votes.shape), self._plan.signal_noise, *self._key(VOTE))
        return dataclasses.replace(reply, n=torch.ones_like(reply.n), scores=(-votes).to(reply.scores.dtype))

    def _described(self, reply: Described) -> Described:
        """Descriptions, clipped and with noise as a sketch is; each is a signal of its own."""
        self.ledger = self.ledger.signalled(reply.ids)
        return dataclasses.replace(reply, n=torch.ones_like(reply.n), rows=self._sketches(reply.rows, 1))

    def _looked_at(self, task: Fit, reply: Fitted) -> Any:
        """What a method sees where it looks at single models: the start plus a noisy sketch of the update, once per
        client; later on the start alone, which tells nothing new."""

        def seen(models: Tensor) -> Tensor:
            plan, starts = self._plan, starts_of(task.start, reply.ids, reply.choice)
            if not plan.releases.models or starts is None:
                raise CoterieError(
                    "privacy: the method looks at single models, which its declaration does not account for",
                    code="privacy-unaccounted",
                )
            shown = starts.expand_as(models).clone()
            fresh = self.ledger.signals.at(reply.ids, default=0) < plan.most_signals
            if bool(fresh.any()):
                self.ledger = self.ledger.signalled(reply.ids[fresh])
                bound, deviation = plan.settings.clip, plan.signal_noise * plan.settings.clip
                updates = models[fresh] - shown[fresh]
                small = noisy_sketches(updates, plan.settings.sketch, bound, deviation, *self._key(MODELS))
                shown[fresh] += lifted(small, models.shape[1]).to(shown.dtype)
            return shown

        return seen

    def _key(self, kind: int) -> tuple[int | None, int, int, int, int]:
        self._calls += 1
        return (self._plan.noise_key, *self._words, self._calls, kind)


def _of_nobody(task: Task) -> Reply:
    """The reply where nobody answered."""
    ids = torch.empty(0, dtype=torch.int64)
    if isinstance(task, Score):
        return Scored(ids, ids, torch.empty(0, task.width))
    if isinstance(task, Describe):
        return Described(ids, ids, torch.empty(0, task.length))
    assert isinstance(task, Fit)
    sent = none_of(length_of(task.start), _dtype(task.start)) if task.send else None
    sketch = None if task.sketch is None else torch.empty(0, task.sketch)
    return Fitted(ids, ids, torch.empty(0), sent, ids, sketch)


def _dtype(start: Ref) -> torch.dtype:
    found = (vectors_of(node) for node in walk(start))
    return next((one.dtype for one in found if one is not None), torch.float32)
