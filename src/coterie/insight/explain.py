"""Why is a client in its cluster? By the losses of the clusters' models, by sketches, or by the models alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError
from coterie.core.references import All, Best, Mix, Personal, Pick, Ref, personal_of, walk
from coterie.core.settings import explained
from coterie.core.tables import ByClient, number_of
from coterie.core.tasks import Evaluate, Score, Scored
from coterie.core.text import client_name, short
from coterie.data.federation import Federation
from coterie.data.partitions.by_client import TOO_FEW
from coterie.engines.sequential import Sequential
from coterie.insight.contrast import Contrast, contrasts, differences
from coterie.training.ask import RoundAsk
from coterie.training.predict import cluster_of

if TYPE_CHECKING:
    from coterie.training.result import Result

NEAREST = 5  # clients that are named
LISTED = 5  # clusters whose loss is shown, the least first; and the client's own
OTHERS = 300  # clients that a client is compared with by losses, if there are more

# losses: of each cluster's model on the client's training data. models: distances between the clusters' models.
Measure: TypeAlias = Literal["losses", "models"]


@runtime_checkable
class HasLooks(Protocol):
    """A state that keeps sketches of updates on two halves of clients' data."""

    @property
    def looks(self) -> ByClient: ...  # (n, 2, d)

    @property
    def group_of(self) -> Tensor: ...  # (K,) sketches of clients of one group can be compared

    @property
    def labels(self) -> ByClient: ...


@dataclass(frozen=True)
class Neighbour:
    """A client that is near."""

    client: int
    name: str | None
    cluster: int
    distance: float  # of losses; by sketches a squared distance of updates free of noise, which may be below 0


@explained
@dataclass(frozen=True)
class Explanation:
    """Why a client is in its cluster; `print` shows it in words."""

    client: int
    name: str | None
    cluster: int
    sizes: tuple[int, ...]  # clients of each cluster
    measure: Measure
    scores: tuple[float, ...]  # of each cluster: a loss, or the distance of its model from that of the client's cluster
    runner_up: int | None  # the nearest other cluster
    margin: float | None  # how much more loss the runner-up has; below 0: less. None without the data
    nearest: tuple[Neighbour, ...]  # the nearest first
    nearest_by: Literal["sketches", "losses"] | None
    contrast: Contrast | None  # what distinguishes its cluster; None without the data
    note: str = ""  # what could not be looked at, and why
    standardised: bool = False  # whether losses are of standardised targets, in which several have one unit
    section: str = ""  # what of these models stays with clients, so that they differ in the rest; empty: nothing
    serves: str = ""  # what the client predicts with, which may not be the model of its cluster

    def __str__(self) -> str:
        return "\n".join(_words(self))


def _number(result: Result[Any], client: int | str) -> int:
    try:
        return number_of(result.known, client)
    except CoterieError:
        if isinstance(client, str) and _was_too_small(result, client):
            raise CoterieError(
                f"client '{client}' is in no cluster: it had too few samples and was left out of the run "
                "(data.partition.at_least)",
                code="client-unknown",
            ) from None
        raise


def _was_too_small(result: Result[Any], client: str) -> bool:
    """Whether the data, where it can be read, says that this client was left out."""
    try:
        remarks = result.federation.remarks
    except CoterieError:
        return False
    return any(remark.startswith(TOO_FEW) and f"client '{client}'" in remark for remark in remarks)


def explain(result: Result[Any], client: int | str) -> Explanation:
    """Why this client of a run is in its cluster."""
    number = _number(result, client)
    cluster = cluster_of(result, number)
    serves, found = str(result.serves), cluster_models(result.method.predictor(result.state))
    if found is None:
        return Explanation(
            client=number,
            name=None if result.known.names is None else result.known.names[number],
            cluster=cluster,
            sizes=(int((result.assignments >= 0).sum()),),
            measure="models",
            scores=(),
            runner_up=None,
            margin=None,
            nearest=(),
            nearest_by=None,
            contrast=None,
            serves=serves,
        )
    centers, given = found
    personal = _personal(result)
    places = {i: int(c) for i, c in enumerate(result.assignments) if c >= 0}
    note, federation = "", None
    try:
        federation = result.last_data
    except CoterieError as error:
        note = f"Without the clients' data only the clusters' models are compared ({error})."
    names = result.known.names
    nearest, by = _by_sketches(result, number, places), "sketches"
    if federation is None:
        scores = (centers - centers[cluster]).double().norm(dim=1)
        margin, contrast = None, None
    else:
        known = sorted(places) if len(centers) > 1 else []  # one model: there is nobody to compare it by
        losses = _losses(result, federation, Score(centers, given=given, personal=personal), number, known)
        losses = replace(losses, values=losses.values * _unit(result))
        scores, margin = losses.values[losses.ids == number][0].double(), None
        contrast = next(one for one in contrasts(federation, places) if one.cluster == cluster)
        if not nearest and len(centers) > 1:
            nearest, by = _by_losses(losses, number), "losses"
    others = [c for c in range(len(centers)) if c != cluster]
    runner_up = min(others, key=lambda c: float(scores[c])) if others else None
    if runner_up is not None and federation is not None:
        margin = float(scores[runner_up] - scores[cluster])
    return Explanation(
        client=number,
        name=None if names is None else names[number],
        cluster=cluster,
        sizes=tuple(np.bincount(list(places.values()), minlength=len(centers)).tolist()),
        measure="models" if federation is None else "losses",
        scores=tuple(scores.tolist()),
        runner_up=runner_up,
        margin=margin,
        nearest=tuple(
            Neighbour(i, None if names is None else names[i], places[i], distance) for i, distance in nearest[:NEAREST]
        ),
        nearest_by=("sketches" if by == "sketches" else "losses") if nearest else None,
        contrast=contrast,
        note=note,
        standardised=federation is not None and _standardised(result),
        section="" if personal is None else _section_words(personal),
        serves=serves,
    )


def _standardised(result: Result[Any]) -> bool:
    """Whether a loss is of several standardised targets, each with a unit of its own that the loss does not tell."""
    return result.target_scale is not None and (result.model.loss != "mse" or result.target_scale.std.numel() > 1)


def _unit(result: Result[Any]) -> float:
    """What turns a loss of one standardised target into that target's units, in which all other scores are."""
    scale = result.target_scale
    return 1.0 if scale is None or _standardised(result) else float(scale.std.square().sum())


def _personal(result: Result[Any]) -> Personal | None:
    """What stays with each client of the clusters' models."""
    models = result.method.predictor(result.state).models
    return next((found for ref in models if (found := personal_of(ref)) is not None), None)


def _section_words(personal: Personal) -> str:
    return personal.section if isinstance(personal.section, str) else ", ".join(personal.section)


def cluster_models(task: Evaluate) -> tuple[Tensor, Ref | None] | None:
    """The models (K, P) that clients choose from or mix, one where there is one for all, and one that is added to each.

    None where clients have nothing of this kind in common.
    """
    inside = [node for ref in task.models for node in walk(ref) if isinstance(node, Pick | Best | Mix)]
    plain = [ref for ref in task.models if isinstance(ref, All)]
    if inside:
        return inside[0].centers, plain[0] if plain else None
    if len(plain) == len(task.models) and (len(plain) == 1 or task.mixture is not None):
        return torch.stack([ref.theta for ref in plain]), None
    return None


def _losses(result: Result[Any], federation: Federation, score: Score, client: int, known: Sequence[int]) -> ByClient:
    """The loss of each cluster's model (n, K) on the training data of this client and of others."""
    step = max(1, len(known) // OTHERS)
    ids = torch.tensor(sorted({client, *known[::step]}))
    engine = Sequential(result.model, federation)
    engine.memory = result.memory  # a section that stays with clients; only read, as nothing is kept
    ask = RoundAsk(engine, ids, result.settings.seed, 0, kind="probe")
    with one_thread():
        reply: Scored = ask(score)
    if client not in reply.ids:
        raise CoterieError(f"explain: {ask.lost[0].who}: {ask.lost[0].reason}", code="data-unreadable")
    return ByClient(reply.ids, reply.scores)


def _by_losses(losses: ByClient, client: int) -> list[tuple[int, float]]:
    """Clients by how alike the clusters' models do on their data."""
    mine = losses.values[losses.ids == client][0]
    return _ordered(losses.ids, (losses.values - mine).double().norm(dim=1), client)


def _by_sketches(result: Result[Any], client: int, places: dict[int, int]) -> list[tuple[int, float]]:
    """Clients by the distance of their updates, free of noise on average; of those that were measured alike."""
    state = result.state
    if not isinstance(state, HasLooks) or state.looks.get(client) is None or state.labels.get(client) is None:
        return []
    group = state.group_of[state.labels.at(state.looks.ids)]
    mine = int(group[state.looks.ids == client][0])
    known = torch.tensor([i in places for i in state.looks.ids.tolist()]) & (group == mine)
    ids, looks = state.looks.ids[known], state.looks.values[known].double()
    apart = looks - looks[ids == client]
    return _ordered(ids, (apart[:, 0] * apart[:, 1]).sum(1), client)


def _ordered(ids: Tensor, distance: Tensor, client: int) -> list[tuple[int, float]]:
    found = [(i, d) for i, d in zip(ids.tolist(), distance.tolist(), strict=True) if i != client]
    return sorted(found, key=lambda one: (one[1], one[0]))


def _words(found: Explanation) -> Iterator[str]:
    who, many = _called(found.client, found.name), len(found.scores)
    others = found.sizes[found.cluster] - 1 if found.cluster < len(found.sizes) else 0
    if not many:
        yield f"{who} is in no cluster: the method of this run has none. {found.serves}"
        return
    if many == 1:
        own = f" for all but the section that is each client's own ({found.section})" if found.section else ""
        yield f"{who} is with everyone else: this run has one model{own}."
        if "a model of its own" in found.serves or "one of its own" in found.serves:
            yield found.serves
        return
    yield f"{who} is in cluster {found.cluster} of {many}, with {others} other client{'s' * (others != 1)}."
    if found.serves:
        yield found.serves
    ordered = sorted(enumerate(found.scores), key=lambda item: (item[1], item[0]))
    listed = [(c, value) for place, (c, value) in enumerate(ordered) if place < LISTED or c == found.cluster]
    shown = ", ".join(
        f"cluster {c} {short(value, 3)}{' (its own)' if c == found.cluster else ''}" for c, value in listed
    )
    if len(listed) < many:
        shown += (
            f" and {many - len(listed)} more, all larger"
            if listed == ordered[: len(listed)]
            else (f"; the {many - len(listed)} others are larger than the first {LISTED}")
        )
    if found.measure == "losses":
        own = f", each with a section ({found.section}) of the client's own," if found.section else ""
        unit = " (of standardised targets)" if found.standardised else ""
        yield f"Loss of the clusters' models{own} on its training data{unit}: {shown}."
    else:
        yield f"Distance of the clusters' models from its own cluster's: {shown}."
    if found.margin is not None and found.margin >= 0:
        yield f"The runner-up is cluster {found.runner_up}, with {short(found.margin, 3)} more loss."
    elif found.margin is not None:
        yield (
            f"Cluster {found.runner_up} has {short(-found.margin, 3)} less loss: the method did not place it by this "
            "loss, and it may be better off there."
        )
    elif found.runner_up is not None:
        yield f"The nearest other cluster is cluster {found.runner_up}."
    if found.nearest:
        near = ", ".join(f"{_called(one.client, one.name)} (cluster {one.cluster})" for one in found.nearest)
        how = "updates on two halves of their data" if found.nearest_by == "sketches" else "losses of these models"
        yield f"Nearest clients, by {how}: {near}."
    if found.contrast is not None:
        apart = differences(found.contrast)
        yield (
            f"What distinguishes its cluster: {apart}."
            if apart
            else "Labels and inputs of its cluster are as everywhere: it differs in how the two go together."
        )
    if found.note:
        yield found.note


def _called(client: int, name: str | None) -> str:
    return client_name(None, client) if name is None else client_name([name], 0)
