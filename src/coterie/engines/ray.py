"""Many machines: the same work as `workers`, carried by Ray.

Hands of clients go to one actor per core. The tasks of a visit are put into Ray's store once, what clients keep
travels with their hand and comes back with the answers, and trained models stay where they are until they are needed
(`ray_models`). A hand that dies with its process or its machine is tried again elsewhere, client by client: a client's
work follows from the visit, its data and what it keeps, so that it gives the same whoever does it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from coterie.client import Done, FitAnswer
from coterie.data.federation import Federation
from coterie.engines.contract import Gathering, Missing, Outcome, Visit, restrict
from coterie.engines.dealing import deal
from coterie.engines.ray_cluster import head_answers, join
from coterie.engines.ray_models import Part, Scattered
from coterie.engines.ray_worker import Worker, buffers, sending
from coterie.engines.workers import HANDS_PER_WORKER
from coterie.errors import CoterieError
from coterie.memory import Memory
from coterie.model import Model
from coterie.tasks import Fitted

AHEAD = 2  # hands an actor has at a time: one in work, one so that it need not wait for the next
TRIES = 3  # of a client whose process dies, and of an actor that does not start
PATIENCE = 10.0  # seconds without any news before the cluster is looked at anew
SILENT = 3  # times that, with no worker at all, before it is said

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Actor:
    """A worker that is ready, and where."""

    handle: Any
    node: str


@dataclass(frozen=True, eq=False)
class _Trip:
    """A visit in Ray's store, the tasks of it that bring models, and what clients kept before it."""

    visit: Any  # a reference
    sends: tuple[int, ...]
    keeps: Mapping[int, Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class _Flight:
    """A hand on its way."""

    actor: _Actor
    clients: tuple[int, ...]
    models: tuple[Any, ...]  # references, one for each task that brings some


@dataclass(frozen=True, eq=False)
class _Played:
    """What became of a hand; its models by the number of their task."""

    results: tuple[tuple[int, Done | Missing], ...]
    parts: Mapping[int, Part]


class Ray:
    """Spreads visits over a Ray cluster: `workers` actors, or one per core of all its machines."""

    def __init__(
        self, model: Model, federation: Federation, workers: int | None, address: str | None, cores: int
    ) -> None:
        self.federation = federation
        self.memory = Memory()
        self._n = federation.roster.n
        self._joined = join(address, workers or cores)
        import ray

        self._ray, self._workers, self._failed, self._silent = ray, workers, 0, 0
        self._row = (model.size, next(model.blueprint.parameters()).dtype)
        self._actors: list[_Actor] = []
        self._starting: dict[Any, Any] = {}  # by the reference that tells when it is ready
        self._head, self._gone = ray.get_runtime_context().gcs_address, False
        try:
            with buffers():
                self._job = ray.put((model, federation))
            self._staff()
        except Exception as error:
            self.close()
            if isinstance(error, CoterieError):
                raise
            raise CoterieError(
                f"engine: model or data cannot be sent to other machines: {_last_line(error)}. Build what holds open "
                "files, locks or connections where it is used"
            ) from None

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        keeps = {client: dict(self.memory.read(client)) for client in visit.ids.tolist()}
        with buffers():
            # A copy: what a visit has looked up for itself is of no use to another process.
            sent = self._ray.put(dataclasses.replace(restrict(visit, visit.ids)))
        trip = _Trip(sent, tuple(sending(visit)), keeps)
        answers, missing, parts = Gathering(visit), dict[int, Missing](), list[Mapping[int, Part]]()
        written: dict[int, Mapping[str, Tensor]] = {}
        hands = deal(visit.ids, self._n[visit.ids], HANDS_PER_WORKER * self._wanted())
        for played in self._carry(trip, hands):
            for client, result in played.results:
                if isinstance(result, Missing):
                    missing[client] = result
                    continue
                answers.add(client, result.answers)
                written[client] = {slot: value.clone() for slot, value in result.keeps.items()}
            parts.append(played.parts)
        for client, values in written.items() if visit.keep else ():
            self.memory.write(client, values)
        replies = list(answers.replies())
        for number in trip.sends:
            reply, mine = replies[number], [part[number] for part in parts if number in part]
            if isinstance(reply, Fitted) and mine:
                models = Scattered(reply.ids, mine, self._row, self, partial(self._again, trip, number))
                replies[number] = dataclasses.replace(reply, sent=models)
        return Outcome(tuple(replies), tuple(missing[c] for c in sorted(missing)))

    def combine(self, node: str, shares: Sequence[Tensor], models: Sequence[Any]) -> Any:
        """See `Carrier.combine`."""
        actor = next((actor for actor in self._actors if actor.node == node), None)
        if actor is None:
            return None
        with buffers():
            return actor.handle.combine.remote(shares, *models)

    def close(self) -> None:
        """Let the actors go, and the cluster, if it was joined here."""
        for handle in [*(actor.handle for actor in self._actors), *self._starting.values()] if not self._gone else ():
            with contextlib.suppress(Exception):
                self._ray.kill(handle)
        self._actors, self._starting, self._job = [], {}, None
        if self._joined:
            self._ray.shutdown()

    # ----------------------------------------------------------------------------------------------------- a visit

    def _carry(self, trip: _Trip, hands: Iterable[tuple[int, ...]]) -> Iterator[_Played]:
        """Have the hands played, in whatever order they come back."""
        waiting, flying, deaths = deque(hands), dict[Any, _Flight](), Counter[int]()
        self._staff()
        while waiting or flying:
            for actor in self._actors:
                many = sum(flight.actor is actor for flight in flying.values())
                for _ in range(min(AHEAD - many, len(waiting))):
                    ref, flight = self._send(actor, trip, waiting.popleft())
                    flying[ref] = flight
            for ref in self._news(list(flying)):
                if ref not in flying:
                    continue
                try:
                    results = self._ray.get(ref)
                except self._ray.exceptions.RayTaskError as error:
                    raise CoterieError(f"engine: a worker failed: {_last_line(error)}") from None
                except self._ray.exceptions.RayError as error:
                    gone = flying[ref].actor
                    lost = [flying.pop(r).clients for r in list(flying) if flying[r].actor is gone]
                    # An actor does one hand after another: the oldest was in work, those behind it are not to blame.
                    waiting.extend(lost[1:])
                    deaths.update(lost[0])
                    waiting.extend((client,) for client in lost[0] if deaths[client] < TRIES)
                    given_up = [client for client in lost[0] if deaths[client] >= TRIES]
                    if given_up:
                        why = f"the process that computed it died {TRIES} times ({type(error).__name__})"
                        yield _Played(tuple((client, Missing(client, why)) for client in given_up), {})
                    self._dismiss(gone)
                    continue
                yield _landed(flying.pop(ref), results, trip.sends)

    def _send(self, actor: _Actor, trip: _Trip, clients: tuple[int, ...]) -> tuple[Any, _Flight]:
        play = actor.handle.play.options(num_returns=1 + len(trip.sends))
        with buffers():
            refs = play.remote(trip.visit, clients, [trip.keeps[client] for client in clients])
        first, *models = refs if trip.sends else [refs]
        return first, _Flight(actor, clients, tuple(models))

    def _again(self, trip: _Trip, number: int, lost: Iterable[tuple[int, ...]]) -> list[Part]:
        """The models of clients whose node died with them, trained once more."""
        found: list[Part] = []
        for played in self._carry(trip, lost):
            for client, result in played.results:
                if isinstance(result, Missing):
                    raise CoterieError(f"engine: the model of client {client} was lost with its node: {result.reason}")
            found.append(played.parts[number])
        return found

    # -------------------------------------------------------------------------------------------------- the cluster

    def _wanted(self) -> int:
        """How many actors there should be: the cluster may have grown or lost machines."""
        if not head_answers(self._head):
            self._gone = True
            raise CoterieError(
                f"engine: the Ray cluster is gone, nobody answers at {self._head}. Start it again and go on from the "
                "last checkpoint: coterie run --resume DIRECTORY (in Python resume=True)"
            )
        cores = int(self._ray.cluster_resources().get("CPU", 0))
        return max(1, min(self._workers or cores, len(self.federation)))

    def _staff(self) -> None:
        for _ in range(self._wanted() - len(self._actors) - len(self._starting)):
            handle = self._ray.remote(Worker).options(num_cpus=1, max_restarts=0).remote()
            handle.look_in.remote(sys.path)
            self._starting[handle.begin.remote(self._job)] = handle

    def _dismiss(self, actor: _Actor) -> None:
        self._actors.remove(actor)
        with contextlib.suppress(Exception):
            self._ray.kill(actor.handle)
        self._staff()

    def _news(self, flying: list[Any]) -> list[Any]:
        """Wait until a hand is back or an actor has started; the latter joins the others here."""
        ready: list[Any] = self._ray.wait([*flying, *self._starting], timeout=PATIENCE)[0]
        for ref in ready:
            if ref in self._starting:
                self._join(ref, self._starting.pop(ref))
        if not ready:
            self._staff()
            self._silent += not self._actors
            if not self._actors and self._silent == SILENT:
                free = self._ray.available_resources().get("CPU", 0)
                log.warning("Ray has not started a worker yet (%d of its cores are free); waiting", free)
        return ready

    def _join(self, ref: Any, handle: Any) -> None:
        try:
            self._actors.append(_Actor(handle, self._ray.get(ref)))
            self._failed = 0
        except self._ray.exceptions.RayTaskError as error:
            raise CoterieError(
                f"engine: the workers cannot take on the model or the data: {_last_line(error)}. Modules of your own "
                "must be importable on every machine of the cluster (PYTHONPATH), or be defined in your script itself"
            ) from None
        except self._ray.exceptions.RayError as error:
            self._failed += 1
            if self._failed >= TRIES:
                raise CoterieError(
                    f"engine: {TRIES} Ray workers in a row could not start; is the same coterie installed on every "
                    f"machine? The last one: {_last_line(error)}"
                ) from None
            self._staff()


def _landed(flight: _Flight, results: Sequence[Done | Missing], sends: Sequence[int]) -> _Played:
    told = tuple(zip(flight.clients, results, strict=True))
    parts = {}
    for number, models in zip(sends, flight.models, strict=True):
        there = [c for c, r in told if isinstance(r, Done) and isinstance(r.answers[number], FitAnswer)]
        if there:
            parts[number] = Part(tuple(there), flight.actor.node, models)
    return _Played(told, parts)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
