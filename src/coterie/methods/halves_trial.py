"""Was it right to split? Samples that are held out decide between the clusters before and after, and personal models.

That clients' updates differ does not mean that different models serve them better: with skewed labels, one model that
has seen all classes often beats those of clusters. So when Halves splits clusters, the models of the clusters before
and after, and a personal one per client, are trained side by side for some rounds, on one half of every client's
samples. Each client measures them on the other half when it is visited. The simplest of the three that no other beats
clearly is kept, and trained on all samples from then on. Where nothing was split, clients may still all differ: then
personal models alone are tried against those of the clusters; so they are on, where a trial ends in a draw for them.
If it stays one, they err differently: where the mean of both outputs is better than the cluster's, that is served.
A trial ends early when there is no doubt, for every round of it trains on half of the samples only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.client_table import ByClient
from coterie.core.cohort import Counted
from coterie.core.replies import Evaluated

BEFORE, AFTER, PERSONAL, BOTH = 0, 1, 2, 3  # what may serve a client; both: the cluster's model and its own
NAMES = (
    "the clusters before the split",
    "the clusters after it",
    "personal models",
    "means of the cluster's and the personal model",
)
UNTRIED, REFUSED, RIGHT, PERSONAL_TRIED = 0, -1, 1, 2  # verdicts: on a split, or none was made and personal ones tried
ROUNDS, LONGEST = 5, 20  # that a trial takes at least; personal models alone are tried until it is clear, or so long
DRAW, CLEAR = 2.0, 3.0  # standard errors up to which two kinds draw, and beyond which a trial ends at once
MANY = 10  # clients whose scores tell a standard error well enough to end early
SETTLED = 2.0  # visits per client until personal models are tried though nothing was split


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """A trial: the models of the clusters before, which are trained beside those after, and what clients measured."""

    before: Tensor  # (G, P); none where nothing was split
    rounds: int  # so far; -1 when there is no trial
    scores: ByClient  # (n, 4) of each kind of model on a client's held-out samples; higher is better
    held_out: ByClient  # (n,) how many samples those are

    @classmethod
    def none(cls, like: Tensor) -> Trial:
        """No trial is under way."""
        return cls(like[:0], -1, ByClient.empty(torch.float64, (len(NAMES),)), ByClient.empty())

    @property
    def on(self) -> bool:
        """Whether one is under way."""
        return self.rounds >= 0

    @property
    def of_split(self) -> bool:
        """Whether one is under way that compares clusters before and after a split."""
        return self.on and len(self.before) > 0

    def measured(self, replies: Sequence[Evaluated]) -> Trial:
        """The trial that knows these measurements, one reply per kind of model; a client's latest count."""
        if not replies:
            return self
        # The mean is not tried before the clusters are settled; where nothing was split, those after are those before.
        replies = (*replies, replies[PERSONAL]) if self.of_split else (replies[0], *replies)
        some = replies[0].n > 0
        ids, scores = replies[0].ids[some], torch.stack([_score(reply) for reply in replies], 1)[some]
        return dataclasses.replace(
            self, scores=self.scores.put(ids, scores), held_out=self.held_out.put(ids, replies[0].n[some])
        )

    def without(self, clients: Tensor | None) -> Trial:
        """The trial that has not heard of these clients."""
        if clients is None or not len(clients):
            return self
        rest = self.scores.ids[~torch.isin(self.scores.ids, clients)]
        return dataclasses.replace(self, scores=self.scores.only(rest), held_out=self.held_out.only(rest))

    def is_over(self, clients: int) -> bool:
        """Whether it had its rounds, and half of the clients that were met have measured."""
        if 2 * len(self.scores.ids) < clients:
            return False
        if len(self.scores.ids) >= MANY and self._is_clear(AFTER, BEFORE) and self._is_clear(PERSONAL, AFTER):
            return True
        return self.rounds >= ROUNDS and (self.of_split or self.rounds >= LONGEST or not self.is_draw(AFTER))

    def _is_clear(self, kind: int, other: int) -> bool:
        """Whether one is better than the other beyond doubt, or there is but one of them."""
        gain, error = self.gain(kind, other)
        return abs(gain) > CLEAR * error or (not self.of_split and other == BEFORE)

    @property
    def personal_lost(self) -> bool:
        """Whether personal models were worse beyond doubt."""
        gain, error = self.gain(PERSONAL, AFTER)
        return gain < -CLEAR * error

    def is_draw(self, kind: int) -> bool:
        """Whether personal models are neither clearly better nor clearly worse than this kind."""
        gain, error = self.gain(PERSONAL, kind)
        return abs(gain) <= DRAW * error

    def best(self) -> int:
        """The simplest that no other beats by more than one standard error."""
        kind = BEFORE
        settled = self.of_split or not self.is_draw(AFTER)
        for other in (AFTER, PERSONAL) if settled else (BOTH,):
            gain, error = self.gain(other, kind)
            kind = other if gain > error else kind
        return kind

    def gain(self, kind: int, over: int) -> tuple[float, float]:
        """How much better one is than another on held-out samples, and the standard error of that, over clients."""
        share = self.held_out.values.double() / self.held_out.values.double().sum()
        differences = self.scores.values[:, kind] - self.scores.values[:, over]
        mean = (share * differences).sum()
        return float(mean), float((share * (differences - mean)).square().sum().sqrt())

    def told(self, kind: int, clusters: int) -> Counted:
        """The outcome, as a run tells it."""
        if not self.of_split:
            gain = self.gain(kind, BEFORE)[0]
            why = f"{NAMES[kind]} are kept; score on held-out samples, against the clusters: {gain:+.3f}"
            return Counted(clusters, "held-out samples", len(self.scores.ids), (), why)
        gains = ", ".join(f"{NAMES[other]} {self.gain(other, BEFORE)[0]:+.3f}" for other in (AFTER, PERSONAL))
        why = f"{NAMES[kind]} are kept; scores on held-out samples, against the clusters before: {gains}"
        return Counted(clusters, "held-out samples", len(self.scores.ids), (), why)


def _score(reply: Evaluated) -> Tensor:
    """Accuracy, or the negative squared error of a regression."""
    accuracy = reply.accuracy.double()
    return torch.where(accuracy.isnan(), -reply.loss.double(), accuracy)
