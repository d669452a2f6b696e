"""Many machines: the same work as `workers`, carried by Ray.

Chunks of clients go to one actor per core. The tasks of a visit are put into Ray's store once, what clients keep
travels with their chunk and comes back with the answers, and trained models stay where they are until they are needed
(`RayModels`). A chunk that dies with its process or its machine is tried again elsewhere, client by client: a client's
work depends only on the visit, its data and what it keeps, so the result is the same on any worker.

`RayModels` stay on the machines of the cluster: summed there, and transferred only if they must be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.client.contract import FitAnswer, Memory, VisitResult
from coterie.core.compute import AUTO, HOST, Compute
from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.references import Ref
from coterie.core.tasks import Fit, Fitted
from coterie.core.text import client_name
from coterie.data.federation import Federation
from coterie.engines.contract import CHUNKS_PER_WORKER, Missing, Outcome, ReplyBuilder, Visit, make_chunks, restrict
from coterie.engines.ray.worker import Worker, buffers, sending
from coterie.engines.updates import norms_of


@dataclass(frozen=True)
class ActorResources:
    """What was asked for.

    workers: actors; None for as many as the cluster has room for. cores: of this machine, if it is the cluster.
    gpus: the share of a GPU that each actor has (0.25: four share one); None: a whole one where they compute on GPUs.
    """

    workers: int | None
    cores: int
    gpus: float | None = None

    def most(self, cluster: Mapping[str, float], gpus: float) -> int:
        """How many actors there should be, each with a core and so much of a GPU."""
        if not gpus:
            return self.workers or int(cluster.get("CPU", 0))
        room = int(cluster.get("GPU", 0) / gpus)
        return min(self.workers or int(cluster.get("CPU", 0)), room)


def on_gpus(compute: Compute, share: float | None, cluster: Mapping[str, float]) -> tuple[Compute, float]:
    """What actors compute with, and the share of a GPU that each has: 0 where they do not compute on GPUs.

    They do if that is asked for or, with `auto`, if the cluster has GPUs. Ray shows each actor only the GPU that it has
    given to it, so that it is `cuda` everywhere.
    """
    there = float(cluster.get("GPU", 0))
    if ":" in compute.device or (share is not None and compute.device not in (AUTO, "cuda")):
        raise CoterieError(
            f"device: '{compute.device}' with engine.name=ray: Ray gives each process its GPU; write device=cuda and, "
            "for a share of one, engine.num_gpus=0.5; or device=cpu alone",
            code="config-conflict",
        )
    if compute.device == AUTO and share is None and not there:
        return replace(compute, device="cpu"), 0.0
    if compute.device not in (AUTO, "cuda"):
        return compute, 0.0
    gpus = 1.0 if share is None else share
    if there < gpus:
        raise CoterieError(
            f"engine.num_gpus: each process is to have {gpus:g} of a GPU, and the Ray cluster has {there:g}; start its "
            "machines with GPUs (ray start --num-gpus), or write device=cpu",
            code="device-unavailable",
        )
    return replace(compute, device="cuda"), gpus


ATTEMPTS, PAUSE = 3, 5.0  # attempts to reach the head, and seconds between two of them
LOCAL = ("auto", None)  # the address in RAY_ADDRESS or, without one, a cluster on this machine alone


def join(address: str | None, cpus: int) -> bool:
    """Connect this process. Returns whether it was connected here, and so has to be disconnected afterwards."""
    if importlib.util.find_spec("ray") is None:
        raise CoterieError("engine.name=ray needs Ray: pip install 'coterie[ray]'", code="extra-missing")
    where = os.environ.get("RAY_ADDRESS", "local") if address in LOCAL else str(address)
    if "://" in where:
        raise CoterieError(
            f"engine.address: '{where}' is for use from outside; write the head's address, as in 10.0.0.1:6379, "
            "and run on a machine of the cluster",
            code="engine-unreachable",
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Devices stay visible to workers; Ray warns unless this is set.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if where == "local" and "ray" not in sys.modules:
        # Ray's name for "no other machines": everything listens on 127.0.0.1 only.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # by default Ray's workers yield to everything else
    import ray

    if ray.is_initialized():
        return False
    if where != "local" and not _reachable(where):
        raise CoterieError(
            f"engine.address: no answer from {where}; is `ray start --head` running there?",
            code="engine-unreachable",
        )
    alone = {"num_cpus": cpus, "include_dashboard": False} if where == "local" else {}
    try:
        ray.init(where, namespace="coterie", log_to_driver=False, logging_level=logging.CRITICAL, **alone)
    except Exception as error:  # Ray raises many kinds of errors if there is no cluster or the token is wrong
        raise CoterieError(_unreachable(where, error), code="engine-unreachable") from None
    return True


def _reachable(where: str) -> bool:
    """Whether the port accepts connections: Ray would try for many minutes. An invalid address is left to Ray."""
    host, colon, port = where.rpartition(":")
    return head_answers(where) if colon and host and port.isdigit() else True


def head_answers(head: str) -> bool:
    """Whether the cluster's head still answers. Ray would wait a minute and then end the process."""
    host, _, port = head.rpartition(":")
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE if attempt else 0)
        try:
            socket.create_connection((host, int(port)), timeout=PAUSE).close()
        except OSError:
            continue
        return True
    return False


def _unreachable(where: str, error: Exception) -> str:
    what = "no local Ray cluster could be started" if where == "local" else f"no Ray cluster at {where} lets us connect"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    hint = "" if where == "local" else " Is `ray start` running here too, with the same versions and the same token?"
    return f"engine.address: {what} ({why}).{hint}"


@dataclass(frozen=True, eq=False)
class NodeModels:
    """The models of some clients, as one object in a node's store."""

    clients: tuple[int, ...]
    node: str
    models: Any  # a reference to a tensor (len(clients), P)


class Carrier(Protocol):
    """What the engine does for models that stay on their nodes."""

    def combine(self, node: str, shares: Sequence[Tensor], models: Sequence[Any]) -> Any:
        """A reference to the sum of share @ models, computed on that node; None where no worker is left on it."""


class Measure(Protocol):
    """How the engine has the updates measured on a node: a reference to their norms, None without a worker there."""

    def __call__(self, node: str, ids: Tensor, choice: Tensor | None, models: Sequence[Any]) -> Any: ...


class RayModels:
    """The models (n, P) of a reply (see `RemoteModels`). What a dead node took with it is computed again."""

    def __init__(
        self,
        ids: Tensor,
        parts: Sequence[NodeModels],
        row: tuple[int, torch.dtype],
        carrier: Carrier,
        again: Callable[[Iterable[tuple[int, ...]]], list[NodeModels]],
        start: Ref,
        measure: Measure,
    ) -> None:
        """start: what clients started from; measure: has the norms of their updates computed on a node."""
        self._size, self.dtype = row
        self._row = {client: row for row, client in enumerate(ids.tolist())}
        self._parts, self._carrier, self._again = list(parts), carrier, again
        self._ids, self._start, self._measure = ids, start, measure
        self._here: Tensor | None = None

    def __len__(self) -> int:
        return len(self._row)

    @property
    def nbytes(self) -> int:
        """The size of all models, wherever they are stored."""
        return len(self) * self._size * self.dtype.itemsize

    def combined(self, share: Tensor) -> Tensor:
        """share (K, n) @ models: every node sums up its own, and only sums travel."""
        import ray

        if self._here is not None:
            return share @ self._here
        sums = []
        for node, parts in self._nodes().items():
            shares = [share[:, self._rows(part)] for part in parts]
            sums.append(self._carrier.combine(node, shares, [part.models for part in parts]))
        try:
            found = None if any(one is None for one in sums) else ray.get(sums)
        except ray.exceptions.RayError:
            found = None
        if found is None:  # a node was lost: the remaining models are gathered, the others computed again
            return share @ self.gathered()
        total = torch.zeros(len(share), self._size, dtype=torch.float64)
        for used, rows in found:
            total[used] += rows
        return total.to(share.dtype)

    def norms(self, choice: Tensor | None) -> Tensor:
        """The norm of each update: every node measures its own, and only numbers travel."""
        import ray

        asked: list[Any] = []
        rows: list[int] = []
        for node, parts in self._nodes().items() if self._here is None else ():
            mine = [row for part in parts for row in self._rows(part)]
            chosen = None if choice is None else choice[mine]
            asked.append(self._measure(node, self._ids[mine], chosen, [part.models for part in parts]))
            rows += mine
        try:
            found = None if not asked or any(one is None for one in asked) else ray.get(asked)
        except ray.exceptions.RayError:
            found = None
        if found is None:
            return norms_of(self.gathered(), self._start, self._ids, choice)
        out = torch.empty(len(self), dtype=torch.float64)
        out[rows] = torch.cat([one.double() for one in found])
        return out

    def _nodes(self) -> dict[str, list[NodeModels]]:
        nodes: dict[str, list[NodeModels]] = {}
        for part in self._parts:
            nodes.setdefault(part.node, []).append(part)
        return nodes

    def gathered(self) -> Tensor:
        """All models, brought here once; the workers' machines may then forget them."""
        if self._here is None:
            here = torch.empty(len(self), self._size, dtype=self.dtype)
            lost = [part for part in self._parts if not self._fetch(part, here)]
            if lost:
                found = self._again(part.clients for part in lost)
                if not all(self._fetch(part, here) for part in found):
                    raise CoterieError(
                        "engine: models were lost with their node twice in a row; is the network down?",
                        code="engine-lost",
                    )
            self._here, self._parts = here, []
        return self._here

    def _rows(self, part: NodeModels) -> list[int]:
        return [self._row[client] for client in part.clients]

    def _fetch(self, part: NodeModels, here: Tensor) -> bool:
        import ray

        try:
            here[self._rows(part)] = ray.get(part.models)
        except ray.exceptions.RayError:
            return False
        return True


AHEAD = 2  # chunks an actor has at a time: one in progress, and the next
TRIES = 3  # of a client whose process dies, and of an actor that does not start
PATIENCE = 10.0  # seconds without a result before the cluster is checked again
SILENT = 3  # times that without any worker before a warning

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Actor:
    """A worker that is ready, and where."""

    handle: Any
    node: str


@dataclass(frozen=True, eq=False)
class _StoredVisit:
    """A visit in Ray's store, the tasks of it that bring models, and what clients kept before it."""

    visit: Any  # a reference
    sends: tuple[int, ...]
    keeps: Mapping[int, Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class _SentChunk:
    """A chunk that an actor has been given."""

    actor: _Actor
    clients: tuple[int, ...]
    models: tuple[Any, ...]  # references, one for each task that brings some


@dataclass(frozen=True, eq=False)
class _ChunkResult:
    """The results of a chunk; its models by the number of their task."""

    results: tuple[tuple[int, VisitResult | Missing], ...]
    parts: Mapping[int, NodeModels]


class Ray:
    """Spreads visits over a Ray cluster: `workers` actors, or one per core of all its machines."""

    arithmetic = "ray"  # means are computed where the models are stored, in double precision

    def __init__(
        self,
        model: Model,
        federation: Federation,
        resources: ActorResources,
        address: str | None,
        compute: Compute = HOST,
    ) -> None:
        """compute: what actors compute with; they find the device on their own machine."""
        self.federation = federation
        self.memory = Memory()
        self._n = federation.train.lengths  # by id
        self._joined = join(address, resources.workers or resources.cores)
        import ray

        self._ray, self._resources, self._failed, self._silent = ray, resources, 0, 0
        compute, self._gpus = on_gpus(compute, resources.gpus, ray.cluster_resources())
        self.device = compute.device
        self._size, self._dtype = model.size, model.dtype
        self._actors: list[_Actor] = []
        self._starting: dict[Any, Any] = {}  # by the reference that signals that it is ready
        self._head, self._gone = ray.get_runtime_context().gcs_address, False
        try:
            with buffers():
                self._job = ray.put((model, federation, compute))
            self._start_actors()
        except Exception as error:
            self.close()
            if isinstance(error, CoterieError):
                raise
            raise CoterieError(
                f"engine: model or data cannot be sent to other machines: {_last_line(error)}. Build what holds open "
                "files, locks or connections where it is used",
                code="engine-not-portable",
            ) from None

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        keeps = {client: dict(self.memory.read(client)) for client in visit.ids.tolist()}
        with buffers():
            # A copy without cached lookups, which other processes cannot use.
            sent = self._ray.put(dataclasses.replace(restrict(visit, visit.ids)))
        stored = _StoredVisit(sent, tuple(sending(visit)), keeps)
        answers, missing, parts = ReplyBuilder(visit), dict[int, Missing](), list[Mapping[int, NodeModels]]()
        written: dict[int, Mapping[str, Tensor]] = {}
        chunks = make_chunks(visit.ids, self._n[visit.ids], CHUNKS_PER_WORKER * self._wanted())
        for chunk in self._run_chunks(stored, chunks):
            for client, result in chunk.results:
                if isinstance(result, Missing):
                    missing[client] = result
                    continue
                answers.add(client, result.answers)
                written[client] = {slot: value.clone() for slot, value in result.keeps.items()}
            parts.append(chunk.parts)
        for client, values in written.items() if visit.keep else ():
            self.memory.write(client, values)
        replies = list(answers.replies())
        for number in stored.sends:
            reply, mine = replies[number], [part[number] for part in parts if number in part]
            if isinstance(reply, Fitted) and mine:
                task = visit.tasks[number]
                assert isinstance(task, Fit)
                again = partial(self._train_again, stored, number)
                measure = partial(self._measure, stored, number)
                models = RayModels(
                    reply.ids, mine, (task.sends(self._size), self._dtype), self, again, task.start, measure
                )
                replies[number] = dataclasses.replace(reply, sent=models)
        return Outcome(tuple(replies), tuple(missing[c] for c in sorted(missing)))

    def combine(self, node: str, shares: Sequence[Tensor], models: Sequence[Any]) -> Any:
        """See `Carrier.combine`."""
        actor = next((actor for actor in self._actors if actor.node == node), None)
        if actor is None:
            return None
        with buffers():
            return actor.handle.combine.remote(shares, *models)

    def _measure(
        self, stored: _StoredVisit, number: int, node: str, ids: Tensor, choice: Tensor | None, models: Sequence[Any]
    ) -> Any:
        """See `Measure`; what clients started from is in the visit, which the node has already."""
        actor = next((actor for actor in self._actors if actor.node == node), None)
        if actor is None:
            return None
        with buffers():
            return actor.handle.norms.remote(stored.visit, number, ids, choice, *models)

    def close(self) -> None:
        """Stop the actors, and disconnect from the cluster if it was connected here."""
        for handle in [*(actor.handle for actor in self._actors), *self._starting.values()] if not self._gone else ():
            with contextlib.suppress(Exception):
                self._ray.kill(handle)
        self._actors, self._starting, self._job = [], {}, None
        if self._joined:
            self._ray.shutdown()

    # ----------------------------------------------------------------------------------------------------- a visit

    def _run_chunks(self, stored: _StoredVisit, chunks: Iterable[tuple[int, ...]]) -> Iterator[_ChunkResult]:
        """Run the chunks; yields results in the order of completion."""
        waiting, sent_chunks, deaths = deque(chunks), dict[Any, _SentChunk](), Counter[int]()
        self._start_actors()
        while waiting or sent_chunks:
            for actor in self._actors:
                many = sum(sent.actor is actor for sent in sent_chunks.values())
                for _ in range(min(AHEAD - many, len(waiting))):
                    ref, sent = self._send(actor, stored, waiting.popleft())
                    sent_chunks[ref] = sent
            for ref in self._wait(list(sent_chunks)):
                if ref not in sent_chunks:
                    continue
                try:
                    results = self._ray.get(ref)
                except self._ray.exceptions.RayTaskError as error:
                    raise CoterieError(
                        f"engine: a worker failed: {_last_line(error)}", code="engine-worker-failed"
                    ) from None
                except self._ray.exceptions.RayError as error:
                    gone = sent_chunks[ref].actor
                    lost = [sent_chunks.pop(r).clients for r in list(sent_chunks) if sent_chunks[r].actor is gone]
                    # An actor runs its chunks in order: only the oldest one was running when it failed.
                    waiting.extend(lost[1:])
                    deaths.update(lost[0])
                    waiting.extend((client,) for client in lost[0] if deaths[client] < TRIES)
                    given_up = [client for client in lost[0] if deaths[client] >= TRIES]
                    if given_up:
                        why = f"the process that computed it died {TRIES} times ({type(error).__name__})"
                        yield _ChunkResult(tuple((client, Missing(client, why)) for client in given_up), {})
                    self._drop(gone)
                    continue
                yield _chunk_result(sent_chunks.pop(ref), results, stored.sends)

    def _send(self, actor: _Actor, stored: _StoredVisit, clients: tuple[int, ...]) -> tuple[Any, _SentChunk]:
        visit_chunk = actor.handle.visit_chunk.options(num_returns=1 + len(stored.sends))
        with buffers():
            refs = visit_chunk.remote(stored.visit, clients, [stored.keeps[client] for client in clients])
        first, *models = refs if stored.sends else [refs]
        return first, _SentChunk(actor, clients, tuple(models))

    def _train_again(self, stored: _StoredVisit, number: int, lost: Iterable[tuple[int, ...]]) -> list[NodeModels]:
        """The models of clients whose node died with them, trained once more."""
        found: list[NodeModels] = []
        for chunk in self._run_chunks(stored, lost):
            for client, result in chunk.results:
                if isinstance(result, Missing):
                    who = client_name(self.federation.names, client)
                    raise CoterieError(
                        f"engine: the model of {who} was lost with its node: {result.reason}", code="engine-lost"
                    )
            found.append(chunk.parts[number])
        return found

    # -------------------------------------------------------------------------------------------------- the cluster

    def _wanted(self) -> int:
        """How many actors there should be: the cluster may have grown or lost machines."""
        if not head_answers(self._head):
            self._gone = True
            raise CoterieError(
                f"engine: the Ray cluster is gone, no answer from {self._head}. Start it again and continue from the "
                "last checkpoint: coterie run --resume DIRECTORY (in Python resume=True)",
                code="engine-lost",
            )
        many = self._resources.most(self._ray.cluster_resources(), self._gpus)
        return max(1, min(many, len(self.federation)))

    def _start_actors(self) -> None:
        for _ in range(self._wanted() - len(self._actors) - len(self._starting)):
            options = {"num_cpus": 1, "max_restarts": 0} | ({"num_gpus": self._gpus} if self._gpus else {})
            handle = self._ray.remote(Worker).options(**options).remote()
            handle.look_in.remote(sys.path)
            self._starting[handle.begin.remote(self._job)] = handle

    def _drop(self, actor: _Actor) -> None:
        self._actors.remove(actor)
        with contextlib.suppress(Exception):
            self._ray.kill(actor.handle)
        self._start_actors()

    def _wait(self, sent_chunks: list[Any]) -> list[Any]:
        """Wait until a chunk is back or an actor has started; the latter joins the others here."""
        ready: list[Any] = self._ray.wait([*sent_chunks, *self._starting], timeout=PATIENCE)[0]
        for ref in ready:
            if ref in self._starting:
                self._add_actor(ref, self._starting.pop(ref))
        if not ready:
            self._start_actors()
            self._silent += not self._actors
            if not self._actors and self._silent == SILENT:
                free = self._ray.available_resources().get("CPU", 0)
                log.warning("Ray has not started a worker yet (%d of its cores are free); waiting", free)
        return ready

    def _add_actor(self, ref: Any, handle: Any) -> None:
        try:
            self._actors.append(_Actor(handle, self._ray.get(ref)))
            self._failed = 0
        except self._ray.exceptions.RayTaskError as error:
            raise CoterieError(
                f"engine: the workers cannot take on the model or the data: {_last_line(error)}. Modules of your own "
                "must be importable on every machine of the cluster (PYTHONPATH), or be defined in your script itself",
                code="engine-not-portable",
            ) from None
        except self._ray.exceptions.RayError as error:
            self._failed += 1
            if self._failed >= TRIES:
                raise CoterieError(
                    f"engine: {TRIES} Ray workers in a row could not start; is the same coterie installed on every "
                    f"machine? The last one: {_last_line(error)}",
                    code="engine-worker-failed",
                ) from None
            self._start_actors()


def _chunk_result(sent: _SentChunk, results: Sequence[VisitResult | Missing], sends: Sequence[int]) -> _ChunkResult:
    results_by_client = tuple(zip(sent.clients, results, strict=True))
    parts = {}
    for number, models in zip(sends, sent.models, strict=True):
        there = [
            c for c, r in results_by_client if isinstance(r, VisitResult) and isinstance(r.answers[number], FitAnswer)
        ]
        if there:
            parts[number] = NodeModels(tuple(there), sent.actor.node, models)
    return _ChunkResult(results_by_client, parts)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
