"""`coterie.inspect`: one round of updates on two halves of clients' data, and what it says of the federation.

Nothing is trained beyond that, nothing is kept at a client, and the server sees sketches. See `clustering.halves` for
the number of clusters and `clustering.halves` for everything else.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from coterie.clustering.halves import (
    Evidence,
    Resampled,
    Variances,
    halves_evidence,
    heights,
    margins,
    resampled,
    sample_of,
    settled,
    variances,
    visible,
)
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import explained, explained_call, settings_from
from coterie.core.tasks import Fit, Fitted
from coterie.core.text import client_name
from coterie.data.federation import Federation
from coterie.engines.choose import EngineName, local_of
from coterie.engines.contract import Engine, Missing
from coterie.insight.contrast import DEVIATIONS, SHARE, Contrast, contrast, contrasts, percent
from coterie.methods.fedavg import FedAvg
from coterie.methods.halves import Halves
from coterie.training.ask import RoundAsk
from coterie.training.assembly import EngineRequest, assemble
from coterie.training.build import AnyModel, as_model
from coterie.training.job import Job
from coterie.training.settings import Settings
from coterie.training.warnings import only_class

STEPS = (Halves().look,)  # local steps that are tried: as many as `halves` takes, so that both count by one rule
SKETCH = 256  # numbers that stand for an update
FEWEST = 4  # samples of a client that is measured: two in each half
CLIENTS = 4  # measured, at least
FEW = 3  # clients per cluster, below which everyone differs
CLEAR = 2.0  # deviations of noise from the next cluster; a client with less is doubtful
MOSTLY = 1 / 3  # of clients; where more are doubtful, they differ by degrees and not in clusters
ALONE = 1.1  # times the error of a personal model, up to which a client is as well off alone
PERSONAL = 0.5  # times the error of one model, below which personal models are worth a try
MANY = 100  # resamples of clients; half as many where there are more than 60
TYPICAL = 3  # clients of a cluster that are named as typical

# alike: one model serves all. clusters: groups of clients. individual: hardly two clients alike. weak: differences, but
# not clearly groups. unknown: the data cannot tell.
Verdict: TypeAlias = Literal["alike", "clusters", "individual", "weak", "unknown"]


@dataclass(frozen=True)
class DepthTried:
    """What updates of so many local steps show."""

    steps: int
    k: int
    r2: float  # of k clusters


@dataclass(frozen=True)
class Place:
    """A client, and how clearly it is in its cluster."""

    client: int
    name: str | None
    samples: int
    cluster: int
    margin: float | None  # deviations of its noise to the boundary of the next cluster; None where there is none
    runner_up: int | None
    typical: bool  # among those nearest to the mean of their cluster
    alone: bool  # the only one of its cluster

    @property
    def doubtful(self) -> bool:
        """Whether it may belong to the next cluster as well."""
        return self.margin is not None and self.margin < CLEAR


@dataclass(frozen=True)
class Advice:
    """What follows: a method, its settings, and why."""

    method: str
    settings: tuple[tuple[str, int], ...]
    reason: str


@explained
@dataclass(frozen=True, eq=False)
class Inspection:
    """What one round of half-updates says of a federation; `print` shows the answer in words."""

    verdict: Verdict
    k: int  # clusters: 1 where clients are alike or nothing can be said
    resampled: Resampled  # R2 (of 2 clusters where k is 1) with its interval, and how sure k is
    variances: Variances
    visible: float | None  # the least variance between two clusters that would be seen; None where clusters were seen
    places: tuple[Place, ...]  # of the clients that were measured, by id
    depth: int  # local steps of the updates that were used
    depths: tuple[DepthTried, ...]
    risks: tuple[float, ...]  # of 1, 2, ... clusters, relative to one
    errors: tuple[float, ...]  # their standard errors, on the same scale
    tree: tuple[tuple[int, int], ...]  # Ward's merges, of positions in `places`
    heights: tuple[float, ...]
    clients: int  # in the federation
    small: tuple[int, ...]  # clients with too few samples to be measured
    missing: tuple[Missing, ...]  # clients that did not answer
    advice: tuple[Advice, ...]  # the first choice first
    names: tuple[str, ...] | None = field(repr=False)
    contrasts: tuple[Contrast, ...] | None = None  # what distinguishes the clusters, where it was asked for

    @property
    def sizes(self) -> tuple[int, ...]:
        """Clients of each cluster."""
        return tuple(sum(place.cluster == c for place in self.places) for c in range(self.k))

    @property
    def assignments(self) -> dict[int, int]:
        """The cluster of each client that was measured, by id."""
        return {place.client: place.cluster for place in self.places}

    @property
    def doubtful(self) -> tuple[Place, ...]:
        """Clients that may belong to another cluster as well, the most doubtful first."""
        return tuple(sorted((p for p in self.places if p.doubtful), key=lambda p: (p.margin or 0.0, p.client)))

    @property
    def personal_error(self) -> float:
        """The expected error of a client's own model held near a common one; where clients differ, near one of all."""
        return _personal(self.verdict, self.variances)

    def who(self, client: int) -> str:
        """A client as people call it."""
        return client_name(self.names, client)

    def __str__(self) -> str:
        return "\n".join(answer(self))


@explained_call
def inspect(
    federation: Federation | Sequence[tuple[ArrayLike, ...]],
    model: AnyModel = "mlp",
    *,
    local: Local | None = None,
    seed: int = 0,
    steps: Sequence[int] = STEPS,
    explain: bool = False,
    engine: EngineName | Engine = "sequential",
    workers: int | None = None,
) -> Inspection:
    """Say whether clients are alike or form clusters, how many and how sure that is. Nothing is trained.

    federation, model, engine, workers: as for `coterie.run`. local: how clients train, but for how long.
    steps: numbers of local steps to try; the one with which clusters predict best is used. By default as many as
    `halves` looks with, whose first number of clusters is then found by the same rule.
    explain: also compare the clusters' labels and inputs, which shows what clients' data contain.
    """
    data = Federation.of(federation)
    the_model = as_model(model, data)
    method, settings = FedAvg(local=local or Local()), settings_from(Settings, seed=seed)
    with assemble(method, the_model, data, settings, EngineRequest(engine, workers)) as run:
        return inspect_clients(run, method.local, steps, explain=explain)


def inspect_clients(
    job: Job[Any], local: Local, steps: Sequence[int] = STEPS, *, explain: bool = False, most: int = 1000
) -> Inspection:
    """Inspect the clients of a run that is ready. With more than `most` clients, so many are drawn and asked."""
    _check_steps(steps)
    clients, roster = job.clients, job.clients.roster
    rng = generator(job.settings.seed, Purpose.METHOD, 0)
    large = roster.ids[roster.n >= FEWEST]
    small = tuple(roster.ids[roster.n < FEWEST].tolist())
    asked = large[sample_of(len(large), rng, most)]
    if len(asked) < CLIENTS:
        raise CoterieError(
            f"inspect: {len(asked)} of {len(roster.ids)} clients have at least {FEWEST} training samples, two for each "
            f"half, and at least {CLIENTS} such clients are needed to compare them",
            code="inspection-impossible",
        )
    if (only := only_class(clients)) is not None:
        warnings.warn(
            f"data: all labels are '{only}', so clients cannot differ by them and there is nothing to learn; is data.y "
            "the right column?",
            CoterieWarning,
            stacklevel=2,
        )
    ask = RoundAsk(job.stack, asked, job.settings.seed, 0, kind="probe", names=clients.names)
    start = All(job.model.init(generator(job.settings.seed, Purpose.INIT)))
    local = local if local.lr != "auto" else local_of(job.method)  # with the rate that was found when it was assembled
    replies: list[Fitted] = ask(_tasks(start, local, steps, min(SKETCH, job.model.parameters)))
    if len(replies[0].ids) < CLIENTS:
        first = ask.lost[0]
        raise CoterieError(
            f"inspect: {len(replies[0].ids)} of {len(asked)} clients answered; {first.who}: {first.reason}",
            code="inspection-impossible",
        )
    looks = [_Look(s, *replies[2 * i : 2 * i + 2]) for i, s in enumerate(steps)]
    found = _inspection(looks, rng, clients.names, len(roster.ids), small, ask.lost)
    if not explain:
        return found
    if not isinstance(clients, Federation):
        raise CoterieError(
            "inspect: explain compares labels and inputs, which stay with the clients of a network; leave it out",
            code="data-needed",
        )
    return dataclasses.replace(found, contrasts=contrasts(clients, found.assignments))


def _check_steps(steps: Sequence[int]) -> None:
    if not steps or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in steps):
        raise CoterieError(
            f"inspect: steps are numbers of local steps, such as (1, 10, 50), not {steps!r}", code="argument-invalid"
        )


def _tasks(start: All, local: Local, steps: Sequence[int], size: int) -> list[Fit]:
    """For each number of steps the same training on either half; nothing of it is kept, and only sketches are sent."""
    return [
        Fit(
            start,
            local=dataclasses.replace(local, epochs=None, steps=s, keep_optimizer=False),
            half=half,
            sketch=size,
            send=False,
            keep=False,
        )
        for s in steps
        for half in (0, 1)
    ]


class _Look:
    """The updates of so many steps on both halves, and what they say."""

    def __init__(self, steps: int, first: Fitted, second: Fitted) -> None:
        assert first.sketch is not None
        assert second.sketch is not None
        self.steps, self.ids, self.n = steps, first.ids, first.n
        self.a, self.b = first.sketch, second.sketch
        self.evidence: Evidence = halves_evidence(self.a, self.b, self.n)
        self.k, self.r2 = self.evidence.k, self.evidence.r2(self.evidence.k)


def _inspection(
    looks: Sequence[_Look],
    rng: np.random.Generator,
    names: tuple[str, ...] | None,
    clients: int,
    small: tuple[int, ...],
    missing: tuple[Missing, ...],
) -> Inspection:
    """Everything that follows from the updates."""
    look = max(looks, key=lambda look: (look.r2, look.steps))
    k, a, b, n = look.k, look.a, look.b, look.n
    spread = resampled(a, b, n, max(k, 2), rng, MANY if len(n) <= 60 else MANY // 2)
    shown = variances(a, b, n, k)
    least = visible(a, b, n, rng) if k == 1 else None
    places = _places(look, settled(look.evidence.labels(k), (a + b) / 2, n), names)
    verdict = _verdict(k, places, spread, shown, least)
    scale = float(look.evidence.risks[0]) or 1.0
    return Inspection(
        verdict=verdict,
        k=k,
        resampled=spread,
        variances=shown,
        visible=least,
        places=places,
        depth=look.steps,
        depths=tuple(DepthTried(one.steps, one.k, one.r2) for one in looks),
        risks=tuple((look.evidence.risks / scale).tolist()),
        errors=tuple((look.evidence.errors / scale).tolist()),
        tree=look.evidence.tree,
        heights=heights(look.evidence.tree, (a + b) / 2, n),
        clients=clients,
        small=small,
        missing=missing,
        advice=_advice(verdict, k, shown),
        names=names,
    )


def _verdict(k: int, places: Sequence[Place], spread: Resampled, shown: Variances, least: float | None) -> Verdict:
    if k == 1:
        # Differences as large as all that clients have in common would not be seen: then nothing was learnt.
        return "alike" if least is not None and least <= shown.common else "unknown"
    if spread.low <= 0:
        return "weak"
    if k * FEW > len(places):
        return "individual"
    return "weak" if sum(place.doubtful for place in places) > MOSTLY * len(places) else "clusters"


def _personal(verdict: Verdict, shown: Variances) -> float:
    """A cluster of one client is that client: there its own update has nothing of others to be combined with."""
    errors = shown.errors
    if verdict != "individual" or errors.one + errors.local <= 0:
        return errors.personal
    return errors.one * errors.local / (errors.one + errors.local)


def _advice(verdict: Verdict, k: int, shown: Variances) -> tuple[Advice, ...]:
    personal, errors = _personal(verdict, shown), shown.errors
    ditto = Advice("ditto", (), "a model for each client, held near a common one")
    alone = Advice("local", (), "each client alone: expected to be as good as with the others' help")
    if verdict == "alike":
        return (Advice("fedavg", (), "one model for all"),)
    if verdict == "clusters":
        given = Advice("wecfl", (("k", k),), f"{k} clusters, as found here")
        return Advice("halves", (), "a model for each cluster; their number is measured again during training"), given
    if verdict == "individual":
        if errors.local <= ALONE * personal * (1 + 1e-9):
            return alone, ditto
        return ditto, dataclasses.replace(alone, reason="each client alone, to compare with")
    halves = Advice("halves", (), "one model, which is split if clusters show up during training")
    return (halves, ditto) if verdict == "weak" and personal < PERSONAL * errors.one else (halves,)


def _places(look: _Look, labels: Tensor, names: tuple[str, ...] | None) -> tuple[Place, ...]:
    found = margins(look.a, look.b, look.n, labels)
    typical: set[int] = set()
    for cluster in range(int(labels.max()) + 1):
        members = torch.nonzero(labels == cluster).flatten().numpy()
        near = members[np.argsort(found.distance[members], kind="stable")]
        typical.update(near[: min(TYPICAL, len(members) // 2)].tolist())
    sizes = torch.bincount(labels)
    return tuple(
        Place(
            client=client,
            name=None if names is None else names[client],
            samples=int(look.n[i]),
            cluster=int(labels[i]),
            margin=None if math.isnan(found.margin[i]) else float(found.margin[i]),
            runner_up=None if found.runner_up[i] < 0 else int(found.runner_up[i]),
            typical=i in typical,
            alone=int(sizes[labels[i]]) == 1,
        )
        for i, client in enumerate(look.ids.tolist())
    )


NAMED = 8  # clients in a list
SURE = 0.9  # a share of resamples that is called clear


def answer(found: Inspection) -> list[str]:
    """The answer, what it rests on, what it is worth, and what follows."""
    return [*_headline(found), *_measured(found), *_clients(found), expected(found)]


def _headline(found: Inspection) -> Iterator[str]:
    many, spread = len(found.places), found.resampled
    share = spread.share(found.k)
    sure = f"{percent(share)} of bootstrap resamples agree"
    if found.verdict == "alike":
        yield f"The {many} clients look alike: one model serves them all ({sure})."
        by = f"{percent(-spread.r2)} worse" if spread.r2 < 0 else f"no more than {percent(spread.r2)} better"
        yield f"Two clusters would predict a client's other half {by} than one (R2 {_interval(found)})."
        if _seen(found):
            least = f"by {_relative(found)} of what clients have in common"
            yield f"Clusters would have been seen if they differed {least}."
        else:
            yield "Their updates are all but zero, so nothing could differ: there may be nothing to learn here."
    elif found.verdict == "unknown":
        samples = statistics.median(place.samples for place in found.places)
        yield f"Too few samples per client to tell (median {samples:g}): the two halves of a client agree too little."
        least = f"by less than {_relative(found)} of what clients have in common" if _seen(found) else "by any amount"
        yield f"No clusters were seen, but clusters that differ {least} would not be seen either."
    elif found.verdict == "weak":
        yield f"The {many} clients differ, but not clearly in clusters."
        better = f"predict a client's other half {percent(spread.r2)} better than one"
        yield f"{found.k} clusters would {better} (R2 {_interval(found)}; {sure})."
        if found.doubtful:
            yield f"{len(found.doubtful)} of the {many} would lie between two of them: they differ by degrees."
    elif found.verdict == "individual":
        yield f"Hardly two of the {many} clients are alike: {found.k} clusters, fewer than three clients in each."
        yield f"They predict a client's other half {percent(spread.r2)} better than one (R2 {_interval(found)})."
    else:
        if share >= SURE:
            yield f"The {many} clients form {found.k} clusters ({sure})."
        else:
            yield f"The {many} clients form clusters, but how many is not clear: {found.k} here, {_range(found)}."
        yield f"They predict a client's other half {percent(spread.r2)} better than one (R2 {_interval(found)})."
        yield f"Clients in each cluster: {', '.join(map(str, found.sizes))}."


def _measured(found: Inspection) -> Iterator[str]:
    shown = found.variances
    share = shown.share
    yield (
        f"Of the differences between clients' updates {percent(share)} are real, the rest is sampling noise; "
        f"updates of {found.depth} local step{'s' * (found.depth != 1)} were used"
        + (f" (tried: {', '.join(str(d.steps) for d in found.depths)})." if len(found.depths) > 1 else ".")
    )
    if len(found.places) + len(found.small) + len(found.missing) < found.clients:
        yield f"{len(found.places):,} of {found.clients:,} clients, drawn at random, were asked."
    if found.small:
        yield f"Not measured, with fewer than {FEWEST} training samples: {_listed(found, found.small)}."
    if found.missing:
        first = found.missing[0]
        yield f"{len(found.missing)} did not answer; {first.who}: {first.reason}."


def _clients(found: Inspection) -> Iterator[str]:
    if found.k == 1 or found.verdict in ("individual", "weak"):
        return
    alone = [place.client for place in found.places if place.alone]
    if found.doubtful:
        yield (
            f"Doubtful, less than {CLEAR:g} deviations of noise from another cluster: "
            f"{_listed(found, [place.client for place in found.doubtful])}."
        )
    else:
        sure = found.resampled.share(found.k) >= SURE
        who = "Nobody is doubtful" if sure else f"If there are {found.k} clusters, it is clear who is in which"
        yield f"{who}: all are at least {_least(found.places)} deviations of noise from another cluster."
    if alone:
        yield f"Alone in a cluster: {_listed(found, alone)}."


def expected(found: Inspection) -> str:
    """What each kind of model can be expected to give."""
    errors = found.variances.errors
    if errors.one <= 0:
        return "What models of different kinds would give cannot be estimated: updates do not differ at all."
    parts = [("one model", errors.one)]
    parts += [(f"{found.k} cluster models", errors.clusters)] if found.k > 1 else []
    parts += [("personal models", found.personal_error), ("each client alone", errors.local)]
    said = ", ".join(f"{name} {_ratio(value / errors.one)}" for name, value in parts)
    return (
        f"Estimate, not accuracy: the error of the update that a client gets, {found.depth} local steps from a random "
        f"model, where one model is 100: {said}. Clients that only have other shares of labels count as different, "
        "though one model may serve them."
    )


def compared(found: Inspection) -> list[str]:
    """What distinguishes the clusters, a line each, and what that means; nothing where it was not asked for."""
    if found.contrasts is None or found.k == 1:
        return []
    classes = [d for one in found.contrasts for d in one.labels if not d.deviations]
    others = [d for one in found.contrasts for d in (*one.labels, *one.inputs)]
    labels = max((abs(d.here - d.everywhere) for d in classes), default=0.0) >= SHARE
    inputs = max((abs(d.deviations) for d in others), default=0.0) >= DEVIATIONS
    if labels and not inputs:
        meaning = "The clusters have different shares of labels; one model may serve them, so compare with fedavg."
    elif not labels and not inputs:
        meaning = "Labels and inputs are much the same everywhere: the clusters differ in how the two go together."
    else:
        meaning = f"The clusters have different inputs{' and different shares of labels' if labels else ''}."
    return [*(contrast(one) for one in found.contrasts), meaning]


def _listed(found: Inspection, clients: Sequence[int]) -> str:
    """Clients by name, as many as are read."""
    shown = ", ".join(found.who(client) for client in clients[:NAMED])
    return shown + (f" and {len(clients) - NAMED} more" if len(clients) > NAMED else "")


def _range(found: Inspection) -> str:
    """The numbers of clusters that nine of ten resamples show."""
    numbers, total = list[int](), 0.0
    for k, share in found.resampled.counts:
        numbers.append(k)
        total += share
        if total >= SURE:
            break
    return f"{min(numbers)} to {max(numbers)} in {percent(SURE)} of bootstrap resamples"


def _interval(found: Inspection) -> str:
    spread = found.resampled
    return f"{spread.r2:.2f}, 95 % interval {spread.low:.2f} to {spread.high:.2f}"


def _ratio(value: float) -> str:
    return f"{100 * value:.0f}" if value < 100 else "over 9,999"


def _seen(found: Inspection) -> bool:
    return found.visible is not None and math.isfinite(found.visible) and found.variances.common > 0


def _relative(found: Inspection) -> str:
    """The least difference that would be seen, as a length, relative to that of the common update."""
    if not _seen(found) or found.visible is None:
        return "any multiple"
    return percent(math.sqrt(found.visible / found.variances.common))


def _least(places: Sequence[Place]) -> str:
    known = [place.margin for place in places if place.margin is not None]
    return f"{math.floor(10 * min(known)) / 10:g}" if known and math.isfinite(min(known)) else "many"
