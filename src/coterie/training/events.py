"""The events of a run. Progress bars, files and trackers listen to them; the round loop knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor

from coterie.core.metrics import Summary
from coterie.core.settings import explained
from coterie.core.tables import Counted
from coterie.core.tasks import Evaluated, Fitted
from coterie.engines.contract import Missing


@explained
@dataclass(frozen=True)
class RunStarted:
    """The run is about to do its first round (or, resumed, its next)."""

    method: str
    data: str
    clients: int
    per_round: int
    rounds: int
    done: int  # rounds that a resumed run has done before


@explained
@dataclass(frozen=True, eq=False)
class Snapshot:
    """Details of an evaluated round for listeners; too large to be kept for every round."""

    clients: Evaluated  # one by one
    trained: Fitted | None  # who trained last in the round, and their models
    centers: Tensor | None  # (K, P) the models that clients are given next


# one: the same for all. own: the client's. mean: of its cluster's model and its own. sum: of a model of all and its
# cluster's. mixture: of the clusters' models, with the client's weights.
ServingKind: TypeAlias = Literal["one", "cluster", "own", "mean", "sum", "mixture"]


@explained
@dataclass(frozen=True)
class ServingModel:
    """What a client of the run predicts with after a round; `serves.what_serves` says it in words."""

    kind: ServingKind
    newcomers: ServingKind  # what serves a client that has not trained yet
    clusters: int  # that have models; 0: none are used
    section: str = ""  # of the model that is each client's own; empty: none


@explained
@dataclass(frozen=True)
class RoundDone:
    """A round is over."""

    round: int  # from 1
    asked: int
    answered: int
    missing: tuple[Missing, ...]
    attempts: int  # more than 1 when too few answered and the round was repeated
    seconds: float
    summary: Summary | None  # None when the round was not evaluated
    unscored: tuple[Missing, ...] = ()  # clients that could not be evaluated
    discrepancy: float | None = None  # of evaluated rounds: how far clients went from their models (see diagnostics.py)
    clusterability: float | None = None  # of evaluated rounds: how different the clients of a cluster are
    client_seconds: float = 0.0  # of `seconds`: spent on clients' work; the rest is the server's
    counted: tuple[Counted, ...] = ()  # numbers of clusters that a rule chose in this round, in their order
    validation: Summary | None = None  # where the run validates, in place of summary until the last round is over
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what each layer says, as JSON has it
    serves: ServingModel | None = None  # what clients predict with from now on
    fresh: Snapshot | None = field(default=None, repr=False, compare=False)  # of evaluated rounds, for listeners only

    @property
    def rejected(self) -> tuple[int, ...]:
        """Of `missing`: clients that answered, and whose answer was not accepted."""
        return tuple(missing.client for missing in self.missing if missing.rejected)


@explained
@dataclass(frozen=True, eq=False)
class RunEnded:
    """All rounds are done."""

    clients: Evaluated  # the last evaluation, client by client
    summary: Summary
    seconds: float
    newcomers: Evaluated | None = None  # clients held out of training, after they were admitted
    warnings: tuple[str, ...] = ()  # what is wrong with the run though it has ended (see run_warnings.py)
    scored_on: Literal["test", "validation"] = "test"  # the samples that `clients` and `summary` are of
    layers: Mapping[str, Any] = field(default_factory=dict)  # what layers say of the whole run, by key


Event: TypeAlias = RunStarted | RoundDone | RunEnded
Listener: TypeAlias = Callable[[Event], None]
