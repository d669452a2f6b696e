"""What serves a client: its cluster's model, one of its own or both; since which round, and why.

The one place that says it. Tables, `clusters`, `explain`, reports, export and the API show `str(what_serves(...))`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.core.settings import explained
from coterie.core.tasks import All, Best, Estimated, Evaluate, Mix, OneRow, Own, Pick, Ref, personal_of, walk
from coterie.training import round_history
from coterie.training.events import RoundDone, ServingKind, ServingModel

if TYPE_CHECKING:
    from pathlib import Path

    from coterie.training.result import Result

TRIAL = "held-out samples"  # the rule of `Counted` by which a method decides which kind of model serves
KINDS: dict[ServingKind, str] = {
    "one": "by the same model as everybody",
    "cluster": "by its cluster's model",
    "own": "by a model of its own",
    "mean": "by the mean of its cluster's model and one of its own",
    "sum": "by a model of all and its cluster's together",
    "mixture": "by a mixture of the clusters' models, with weights of its own",
}
NEWCOMERS: dict[ServingKind, str] = {
    "one": "the model that clients start their own from",
    "cluster": "the model of the cluster that it is assigned to",
    "own": "the model that clients start their own from",
    "mean": "the model of the cluster that it is assigned to",
    "sum": "the models of all and of the cluster that it is assigned to",
    "mixture": "a mixture of the clusters' models",
}


@explained
@dataclass(frozen=True)
class Serves:
    """What serves a client; `print` shows it in words. Newcomers: what serves them until they take part in training."""

    kind: ServingKind
    newcomers: ServingKind
    clusters: int  # that have models; 0: the method has no clusters, or does not use them here
    section: str = ""  # of the model that is each client's own; empty: none
    since: int | None = None  # the first round of which this holds; None: from the beginning, or it is not recorded
    why: str = ""

    @property
    def personal(self) -> bool:
        """Whether a client has anything of its own, which newcomers lack."""
        return self.kind in ("own", "mean") or bool(self.section)

    @property
    def clients(self) -> str:
        """What serves clients of the run: 'Each client is served by ..., since round 12: why'."""
        how = KINDS[self.kind]
        if self.kind == "cluster" and self.clusters == 1:
            how = "by the model of the one cluster there is"
        section = f" with a section ({self.section}) of its own" if self.section else ""
        since = "" if self.since is None else f", since round {self.since}"
        return f"Each client is served {how}{section}{since}" + (f" ({self.why})." if self.why else ".")

    def __str__(self) -> str:
        if not self.personal:
            return self.clients
        if self.section:
            return f"{self.clients} A newcomer fits a section of its own when it predicts."
        return (
            f"{self.clients} A newcomer gets {NEWCOMERS[self.newcomers]}; "
            "to train one of its own, add it: coterie run --resume DIR --with FILE."
        )


def serving_model(task: Evaluate) -> ServingModel:
    """What a method's predictor gives to clients."""
    owns = [ref for ref in task.models if isinstance(ref, Own)]
    inside = [node for ref in task.models for node in walk(ref) if isinstance(node, Pick | Best | Mix | Estimated)]
    centers = max((len(node.centers) for node in inside), default=0)
    section = next((found.section for ref in task.models if (found := personal_of(ref)) is not None), "")
    default = owns[0].default if owns else None
    newcomer: ServingKind = _kind(Evaluate((default,))) if default is not None else _kind(task)
    mixes = task.mixture is not None and not isinstance(task.mixture, All)
    return ServingModel(
        kind=_kind(task),
        newcomers=newcomer,
        clusters=len(task.models) if mixes else centers,
        section=section if isinstance(section, str) else ", ".join(section),
    )


def _kind(task: Evaluate) -> ServingKind:
    refs: tuple[Ref, ...] = task.models
    if all(isinstance(ref, All) for ref in refs):
        return "one" if task.mixture is None or isinstance(task.mixture, All) else "mixture"
    if task.mixture is not None or any(isinstance(ref, Mix) for ref in refs):
        return "mixture"
    if any(isinstance(ref, Own) for ref in refs):
        return "own" if len(refs) == 1 else "mean" if task.average else "sum"
    return "cluster" if all(isinstance(ref, OneRow) for ref in refs) else "sum"


def what_serves(result: Result[Any]) -> Serves:
    """What serves the clients of a run after its last round."""
    rounds = {event.round: event for event in result.history}
    if result.run_dir is not None:  # a resumed run knows its earlier rounds by their file
        rounds = {number: event for number, (_, event) in round_history.read(result.run_dir).items()} | rounds
    task = result.method.predictor(result.state)
    return _since(serving_model(task), [rounds[number] for number in sorted(rounds)])


def what_serves_in(path: Path) -> Serves | None:
    """The same of a run directory, by rounds.jsonl alone; None where no round is recorded."""
    return what_served([event for _, event in round_history.read(path).values()])


def what_served(history: Iterable[RoundDone]) -> Serves | None:
    """The same after the last of these rounds."""
    rounds = [event for event in history if event.serves is not None]
    last = rounds[-1].serves if rounds else None
    return None if last is None else _since(last, rounds)


def _since(now: ServingModel, rounds: list[RoundDone]) -> Serves:
    since: int | None = None
    for event in reversed(rounds):
        if event.serves is None or (event.serves.kind, event.serves.section) != (now.kind, now.section):
            break
        since = event.round
    decided = [
        (event.round, one.reason)
        for event in rounds
        for one in event.counted
        if one.rule == TRIAL and (since is None or event.round >= since)
    ]
    why = f"decided in round {decided[-1][0]}: {decided[-1][1]}" if decided else ""
    always = since is not None and since == rounds[0].round
    return Serves(now.kind, now.newcomers, now.clusters, now.section, None if always else since, why)
