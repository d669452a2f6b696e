"""What Halves knows between rounds, and how a group of clients is divided into clusters anew."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by, weigh
from coterie.clustering.halves import MOST, nearest, sample_of
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort, Roster
from coterie.core.errors import CoterieError
from coterie.core.references import Own, Pick
from coterie.core.replies import Evaluated, Fitted, Reply
from coterie.core.tasks import Evaluate
from coterie.methods.halves_trial import (
    AFTER,
    BEFORE,
    BOTH,
    NAMES,
    PERSONAL,
    PERSONAL_TRIED,
    REFUSED,
    RIGHT,
    SETTLED,
    UNTRIED,
    Trial,
)
from coterie.methods.hard_clusters import Clusters, averaged

SLOT = "halves.personal"  # where a client keeps its own model
SAY_GROUPS = "name a column (data.group=COLUMN) or give Federation.from_arrays(..., groups=[...])"
FIRST = 10  # visits per client until the second look
MORE = 1.1  # times as many looks as before: then a group of many clients is divided anew


def check_pins(pinned: bool, roster: Roster) -> None:
    """Clients can only be pinned to groups that somebody has given."""
    if pinned and roster.groups is None:
        raise CoterieError(f"pinned: no client has a group; {SAY_GROUPS}", code="groups-missing")


@dataclasses.dataclass(frozen=True, eq=False)
class Halved(Clusters):
    """Clusters, and what clients' halves showed from the anchor of their group.

    A group is a cluster of the time when its anchor was taken; a look divides groups, so every cluster is part of one.
    """

    anchors: Tensor  # (G, P) the models that updates are measured from
    group_of: Tensor  # (K,) the group that each cluster is part of
    looks: ByClient  # (n, 2, d) sketches of the updates on either half, from the anchor of the client's group
    samples: ByClient  # (n,) how many samples each of those clients has
    visits: float  # per client met, since the anchors were taken
    until: float  # so many visits per client later, anchors are taken anew
    kind: int  # of model that serves clients best so far: see `halves_trial`
    verdict: int  # of the trials since the anchors were taken: see `halves_trial`
    trial: Trial
    beyond_doubt: bool  # whether the last trial left no doubt that personal models do not help
    losses: ByClient  # (n,) of the last training of each client that was not alarmed, see `drift_alarm`
    worst: float  # the highest mean loss of a round's training
    under: tuple[int, bool, int]  # how they were trained in the last round: see `how_trained`
    alarmed: Tensor  # the clients whose loss had jumped in the last round, and no model fitted
    drifted: bool = False  # whether clients have moved since the anchors were taken

    @classmethod
    def begin(cls, start: Tensor, features: Tensor, size: int, until: float) -> Halved:
        """One cluster, nobody met."""
        looks, samples = ByClient.empty(start.dtype, (2, size)), ByClient.empty()
        one = torch.zeros(1, dtype=torch.int64)
        trial = Trial.none(start[None])
        return cls(
            start[None],
            ByClient.empty(),
            features,
            start[None],
            one,
            looks,
            samples,
            0.0,
            until,
            AFTER,
            UNTRIED,
            trial,
            False,
            ByClient.empty(torch.float32),
            0.0,
            (1, False, AFTER),
            one[:0],
        )

    def visited(self, clients: int) -> Halved:
        """Count a round's visits; when there were enough, every cluster becomes a group and is looked at again.

        If clients have moved since, all are one group: from the mean of the models, so that clusters may merge too.
        """
        visits = self.visits + clients / max(len(self.labels.ids), clients)
        if visits <= self.until or self.trial.on:
            return dataclasses.replace(self, visits=visits)
        looks, groups, anchors = self.looks.only(self.looks.ids[:0]), torch.arange(len(self.centers)), self.centers
        if self.drifted:
            sizes = torch.bincount(self.labels.values, minlength=len(anchors)).to(anchors.dtype)
            groups, anchors = torch.zeros_like(groups), (sizes / sizes.sum())[None] @ anchors
        fresh = dataclasses.replace(self, anchors=anchors, group_of=groups, looks=looks, drifted=False)
        tried = self.drifted or self.kind in (PERSONAL, BOTH)
        verdict = RIGHT if tried else PERSONAL_TRIED if self.beyond_doubt else UNTRIED
        return dataclasses.replace(fresh, visits=0.0, until=2 * self.until, verdict=verdict)

    @property
    def how_trained(self) -> tuple[int, bool, int]:
        """Losses are compared as they are while there are as many clusters, and clients train in the same way."""
        return len(self.centers), self.trial.on, self.kind

    def to_be_looked_at(self, first: float) -> Halved:
        """The state in which anchors are taken in the next round, and again after as many visits as at first."""
        return dataclasses.replace(self, visits=self.until, until=first / 2)

    def looked(self, first: Fitted, second: Fitted) -> Halved:
        """The state that knows these clients' looks, if anybody has answered."""
        if not len(first.ids):
            return self
        looks = self.looks.put(first.ids, sketches(first, second))
        return dataclasses.replace(self, looks=looks, samples=self.samples.put(first.ids, first.n))

    def of_group(self, group: int) -> tuple[Tensor, Tensor, Tensor]:
        """The clients of a group that were looked at: ids, looks (n, 2, d) and numbers of samples."""
        ids = self.looks.ids[self.group_of[self.labels.at(self.looks.ids)] == group]
        return ids, self.looks.at(ids), self.samples.at(ids)

    def is_due(self, group: int, new: Tensor) -> bool:
        """Whether a group is divided anew after these looks: always, or with many looks after every tenth more."""
        looked = self.looks.ids[self.group_of[self.labels.at(self.looks.ids)] == group]
        before = len(looked) - int(torch.isin(looked, new).sum())
        return before <= MOST or math.floor(math.log(len(looked), MORE)) > math.floor(math.log(before, MORE))

    def joined_nearest(self, group: int, new: Tensor, rng: np.random.Generator) -> Halved:
        """These clients, as far as they are of the group, join its cluster with the nearest looks, by a sample."""
        here = self.looks.ids[self.group_of[self.labels.at(self.looks.ids)] == group]
        mine = torch.isin(here, new)
        known, joining = here[~mine][sample_of(int((~mine).sum()), rng)], here[mine]
        clusters, rows = self.labels.at(known).unique(return_inverse=True)
        found = nearest(rows, self.looks.at(known).mean(1), self.samples.at(known), self.looks.at(joining).mean(1))
        return dataclasses.replace(self, labels=self.labels.put(joining, clusters[found]))

    def regrouped(self, group: int, ids: Tensor, labels: Tensor) -> Halved:
        """The state in which these clients of a group are divided like this.

        A cluster keeps the number of the one that most of its clients were in. Its model is the mean of the models
        that its clients had: the parent's after a split, of all that were merged after a merge.
        """
        before = self.labels.at(ids)
        k, old = int(labels.max()) + 1, len(self.centers)
        count = torch.zeros(k, old, dtype=torch.int64).index_put_((labels, before), torch.tensor(1), accumulate=True)
        number = self._numbers(group, count)
        rows = max(old, int(number.max()) + 1)
        shares = (count / count.sum(1, keepdim=True)).to(self.centers.dtype)
        centers = torch.cat([self.centers, self.centers.new_zeros(rows - old, self.centers.shape[1])])
        centers[number] = shares @ self.centers
        group_of = torch.cat([self.group_of, torch.full((rows - old,), group)])
        # Who is in the group without a look goes where most of its old cluster went.
        went = torch.arange(rows)
        here = (self.group_of == group).nonzero().flatten()
        went[here] = number[count[:, here].argmax(0)]
        everyone = ByClient(self.labels.ids, went[self.labels.values]).put(ids, number[labels])
        used, compact = everyone.values.unique(return_inverse=True)
        table = ByClient(everyone.ids, compact)
        return dataclasses.replace(self, centers=centers[used], group_of=group_of[used], labels=table)

    def joined_pins(self, pins: ByClient, ids: Tensor) -> Halved:
        """Those of these clients that belong to no cluster yet join the one of a client with the same pin."""
        here, new = pins.only(self.labels.ids), pins.only(self.unmet(ids))
        home = dict(zip(here.values.tolist(), self.labels.at(here.ids).tolist(), strict=True))
        known = torch.tensor([pin in home for pin in new.values.tolist()], dtype=torch.bool)
        labels = torch.tensor([home[pin] for pin in new.values[known].tolist()], dtype=torch.int64)
        return dataclasses.replace(self, labels=self.labels.put(new.ids[known], labels))

    # ------------------------------------------------------------------------------------------------ the trial

    @property
    def refused(self) -> bool:
        """Whether a trial found that clusters should stay as they are until anchors are taken anew."""
        return self.verdict == REFUSED

    @property
    def undecided(self) -> str | None:
        """What is still being tried, where a run ends within a trial of a split, and what serves clients meanwhile."""
        if not self.trial.of_split:
            return None
        before, after = len(self.trial.before), len(self.centers)
        what = f"{before} cluster{'s' * (before != 1)} became {after} on trial"
        return f"{what}, which was not over when the run ended; meanwhile {NAMES[self.kind]} serve"

    def kinds(self) -> tuple[Pick, Pick, Own]:
        """What may serve a client: its cluster's model before the last split, after it, or its own."""
        after = Pick(self.centers, self.labels)
        groups = ByClient(self.labels.ids, self.group_of[self.labels.values])
        return Pick(self.trial.before, groups) if self.trial.of_split else after, after, Own(SLOT, after)

    def predicts(self, kind: int) -> Evaluate:
        """How a client predicts with this kind: its own model and its cluster's together, by the mean of their outputs.

        The mean errs less than either: one model knows the client, the other has seen many samples.
        """
        _, after, own = kinds = self.kinds()
        return Evaluate((after, own), average=True) if kind == BOTH else Evaluate((kinds[kind],))

    def judged(
        self, before: Halved, replies: Sequence[Reply], weights: Tensor, moved: Tensor, pinned: bool, cohort: Cohort
    ) -> Halved:
        """After a round of the trial that is under way, or before the first of one; pinned clusters are not tried."""
        trained, split = [r for r in replies if isinstance(r, Fitted)], len(self.centers) > len(before.centers)
        if before.trial.on and (before.trial.of_split or not split):
            scores = [reply for reply in replies if isinstance(reply, Evaluated)]
            return self.tried(scores, trained[1], split, cohort, moved)
        return self.next_trial(before, trained[0], weights, split and not pinned)

    def next_trial(self, before: Halved, reply: Fitted, weights: Tensor, split: bool) -> Halved:
        """The state in which a trial has begun, if there is something to try and it was not tried before.

        After a split the models before are trained beside those after. Without one, personal models are still tried.
        """
        if self.verdict == RIGHT or not split:
            due = self.verdict == UNTRIED and self.visits >= SETTLED and not self.trial.on
            return dataclasses.replace(self, trial=dataclasses.replace(self.trial, rounds=0)) if due else self
        before = averaged(before, reply, before.labels.at(reply.ids), weights)
        models = self.anchors.clone()
        models[before.group_of] = before.centers
        return dataclasses.replace(self, trial=dataclasses.replace(Trial.none(models), before=models, rounds=0))

    def tried(
        self, verdicts: Sequence[Evaluated], reply: Fitted, split: bool, cohort: Cohort, moved: Tensor | None = None
    ) -> Halved:
        """A round of the trial is over; a further split begins it anew, except for the models before.

        Who has moved measured models of a cluster that it is not in: that does not count.
        """
        trial, models = self.trial.measured(verdicts).without(moved), self.trial.before
        if trial.of_split:
            groups = self.group_of[self.labels.at(reply.ids)]
            models = mean_by(groups, reply, weigh(reply, "size"), empty=models)
        trial = dataclasses.replace(trial, before=models, rounds=trial.rounds + 1)
        if split:
            trial = dataclasses.replace(Trial.none(models), before=models, rounds=0)
        kind = trial.best() if len(trial.scores.ids) else self.kind
        if not trial.is_over(len(self.labels.ids)):
            return dataclasses.replace(self, trial=trial, kind=kind)
        return self._ended(trial, kind, cohort)

    def _ended(self, trial: Trial, kind: int, cohort: Cohort) -> Halved:
        """The state without what the trial found to be of no use."""
        none, kept = Trial.none(trial.before), dataclasses.replace(self, beyond_doubt=trial.personal_lost)
        if not trial.of_split:
            if kind != BEFORE:
                cohort.counted.append(trial.told(kind, len(self.centers)))
            verdict = self.verdict if self.verdict == RIGHT else PERSONAL_TRIED
            return dataclasses.replace(kept, trial=none, kind=max(kind, AFTER), verdict=verdict)
        if kind == BEFORE:
            groups, rows = self.group_of.unique(return_inverse=True)
            labels = ByClient(self.labels.ids, rows[self.labels.values])
            kept = dataclasses.replace(kept, centers=trial.before[groups], labels=labels, group_of=groups)
        cohort.counted.append(trial.told(kind, len(kept.centers)))
        verdict = REFUSED if kind == BEFORE else RIGHT
        if trial.is_draw(min(kind, AFTER)):  # also one that personal models are ahead in: the mean may be better still
            none = dataclasses.replace(none, rounds=1)  # personal models are there already: score them next time
        return dataclasses.replace(kept, trial=none, kind=max(kind, AFTER), verdict=verdict)

    def _numbers(self, group: int, count: Tensor) -> Tensor:
        """The number of each new cluster: an old one of the group, each once, the largest overlap first; else new."""
        number = torch.full((len(count),), -1)
        free = set((self.group_of == group).nonzero().flatten().tolist())
        order = count.flatten().argsort(descending=True, stable=True)
        for place in order.tolist():
            new, old = divmod(place, count.shape[1])
            if number[new] < 0 and old in free and count[new, old] > 0:
                number[new] = old
                free.discard(old)
        rest = (number < 0).nonzero().flatten()
        number[rest] = len(self.centers) + torch.arange(len(rest))
        return number


def sketches(first: Fitted, second: Fitted) -> Tensor:
    """Looks (n, 2, d) of the clients that answered, of their sketches on either half."""
    assert first.sketch is not None
    assert second.sketch is not None
    return torch.stack([first.sketch, second.sketch], 1)
