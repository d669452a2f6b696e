"""`coterie.inspect`: one round of updates on two halves of clients' data, and what it says of the federation.

Nothing is trained beyond that, nothing is kept at a client, and the server sees sketches. See `clustering.halves` for
the number of clusters and `clustering.halves` for everything else.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
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
from coterie.core.constructors import explained, explained_call
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.local import Local
from coterie.core.naming import client_name
from coterie.core.references import All
from coterie.core.replies import Fitted
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import Fit
from coterie.core.validation import settings_from
from coterie.data.federation import Federation
from coterie.engines.contract import Engine, Missing
from coterie.engines.factory import EngineName, local_of
from coterie.methods.fedavg import FedAvg
from coterie.training.ask import RoundAsk
from coterie.training.assembly import EngineRequest, assemble
from coterie.training.build import AnyModel, as_model
from coterie.training.commonest import only_class
from coterie.training.contrast import Contrast, contrasts
from coterie.training.job import Job
from coterie.training.settings import Settings

STEPS = (1, 10, 50)  # local steps that are tried; where clusters predict best is used
SKETCH = 256  # numbers that stand for an update
FEWEST = 4  # samples of a client that is measured: two in each half
CLIENTS = 4  # measured, at least
FEW = 3  # clients per cluster, below which everyone differs
CLEAR = 2.0  # deviations of noise from the next cluster; a client with less is doubtful
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

    def who(self, client: int) -> str:
        """A client as people call it."""
        return client_name(self.names, client)

    def __str__(self) -> str:
        from coterie.training.inspection_words import answer

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
    steps: numbers of local steps to try; the one with which clusters predict best is used.
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
    ask = RoundAsk(job.engine, asked, job.settings.seed, 0, keep=False, names=clients.names)
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
    verdict = _verdict(k, len(n), spread, shown, least)
    scale = float(look.evidence.risks[0]) or 1.0
    return Inspection(
        verdict=verdict,
        k=k,
        resampled=spread,
        variances=shown,
        visible=least,
        places=_places(look, settled(look.evidence.labels(k), (a + b) / 2, n), names),
        depth=look.steps,
        depths=tuple(DepthTried(one.steps, one.k, one.r2) for one in looks),
        risks=tuple((look.evidence.risks / scale).tolist()),
        errors=tuple((look.evidence.errors / scale).tolist()),
        tree=look.evidence.tree,
        heights=heights(look.evidence.tree, (a + b) / 2, n),
        clients=clients,
        small=small,
        missing=missing,
        advice=_advice(verdict, k),
        names=names,
    )


def _verdict(k: int, clients: int, spread: Resampled, shown: Variances, least: float | None) -> Verdict:
    if k == 1:
        # Differences as large as all that clients have in common would not be seen: then nothing was learnt.
        return "alike" if least is not None and least <= shown.common else "unknown"
    if spread.low <= 0:
        return "weak"
    return "individual" if k * FEW > clients else "clusters"


def _advice(verdict: Verdict, k: int) -> tuple[Advice, ...]:
    if verdict == "alike":
        return (Advice("fedavg", (), "one model for all"),)
    if verdict == "clusters":
        given = Advice("wecfl", (("k", k),), f"{k} clusters, as found here")
        return Advice("halves", (), "a model for each cluster; their number is measured again during training"), given
    if verdict == "individual":
        return (Advice("ditto", (), "a model for each client, held near a common one"),)
    return (Advice("halves", (), "one model, which is split if clusters show up during training"),)


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
