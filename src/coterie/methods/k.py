"""How many clusters: a number, or a rule that reads it off what clients learn from a common start.

A method asks `K(self.k)` inside its own `round`. There are two kinds of methods and two kinds of rules. A method that
makes its clusters of one model counts them in its first clustering. One that begins with K random models draws more of
them than a rule may choose, and its first round begins with the question how many are needed: `ASKED` clients, or all
there are, train from the first model (the few of a round may not show every kind).

"auto": up to 240 clients, the round's and others, train twice from the common start, once on each half of their
samples, and send sketches of the two updates. What one half says of a client must predict what the other says; the
fewest clusters that do this as well as any number are taken (see `clustering.halves`).
"silhouette", "gap": by the models or directions that are clustered.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional

from coterie.clustering.halves import SHOWN, halves_evidence
from coterie.clustering.kmeans import centroids, fresh_kmeans
from coterie.clustering.similarity import in_row_space
from coterie.core.errors import CoterieError, QuorumError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.tables import Cohort, Counted, Roster
from coterie.core.tasks import Fit
from coterie.core.text import counted
from coterie.methods.contract import Ask
from coterie.methods.hard_clusters import Clusters

CountRule: TypeAlias = Literal["auto", "silhouette", "gap"]
ClusterCount: TypeAlias = PositiveInt | CountRule

MOST = 12  # a rule chooses fewer clusters
ASKED = 240  # clients that are looked at, if there are so many
LOOK = 50  # local steps on each half
SKETCH = 256  # numbers that stand for an update
LEAST = 0.1  # the silhouette below which no split counts
FEWER = "Write a smaller k, or find out why the others did not answer."
S = TypeVar("S")


@dataclass(frozen=True)
class K:
    """What a method's `k` says: a number, or the rule that chooses it."""

    k: int | str

    @property
    def number(self) -> int | None:
        """The number, where it is given."""
        return self.k if isinstance(self.k, int) else None

    # ---------------------------------------------------------------------------------------- are there enough clients

    def check(self, roster: Roster) -> None:
        """There must be as many clients as clusters."""
        if self.number is not None and self.number > len(roster.ids):
            raise CoterieError(
                f"method.k: {self.k} clusters for {len(roster.ids)} clients; at most one cluster per client",
                code="config-invalid-value",
            )

    def too_few(self, cohort: Cohort) -> bool:
        """Whether fewer clients are there now than clusters are to be found: there were enough, but some have left."""
        return self.number is not None and self.number > len(cohort.roster.ids)

    def wait_for_enough(self, cohort: Cohort) -> None:
        """A clustering that all later rounds build on is not made of fewer clients than clusters."""
        if self.too_few(cohort):
            here = counted(len(cohort.roster.ids), "client")
            said = f"round {cohort.round + 1}: {here} connected, too few to find {self.k} clusters among"
            raise QuorumError(said, advice=FEWER)

    def enough_answers(self, answered: Tensor, cohort: Cohort) -> None:
        """Nor is it made of fewer answers than clusters, however many clients are there."""
        if self.number is not None and len(answered) < self.number:
            here = counted(len(answered), "client")
            said = f"round {cohort.round + 1}: {here} answered, too few to find {self.k} clusters among"
            raise QuorumError(f"{said}; later rounds would keep to these clusters", advice=FEWER)

    def first_clients(self, alpha: int, cohort: Cohort) -> Tensor:
        """Those whose models are clustered first: the cohort and, where it is small, others, to be alpha * k."""
        self.wait_for_enough(cohort)
        return at_least(0 if self.k == 1 else alpha * (self.number or MOST), cohort)

    # ------------------------------------------------------------------------------- methods that begin with one model

    def of(self, points: Tensor, weights: Tensor, cohort: Cohort) -> int:
        """k, or what its rule says of the points, which the round then tells of."""
        if isinstance(self.k, int):
            return self.k
        cohort.counted.append(choose_k(points, weights, cohort.rng, self.k, MOST - 1))
        return cohort.counted[-1].k

    def settled(self, state: Clusters, local: Local, cohort: Cohort, ask: Ask) -> int:
        """As many as there are, once clients have clusters; before, as many as two halves of their data show."""
        return len(state.centers) if len(state.labels.ids) else self.by_halves(state.centers[0], local, cohort, ask)

    def by_halves(self, start: Tensor, local: Local, cohort: Cohort, ask: Ask) -> int:
        """The number that two halves of the clients' data show, which the round then tells of."""
        look = dataclasses.replace(local, epochs=None, steps=LOOK, keep_optimizer=False)
        half = Fit(All(start), local=look, half=0, sketch=SKETCH, send=False, keep=False, on=at_least(ASKED, cohort))
        first, second = ask([half, dataclasses.replace(half, half=1)])
        evidence = halves_evidence(first.sketches, second.sketches, first.n)
        most = min(MOST - 1, len(evidence.risks))
        k = evidence.k if evidence.k <= most else int(evidence.risks[:most].argmin()) + 1
        scores = tuple((j, evidence.r2(j)) for j in range(1, min(SHOWN, len(evidence.risks)) + 1))
        what = "one half of the clients' data from the other"
        if evidence.k > k:
            why = f"{evidence.k} clusters predict {what} best, but this is the most"
        elif k == 1:
            why = f"no split predicts {what} better than one cluster does"
        else:
            why = f"that many predict {what} {evidence.r2(k):.0%} better than one does"
        cohort.counted.append(Counted(k, "auto (halves)", len(first.ids), scores, why))
        return k

    # -------------------------------------------------------------------------- methods that begin with K random models

    def random_models(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """k independent random models; as many as a rule may choose where it has not chosen yet."""
        self.check(roster)
        return torch.stack([model.init(rng) for _ in range(self.number or MOST)])

    def chosen(self, state: S, local: Local, cohort: Cohort, ask: Ask) -> S:
        """The state (models, or what has them as `centers`) with as many as are needed; as it is once that is known."""
        some: Any = state
        models: Tensor = some if isinstance(some, Tensor) else some.centers
        if self.number is not None or len(models) < MOST:
            return state
        kept = models[: self._needed(models[0], local, cohort, ask)]
        found: Any = kept if isinstance(some, Tensor) else dataclasses.replace(some, centers=kept)
        return cast("S", found)

    def _needed(self, start: Tensor, local: Local, cohort: Cohort, ask: Ask) -> int:
        if self.k == "auto":
            return self.by_halves(start, local, cohort, ask)
        reply = ask(Fit(All(start), local=local, keep=False, on=at_least(ASKED, cohort)))
        directions = functional.normalize(reply.models - start)
        return self.of(directions, torch.ones(len(directions), dtype=torch.float64), cohort)


def at_least(wanted: int, cohort: Cohort) -> Tensor:
    """The cohort and, where it is smaller than wanted, others drawn at random: a clustering needs to see every kind."""
    others = cohort.roster.ids[~torch.isin(cohort.roster.ids, cohort.ids)]
    more = min(wanted - len(cohort.ids), len(others))
    if more <= 0:
        return cohort.ids
    drawn = torch.from_numpy(cohort.rng.choice(len(others), more, replace=False))
    return torch.cat([cohort.ids, others[drawn]]).sort().values


def at_most(most: int, ids: Tensor, cohort: Cohort) -> Tensor:
    """These clients or, where they are more than can be compared, so many of them drawn at random."""
    if len(ids) <= most:
        return ids
    return ids[torch.from_numpy(np.sort(cohort.rng.choice(len(ids), most, replace=False)))]


# ------------------------------------------------------------------------------------------- rules that look at points


def choose_k(points: Tensor, weights: Tensor, rng: np.random.Generator, rule: str, most: int = 12) -> Counted:
    """A number of clusters for these points, 1..most, with the scores it was chosen by.

    silhouette (also called auto): the k of the largest mean silhouette; one cluster has none, so it is chosen only
    when no split reaches 0.1. gap: the smallest k whose gap statistic is within one standard error of the next and
    three above that of one cluster; one cluster if there is none (groups in many dimensions show only near their
    number, so the printed rule, which would stop at one there, is not asked of k = 1).
    """
    many, most = len(points), min(most, len(points) - 1)
    if most < 2:
        return Counted(1, rule, many, (), f"{many} clients are too few to be told apart")
    flat = in_row_space(points)
    return _gap(flat, weights, rng, most) if rule == "gap" else _silhouette(flat, weights, rng, rule, most)


def _silhouette(points: Tensor, weights: Tensor, rng: np.random.Generator, rule: str, most: int) -> Counted:
    from sklearn.metrics import silhouette_score

    scores = {}
    for k in range(2, most + 1):
        labels = fresh_kmeans(points, k, weights, rng).numpy()
        if 1 < len(np.unique(labels)) < len(points):
            scores[k] = float(silhouette_score(points.numpy(), labels))
    best = max(scores, key=lambda k: (scores[k], -k), default=1)
    if scores.get(best, 0.0) >= LEAST:
        return Counted(best, rule, len(points), tuple(scores.items()), "the largest mean silhouette")
    return Counted(1, rule, len(points), tuple(scores.items()), f"no split has a mean silhouette of {LEAST}")


def _gap(points: Tensor, weights: Tensor, rng: np.random.Generator, most: int, draws: int = 10) -> Counted:
    """Tibshirani et al. 2001: against uniform points in the box of the principal axes."""
    low, high = points.min(0).values.numpy(), points.max(0).values.numpy()
    ks = range(1, most + 2)
    own = np.array([_log_spread(points, k, weights, rng) for k in ks])
    null = np.array(
        [
            [_log_spread(torch.from_numpy(box), k, weights, rng) for k in ks]
            for box in (rng.uniform(low, high, tuple(points.shape)) for _ in range(draws))
        ]
    )
    gap = null.mean(0) - own
    error = null.std(0) * np.sqrt(1 + 1 / draws)
    good = (k for k in range(2, most + 1) if gap[k - 1] >= gap[k] - error[k] and gap[k - 1] > gap[0] + 3 * error[k - 1])
    found = next(good, 1)
    scores = tuple((k, float(gap[k - 1])) for k in range(1, most + 1))
    why = "the smallest k whose gap is within a standard error of the next" if found > 1 else "no k stands out"
    return Counted(found, "gap", len(points), scores, why)


def _log_spread(points: Tensor, k: int, weights: Tensor, rng: np.random.Generator) -> float:
    labels = fresh_kmeans(points, k, weights, rng, n_init=3)
    means = centroids(points, labels, weights, points[: min(k, len(points))])
    spread = float((weights[:, None] * (points - means[labels]).square()).sum())
    return float(np.log(max(spread, 1e-300)))
