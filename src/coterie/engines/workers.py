"""One worker process per core, one torch thread each: the same work as `sequential`, spread out.

Clients are given out in small chunks, the largest first, so that no worker waits long for another. A
client's work does not depend on who does it or when, so any number of workers gives the same bits.
A worker that dies is replaced and its clients are tried once more, alone or, if batched, first together.

Two processes pass trees of tensors: the outline by pipe, the numbers by shared memory. A sender owns one block of
shared memory per lane, grown when needed and reused for every message on that lane, so what `receive` gives is valid
until the other side sends on the same lane again."""

from __future__ import annotations

import contextlib
import json
import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.contract import (
    ClientTasks,
    DescribeAnswer,
    EvaluateAnswer,
    FitAnswer,
    Memory,
    Moment,
    ScoreAnswer,
    VisitResult,
)
from coterie.client.visit import TaskRunner
from coterie.core.allocation import MODEL, BufferPool, keep_memory
from coterie.core.codec import TYPES as DTYPES
from coterie.core.codec import pack, unpack
from coterie.core.compute import HOST, Compute, determinism
from coterie.core.model import Model
from coterie.core.tables import ByClient
from coterie.core.tasks import (
    All,
    Best,
    Describe,
    Estimated,
    Evaluate,
    Fit,
    Local,
    Mix,
    Own,
    Personal,
    Pick,
    Posterior,
    Score,
)
from coterie.data.federation import Federation
from coterie.engines.contract import (
    CHUNKS,
    CHUNKS_PER_WORKER,
    Missing,
    Outcome,
    ReplyBuilder,
    Visit,
    make_chunks,
    reason,
    restrict,
)

ALIGN = 64  # bytes: a cache line, and the alignment of vector instructions


class Block:
    """Memory that another process can map by its path."""

    def __init__(self, size: int) -> None:
        if sys.platform == "linux":
            # Not /dev/shm: containers often cap it at 64 MB.
            self._file = os.memfd_create("coterie")
            self.path, self._named = f"/proc/{os.getpid()}/fd/{self._file}", False
        else:
            self._file, self.path = tempfile.mkstemp(prefix="coterie-")
            self._named = True
        os.ftruncate(self._file, size)
        self.size = size
        self.bytes = mmap.mmap(self._file, size)

    def close(self) -> None:
        """Give the memory back (views of it stay valid until they are gone)."""
        os.close(self._file)
        if self._named:
            Path(self.path).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Place:
    dtype: str
    shape: tuple[int, ...]
    start: int


class Channel:
    """One end of a pipe, with blocks of its own for what it sends."""

    def __init__(self, pipe: Connection, types: Sequence[type]) -> None:
        self.pipe = pipe
        self._types = types
        self._out: dict[int, Block] = {}
        self._in: dict[int, tuple[str, mmap.mmap]] = {}

    def send(self, tree: object, lane: int = 0) -> None:
        """Send a tree; overwrites what was sent on this lane before."""
        outline, tensors = pack(tree)
        places: list[_Place] = []
        end = 0
        for t in tensors:
            places.append(_Place(str(t.dtype).removeprefix("torch."), tuple(t.shape), end))
            end += -(-t.numel() * t.element_size() // ALIGN) * ALIGN
        block = self._room(lane, end)
        for t, place in zip(tensors, places, strict=True):
            if t.numel():
                _view(block.bytes, place).copy_(t.detach())
        rows = [[p.dtype, list(p.shape), p.start] for p in places]
        self.pipe.send_bytes(json.dumps([outline, rows, lane, block.path, block.size]).encode())

    def receive(self) -> Any:
        """Wait for a tree; its tensors are views, valid until the other side sends on its lane again."""
        outline, rows, lane, path, size = json.loads(self.pipe.recv_bytes())
        if lane not in self._in or self._in[lane][0] != path:
            with Path(path).open("r+b") as file:
                self._in[lane] = (path, mmap.mmap(file.fileno(), size))
        places = [_Place(dtype, tuple(shape), start) for dtype, shape, start in rows]
        return unpack(outline, [_view(self._in[lane][1], place) for place in places], self._types)

    def close(self) -> None:
        """Close the pipe and give the blocks back."""
        self.pipe.close()
        for block in self._out.values():
            block.close()
        self._out = {}

    def _room(self, lane: int, size: int) -> Block:
        block = self._out.get(lane)
        if block is None or block.size < size:
            # The new block comes before the old one goes, so that the two never share a path.
            self._out[lane] = Block(max(size + size // 4, mmap.PAGESIZE))
            if block is not None:
                block.close()
        return self._out[lane]


def _view(memory: mmap.mmap, place: _Place) -> Tensor:
    count = 1
    for length in place.shape:
        count *= length
    dtype = DTYPES[place.dtype]
    if not count:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=place.start).view(place.shape)


@dataclass(frozen=True, eq=False)
class _BeginVisit:
    """A visit begins: its tasks, sent once to each worker."""

    visit: Visit


@dataclass(frozen=True, eq=False)
class _Chunk:
    """The clients a worker takes on next, and what each of them keeps."""

    clients: tuple[int, ...]
    keeps: tuple[Mapping[str, Tensor], ...]


@dataclass(frozen=True, eq=False)
class _ChunkResult:
    """For each client of a chunk its result, or why it is missing."""

    results: tuple[VisitResult | Missing, ...]


TYPES = (
    *(_BeginVisit, _Chunk, _ChunkResult, Visit, Moment, VisitResult, Missing),
    *(FitAnswer, ScoreAnswer, EvaluateAnswer, DescribeAnswer),
    *(Fit, Score, Evaluate, Describe, All, Pick, Best, Mix, Own, Personal, Estimated, Posterior, Local, ByClient),
)


@dataclass(frozen=True, eq=False)
class _Job:
    """What every worker computes with."""

    model: Model
    federation: Federation
    runner: type[TaskRunner]
    compute: Compute

    @property
    def context(self) -> BaseContext:
        """How processes are started. fork hands model and data over without a copy and without pickling; it is not
        safe outside Linux, and a forked process cannot use an accelerator that its parent has used."""
        forks = sys.platform == "linux" and not self.compute.accelerated
        return multiprocessing.get_context("fork" if forks else "spawn")


def _serve(job: _Job, pipe: Connection, others: Sequence[Connection]) -> None:
    """What a worker process runs until the pipe closes, which it also does when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler, which fork hands down
    for end in others:  # inherited ends of other pipes would keep those open after the parent is gone
        end.close()
    torch.set_num_threads(1)
    keep_memory()
    with determinism(job.compute.deterministic):
        _visit_chunks(job, pipe)


def _visit_chunks(job: _Job, pipe: Connection) -> None:
    computes = job.runner(job.model, BufferPool(MODEL, torch.device(job.compute.device)), job.compute)
    channel = Channel(pipe, TYPES)
    chunks = 0
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            message = channel.receive()
            if isinstance(message, _BeginVisit):
                visit, chunks = message.visit, 0
                continue
            # Two lanes in turn: the parent reads one while the next chunk goes into the other.
            channel.send(_visited(job, computes, visit, message), lane=chunks % 2)
            chunks += 1


def _visited(job: _Job, computes: TaskRunner, visit: Visit, chunk: _Chunk) -> _ChunkResult:
    """A function of its own, so that a chunk's models are gone before those of the next one are made."""
    calls = [
        ClientTasks(client, visit.tasks_for(client), keeps)
        for client, keeps in zip(chunk.clients, chunk.keeps, strict=True)
    ]
    found = computes.visit_all(calls, job.federation.at(visit.moment.round), visit.moment)
    results = [
        Missing(call.client, reason(result)) if isinstance(result, Exception) else result
        for call, result in zip(calls, found, strict=True)
    ]
    return _ChunkResult(tuple(results))


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, job: _Job, others: Sequence[_Worker]) -> None:
        context = job.context
        mine, theirs = context.Pipe()
        self.channel = Channel(mine, TYPES)
        self.chunk: tuple[int, ...] = ()
        self.given = 0.0  # when it got the chunk
        forked = context.get_start_method() == "fork"
        inherited = [w.channel.pipe for w in others] + [mine] if forked else []
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(job, theirs, inherited), daemon=True, name="coterie-worker"
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork with threads; the worker uses no lock that a thread could hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def stop(self) -> None:
        self.channel.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Workers:
    """Spreads a visit over `workers` processes; `batched` ones visit a chunk of clients as one computation."""

    def __init__(
        self, model: Model, federation: Federation, workers: int, batched: bool = False, compute: Compute = HOST
    ) -> None:
        self.federation = federation
        self.memory = Memory()
        self.device = compute.device
        self._n = federation.train.lengths  # by id
        self._blocks = BufferPool()
        self.arithmetic = "batched" if batched else "sequential"
        self._job = _Job(model, federation, BatchedTaskRunner if batched else TaskRunner, compute)
        self._chunks = CHUNKS if batched else CHUNKS_PER_WORKER * workers
        self._workers: list[_Worker] = []
        self.idle_seconds = 0.0  # see `contract.idle_seconds`
        if batched:
            BatchedTaskRunner.prepare(model, federation.input_shape, compute)
        for _ in range(workers):
            self._workers.append(_Worker(self._job, self._workers))

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit, self._blocks)
        missing: dict[int, Missing] = {}
        keeps: dict[int, Mapping[str, Tensor]] = {}
        deaths = Counter[int]()  # of the workers that had each client
        began, worked = time.perf_counter(), 0.0
        chunks = deque(make_chunks(visit.ids, self._n[visit.ids], self._chunks))
        sent = _BeginVisit(restrict(visit, visit.ids))
        for worker in self._workers:
            worker.chunk = ()
            self._send(worker, sent, lane=0)
        while chunks or any(w.chunk for w in self._workers):
            for worker in tuple(self._workers):
                if chunks and not worker.chunk:
                    # One that died before it had a chunk, as when all are killed at once, is no client's fault.
                    alive = worker.process.is_alive()
                    self._give(worker if alive else self._renewed(worker, sent), chunks)
            busy = {w.channel.pipe: w for w in self._workers if w.chunk}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                try:
                    received: _ChunkResult = worker.channel.receive()
                except (EOFError, OSError):
                    chunks.extend(self._replace(worker, sent, deaths, missing))
                    continue
                worked += time.perf_counter() - worker.given
                # The worker continues with its next chunk (and its other lane) while this one is read.
                clients, worker.chunk = worker.chunk, ()
                if worker.process.is_alive():
                    self._give(worker, chunks)
                for client, result in zip(clients, received.results, strict=True):
                    if isinstance(result, Missing):
                        missing[client] = result
                    else:
                        answers.add(client, result.answers)
                        keeps[client] = {slot: value.clone() for slot, value in result.keeps.items()}
        self.idle_seconds += max(time.perf_counter() - began - worked / len(self._workers), 0.0)
        for client, written in keeps.items() if visit.keep else ():
            self.memory.write(client, written)
        return Outcome(answers.replies(), tuple(missing[c] for c in sorted(missing)))

    def _give(self, worker: _Worker, chunks: deque[tuple[int, ...]]) -> None:
        """The next chunk, if there is one."""
        worker.chunk = chunks.popleft() if chunks else ()
        worker.given = time.perf_counter()
        if worker.chunk:
            self._send(worker, _Chunk(worker.chunk, tuple(self.memory.read(c) for c in worker.chunk)), lane=1)

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def _send(self, worker: _Worker, message: object, lane: int) -> None:
        # A dead worker is noticed while waiting for its answer.
        with contextlib.suppress(OSError):
            worker.channel.send(message, lane)

    def _replace(
        self, dead: _Worker, sent: _BeginVisit, deaths: Counter[int], missing: dict[int, Missing]
    ) -> list[tuple[int, ...]]:
        """Replace a dead worker; returns the chunks that are tried again.

        A chunk of a batched worker is first tried again as a whole: the last digits depend on who is in it.
        """
        dead.stop()
        deaths.update(dead.chunk)
        first = deaths[dead.chunk[0]] == 1
        again: list[tuple[int, ...]] = [(client,) for client in dead.chunk]
        if first and self.arithmetic == "batched":
            again = [dead.chunk]
        if len(dead.chunk) == 1 and not first:
            code, (client,) = dead.process.exitcode, dead.chunk
            missing[client], again = Missing(client, f"the worker process died on it, twice (exit code {code})"), []
        self._renewed(dead, sent)
        return again

    def _renewed(self, dead: _Worker, sent: _BeginVisit) -> _Worker:
        """A new worker in the place of a dead one, told of the visit."""
        dead.stop()
        others = [w for w in self._workers if w is not dead]
        fresh = _Worker(self._job, others)
        self._workers[self._workers.index(dead)] = fresh
        self._send(fresh, sent, lane=0)
        return fresh
