"""Halves: how many clusters there are is measured, not told. No K, no threshold.

From time to time a client trains twice from the same model, once on each random half of its data, and sends a sketch of
the two updates (a look). They differ by sampling noise only, so the number of clusters is the one with which one half
predicts the other best (see `clustering.halves`). Every cluster is trained as in FedAvg. The first look is from the
common start, further ones from the clusters' models after 10, 20, 40, ... visits per client. Clients whose data has
changed are found by their losses and by another look, and move. The server sees sketches, means and scores.

Was it right to split? That clients' updates differ does not mean that different models serve them better: with skewed
labels, one model that has seen all classes often beats those of clusters. So when clusters are split, the models of the
clusters before and after, and a personal one per client, are trained side by side for some rounds, on one half of every
client's samples. Each client measures them on the other half when it is visited. The simplest of the three that no
other beats clearly is kept, and trained on all samples from then on. Where nothing was split, clients may still all
differ: then personal models alone are tried against those of the clusters; so they are on, where a trial ends in a draw
for them. If it stays one, they err differently: where the mean of both outputs is better than the cluster's, that is
served. A trial ends early when there is no doubt, for every round of it trains on half of the samples only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import mean_by, weigh
from coterie.clustering.constraints import constrained
from coterie.clustering.halves import MOST, halves_evidence, has_changed, nearest, sample_of, spread, told
from coterie.core.errors import CoterieError, NoAnswerError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import Own, Pick
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Counted, Roster
from coterie.core.tasks import Evaluate, Evaluated, Fit, Fitted, Reply
from coterie.methods.contract import Ask, Refusal, Releases
from coterie.methods.drift_alarm import JUMP, Changed, alarmed, drift_line, found_elsewhere, rescaled, suspected
from coterie.methods.hard_clusters import Clusters, averaged, joined_by_loss

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
class SplitTrial:
    """A trial: the models of the clusters before, which are trained beside those after, and what clients measured."""

    before: Tensor  # (G, P); none where nothing was split
    rounds: int  # so far; -1 when there is no trial
    scores: ByClient  # (n, 4) of each kind of model on a client's held-out samples; higher is better
    held_out: ByClient  # (n,) how many samples those are

    @classmethod
    def none(cls, like: Tensor) -> SplitTrial:
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

    def measured(self, replies: Sequence[Evaluated]) -> SplitTrial:
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

    def without(self, clients: Tensor | None) -> SplitTrial:
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


SLOT = "halves.personal"  # where a client keeps its own model
SAY_GROUPS = "name a column (data.group=COLUMN) or give Federation.from_arrays(..., groups=[...])"
FIRST = 10  # visits per client until the second look
MORE = 1.1  # times as many looks as before: then a group of many clients is divided anew


def check_pins(pinned: bool, roster: Roster) -> None:
    """Clients can only be pinned to groups that somebody has given."""
    if pinned and roster.groups is None:
        raise CoterieError(f"pinned: no client has a group; {SAY_GROUPS}", code="groups-missing")


def nobody() -> Tensor:
    """No client."""
    return torch.empty(0, dtype=torch.int64)


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
    trial: SplitTrial
    beyond_doubt: bool  # whether the last trial left no doubt that personal models do not help
    losses: ByClient  # (n,) of the last training of each client that was not alarmed, see `drift_alarm`
    worst: float  # the highest mean loss of a round's training
    under: tuple[int, bool, int]  # how they were trained in the last round: see `how_trained`
    alarmed: Tensor  # the clients whose loss had jumped in the last round, and no model fitted
    drifted: Tensor = dataclasses.field(
        default_factory=nobody
    )  # the clients whose data has changed since the anchors were taken

    @classmethod
    def begin(cls, start: Tensor, features: Tensor, size: int, until: float) -> Halved:
        """One cluster, nobody met."""
        looks, samples = ByClient.empty(start.dtype, (2, size)), ByClient.empty()
        one = torch.zeros(1, dtype=torch.int64)
        trial = SplitTrial.none(start[None])
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

    def forget(self, ids: Tensor) -> Halved:
        """Without these clients among those whose data has changed."""
        alarmed, drifted = (one[~torch.isin(one, ids)] for one in (self.alarmed, self.drifted))
        return dataclasses.replace(super().forget(ids), alarmed=alarmed, drifted=drifted)

    def visited(self, clients: int) -> Halved:
        """Count a round's visits; when there were enough, every cluster becomes a group and is looked at again.

        If the data of several clients has changed since, all are one group: from the mean of the models, so that
        clusters may merge too. A single client's change, which may be a false alarm, is no reason to move others.
        """
        visits = self.visits + clients / max(len(self.labels.ids), clients)
        if visits <= self.until or self.trial.on:
            return dataclasses.replace(self, visits=visits)
        looks, groups, anchors = self.looks.only(self.looks.ids[:0]), torch.arange(len(self.centers)), self.centers
        several = len(self.drifted) > 1
        if several:
            sizes = torch.bincount(self.labels.values, minlength=len(anchors)).to(anchors.dtype)
            groups, anchors = torch.zeros_like(groups), (sizes / sizes.sum())[None] @ anchors
        fresh = dataclasses.replace(self, anchors=anchors, group_of=groups, looks=looks, drifted=nobody())
        tried = several or self.kind in (PERSONAL, BOTH)
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
        # Who is in the group without a look goes where most of its old cluster went, or stays if nobody of it was seen.
        went = torch.arange(rows)
        here = ((self.group_of == group) & (count.sum(0) > 0)).nonzero().flatten()
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
        return dataclasses.replace(self, trial=dataclasses.replace(SplitTrial.none(models), before=models, rounds=0))

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
            trial = dataclasses.replace(SplitTrial.none(models), before=models, rounds=0)
        kind = trial.best() if len(trial.scores.ids) else self.kind
        if not trial.is_over(len(self.labels.ids)):
            return dataclasses.replace(self, trial=trial, kind=kind)
        return self._ended(trial, kind, cohort)

    def _ended(self, trial: SplitTrial, kind: int, cohort: Cohort) -> Halved:
        """The state without what the trial found to be of no use."""
        none, kept = SplitTrial.none(trial.before), dataclasses.replace(self, beyond_doubt=trial.personal_lost)
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


def work_of(state: Halved, met: Tensor, local: Local, mu: float) -> list[Fit | Evaluate]:
    """Train the clusters' models; on trial also those before the split and personal ones, all on one half.

    Where there is one cluster, its model is trained on all samples as ever, and comes first: it is that of FedAvg to
    the bit. With many clients a model owes little to the samples of one, and what it owes counts against personal
    models.
    """
    before, after, own = state.kinds()
    half: Literal[0] | None = 0 if state.trial.on else None
    tasks: list[Fit | Evaluate] = [
        Fit(after, local=local, half=half if state.trial.of_split or len(state.centers) > 1 else None)
    ]
    if state.trial.rounds > 0:  # all were trained: score them on the half that none is trained on
        kinds = (BEFORE, AFTER, PERSONAL) if state.trial.of_split else (AFTER, PERSONAL, BOTH)
        tasks += [dataclasses.replace(state.predicts(kind), split="train", half=1, on=met) for kind in kinds]
    if state.trial.of_split:
        tasks.append(Fit(before, local=local, half=half, on=met, optimizer_slot=f"{SLOT}.before"))
    if state.trial.on or state.kind in (PERSONAL, BOTH):
        personal = Fit(own, anchor=after, mu=mu, local=local, save=SLOT, send=False, half=half, on=met)
        tasks.append(dataclasses.replace(personal, optimizer_slot=f"{SLOT}.optimizer"))
    return tasks


def due_looks(state: Halved, met: Tensor, local: Local, steps: int) -> list[Fit]:
    """Looks at those of these clients that were not looked at from their cluster's anchor yet; none after a refusal."""
    due = met[:0] if state.refused else met[~state.looks.has(met)]
    return looks_of(state, due, local, steps) if len(due) else []


def looks_of(state: Halved, due: Tensor, local: Local, steps: int) -> list[Fit]:
    """The same training on either half; nothing of it is kept, and only sketches are sent."""
    anchor = Pick(state.anchors, ByClient(due, state.group_of[state.labels.at(due)]))
    local = dataclasses.replace(local, epochs=None, steps=steps, keep_optimizer=False)
    numbers = state.looks.values.shape[-1]
    return [Fit(anchor, local=local, half=h, sketch=numbers, send=False, keep=False, on=due) for h in (0, 1)]


def changed_since(state: Halved, local: Local, steps: int, ask: Ask, ids: Tensor) -> Tensor:
    """Those of these clients that were looked at, and whose data has changed since, by another look from there."""
    if not len(known := ids[state.looks.has(ids)]):
        return known
    try:
        first, second = ask(looks_of(state, known, local, steps))
    except NoAnswerError:
        return known[:0]
    assert isinstance(first, Fitted)
    assert isinstance(second, Fitted)
    if not len(first.ids):
        return first.ids
    then, now = state.looks.at(first.ids), sketches(first, second)
    return first.ids[has_changed(then, now)]


def without(reply: Fitted, gone: Tensor) -> Fitted:
    """Looks without those of clients that have moved since: they are from the model of the cluster they left."""
    if not len(gone):
        return reply
    kept = ~torch.isin(reply.ids, gone)
    assert reply.sketch is not None
    return Fitted(reply.ids[kept], reply.n[kept], reply.loss[kept], sketch=reply.sketch[kept])


def followed(
    state: Halved, reply: Fitted, cohort: Cohort, ask: Ask, changed: Changed, looking: bool = False
) -> tuple[Halved, Tensor]:
    """The state in which clients whose data has changed are where it fits, and who has moved.

    A client that has moved was trained from the model of its old cluster: this model counts nowhere. Its looks were
    from there too; it is looked at again from where it is, which confirms or corrects the move. Where no model fits a
    client's data in two visits, all clusters are looked at again. Where personal models serve, nobody is asked: they
    follow by being trained, and a cluster only pulls on them.
    """
    ahead = state.kind in (PERSONAL, BOTH)
    if ahead and not state.trial.on:
        return state, reply.ids[:0]
    known, jump = state.losses, JUMP
    # Losses of other models, or on other samples, may rise for that; while clients are looked at, clusters change.
    otherwise = looking or state.under != state.how_trained
    if otherwise:
        known, jump = rescaled(known, reply.ids, reply.loss), JUMP**2
    alarm = alarmed(known, reply.ids, reply.loss, state.worst, jump)
    rising = suspected(known, reply.ids, reply.loss, state.worst)
    if ahead or looking:  # clusters fit their clients badly so far, or change now: two halves decide of everyone
        alarm, rising = torch.zeros_like(alarm), alarm | rising
    rising &= ~alarm
    calm = ~alarm | otherwise  # then a rise that no other model explains is no sign of new data
    losses = known.put(reply.ids[calm], reply.loss[calm].float())
    worst = max(state.worst, float(reply.loss.mean()))
    state = dataclasses.replace(state, losses=losses, worst=worst, under=state.how_trained)
    who, asked = reply.ids[alarm], int(alarm.sum() + rising.sum())
    moved = found_elsewhere(state.centers, state.labels, who, reply.ids[rising], ask, changed, jump)
    gone = torch.isin(losses.ids, moved.ids)
    looks = state.looks.only(state.looks.ids[~torch.isin(state.looks.ids, moved.ids)])
    state = dataclasses.replace(state, losses=losses.only(losses.ids[~gone]), looks=looks)
    left = who[:0] if otherwise else who[~torch.isin(who, moved.ids)]
    again = left[torch.isin(left, state.alarmed)]
    drifted = torch.cat([state.drifted, moved.ids, again]).unique()
    state = dataclasses.replace(state, labels=state.labels.put(moved.ids, moved.values), drifted=drifted)
    if len(moved.ids):
        what = "another cluster's model fits, they move"
        cohort.counted.append(drift_line(moved.ids, len(state.centers), asked, what))
    if len(again) and len(drifted) > 1:
        cohort.counted.append(drift_line(again, len(state.centers), asked, "no model fits, all are looked at again"))
        fresh = state.losses.only(state.losses.ids[:0])
        state = dataclasses.replace(state.to_be_looked_at(FIRST), losses=fresh)
    elif len(again):  # one client, for which others are not moved: another look divides its cluster, or does not
        cohort.counted.append(drift_line(again, len(state.centers), asked, "no model fits, it is looked at again"))
        rest = state.looks.ids[~torch.isin(state.looks.ids, again)]
        losses = state.losses.only(state.losses.ids[~torch.isin(state.losses.ids, again)])
        state = dataclasses.replace(state, looks=state.looks.only(rest), losses=losses)
    return dataclasses.replace(state, alarmed=left), moved.ids


def looks(rounds: int, everyone: bool) -> int:
    """How often a client is looked at: when it is met, and after 10, 20, 40, ... further visits, of which a round is at
    most one. Where not everyone takes part from the first round on, one more: a client joins the clusters by a vote."""
    count, until, round_ = 1 if everyone else 2, FIRST, FIRST + 1
    while round_ <= rounds:
        count, until = count + 1, 2 * until
        round_ += until + 1
    return count


@dataclass(frozen=True, config=STRICT)
class Halves:
    """Finds the clusters and their number by itself: one model, several, or one for each client."""

    look: PositiveInt = 50  # local steps of a look, on each half
    sketch: PositiveInt = 256  # numbers that stand for an update
    mu: NonNegativeFloat = 0.3  # the pull of a client's own model towards its cluster's
    smallest: PositiveInt = 1  # clients of a cluster; smaller ones join the most similar cluster
    pinned: bool = False  # clients of one given group (data.group) stay together, and apart from other groups
    trial: bool = True  # splits are tried on held-out samples, and so are personal models
    drift: bool = True  # clients whose loss jumps are measured at once, and move where another model fits
    local: Local = Local()
    paper: ClassVar[str] = "this library"
    releases: ClassVar[Releases | str] = Releases(
        signals=looks,
        sketches=True,
        votes=True,
        refused={
            "trial": Refusal(
                True,
                "clients send the scores of three models after every visit",
                "method.trial=false",
                "without trials, clusters are kept as they are found",
            )
        },
    )
    revision: ClassVar[int] = 4  # one client's change is no reason to move others; clusters nobody is seen of stay
    later: ClassVar[dict[str, bool]] = {"trial": True, "drift": True}

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Halved:
        """One cluster, which everyone is measured from."""
        check_pins(self.pinned, roster)
        return Halved.begin(model.init(rng), model.part("all"), min(self.sketch, model.parameters), FIRST)

    def round(self, state: Halved, cohort: Cohort, ask: Ask) -> Halved:
        """Train every cluster. Clients not yet measured from their cluster's anchor are measured in the same visit."""
        before, state = state, self.admit(state.visited(len(cohort.ids)), cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        looks = due_looks(state, met, self.local, self.look)
        replies = ask([*work_of(state, met, self.local, self.mu), *looks])
        trained = [reply for reply in replies if isinstance(reply, Fitted)]
        again = partial(changed_since, before, self.local, self.look, ask)
        state, moved = followed(state, trained[0], cohort, ask, again, bool(looks)) if self.drift else (state, met[:0])
        new = self.learn(state, [without(reply, moved) for reply in trained[-2:]], cohort) if looks else state
        weights = weigh(trained[0], "size") * ~torch.isin(trained[0].ids, moved)
        new = averaged(new, trained[0], new.labels.at(trained[0].ids), weights)
        return new.judged(state, replies, weights, moved, self.pinned, cohort) if self.trial else new

    def learn(self, state: Halved, looks: list[Fitted], cohort: Cohort) -> Halved:
        """Cluster again wherever there are new looks; among many clients, a few new ones join what is there."""
        state, new = state.looked(*looks), looks[0].ids
        pinned = (self.pinned and cohort.roster.groups) or ByClient.empty()
        for group in state.group_of[state.labels.at(new)].unique().tolist():
            if not state.is_due(group, new):
                state = state.joined_nearest(group, new[~pinned.has(new)], cohort.rng)
                continue
            ids, pairs, n = state.of_group(group)
            now = len(state.labels.at(ids).unique())
            sampled = sample_of(len(ids), cohort.rng)
            evidence = halves_evidence(pairs[sampled, 0], pairs[sampled, 1], n[sampled])
            points = (pairs[:, 0] + pairs[:, 1]) / 2
            labels = spread(evidence.labels(evidence.keep_or_change(now)), sampled, points, n)
            labels = constrained(labels, points, n, pinned.at(ids, default=-1), self.smallest)
            state, k = state.regrouped(group, ids, labels), int(labels.max()) + 1
            cohort.counted.extend([told(evidence, k, now, len(ids), len(state.centers))] if k != now else [])
        return state

    def predictor(self, state: Halved) -> Evaluate:
        """With what serves clients best so far: their cluster's model, their own, or the mean of both."""
        return state.predicts(state.kind)

    def admit(self, state: Halved, cohort: Cohort, ask: Ask) -> Halved:
        """A newcomer joins the cluster whose model has the least loss on its data, or that its group is pinned to."""
        if self.pinned:
            state = state.joined_pins(cohort.roster.groups or ByClient.empty(), cohort.ids)
        return joined_by_loss(state, cohort.ids, ask)
