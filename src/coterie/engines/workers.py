"""One worker process per core, one torch thread each: the same work as `sequential`, spread out.

Clients are given out in small chunks, the largest first, so that no worker waits long for another. A
client's work does not depend on who does it or when, so any number of workers gives the same bits.
A worker that dies is replaced and its clients are tried once more.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor

from coterie.client.answers import ClientTasks, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer, VisitResult
from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.memory import Memory
from coterie.client.runner import TaskRunner
from coterie.core.allocation.buffers import MODEL, BufferPool
from coterie.core.allocation.heap import keep_memory
from coterie.core.client_table import ByClient
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Best, Estimated, Mix, Own, Pick, Posterior
from coterie.core.tasks import Evaluate, Fit, Score
from coterie.data.federation import Federation
from coterie.engines.chunks import CHUNKS, CHUNKS_PER_WORKER, make_chunks
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit, reason, restrict
from coterie.engines.shared_memory import Channel


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
    *(_BeginVisit, _Chunk, _ChunkResult, Visit, Moment, VisitResult, Missing, FitAnswer, ScoreAnswer, EvaluateAnswer),
    *(Fit, Score, Evaluate, All, Pick, Best, Mix, Own, Estimated, Posterior, Local, ByClient),
)


def _serve(
    model: Model, federation: Federation, pipe: Connection, others: Sequence[Connection], runner: type[TaskRunner]
) -> None:
    """What a worker process runs until the pipe closes, which it also does when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler, which fork hands down
    for end in others:  # inherited ends of other pipes would keep those open after the parent is gone
        end.close()
    torch.set_num_threads(1)
    keep_memory()
    computes = runner(model, BufferPool(MODEL))
    channel = Channel(pipe, TYPES)
    chunks = 0
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            message = channel.receive()
            if isinstance(message, _BeginVisit):
                visit, chunks = message.visit, 0
                continue
            calls = [
                ClientTasks(client, visit.tasks_for(client), keeps)
                for client, keeps in zip(message.clients, message.keeps, strict=True)
            ]
            found = computes.visit_all(calls, federation, visit.moment)
            results = [
                Missing(call.client, reason(result)) if isinstance(result, Exception) else result
                for call, result in zip(calls, found, strict=True)
            ]
            # Two lanes in turn: the parent reads one while the next chunk goes into the other.
            channel.send(_ChunkResult(tuple(results)), lane=chunks % 2)
            chunks += 1


class _Worker:
    """The parent's side of one worker process."""

    def __init__(
        self, model: Model, federation: Federation, others: Sequence[_Worker], runner: type[TaskRunner]
    ) -> None:
        # fork hands model and data over without a copy and without pickling; it is not safe outside Linux.
        context: BaseContext = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        mine, theirs = context.Pipe()
        self.channel = Channel(mine, TYPES)
        self.chunk: tuple[int, ...] = ()
        inherited = [w.channel.pipe for w in others] + [mine] if sys.platform == "linux" else []
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(model, federation, theirs, inherited, runner), daemon=True, name="coterie-worker"
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

    def __init__(self, model: Model, federation: Federation, workers: int, batched: bool = False) -> None:
        self.federation = federation
        self.memory = Memory()
        self._model = model
        self._n = federation.train.lengths  # by id
        self._blocks = BufferPool()
        self.arithmetic = "batched" if batched else "sequential"
        self._runner: type[TaskRunner] = BatchedTaskRunner if batched else TaskRunner
        self._chunks = CHUNKS if batched else CHUNKS_PER_WORKER * workers
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(_Worker(model, federation, self._workers, self._runner))

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit, self._blocks)
        missing: dict[int, Missing] = {}
        keeps: dict[int, Mapping[str, Tensor]] = {}
        tried: set[int] = set()
        chunks = deque(make_chunks(visit.ids, self._n[visit.ids], self._chunks))
        sent = _BeginVisit(restrict(visit, visit.ids))
        for worker in self._workers:
            worker.chunk = ()
            self._send(worker, sent, lane=0)
        while chunks or any(w.chunk for w in self._workers):
            for worker in self._workers:
                if not worker.chunk:
                    self._give(worker, chunks)
            busy = {w.channel.pipe: w for w in self._workers if w.chunk}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                try:
                    received: _ChunkResult = worker.channel.receive()
                except (EOFError, OSError):
                    again = self._replace(worker, sent, tried, missing)
                    chunks.extend((client,) for client in again)
                    continue
                # The worker continues with its next chunk (and its other lane) while this one is read.
                clients = worker.chunk
                self._give(worker, chunks)
                for client, result in zip(clients, received.results, strict=True):
                    if isinstance(result, Missing):
                        missing[client] = result
                    else:
                        answers.add(client, result.answers)
                        keeps[client] = {slot: value.clone() for slot, value in result.keeps.items()}
        for client, written in keeps.items() if visit.keep else ():
            self.memory.write(client, written)
        return Outcome(answers.replies(), tuple(missing[c] for c in sorted(missing)))

    def _give(self, worker: _Worker, chunks: deque[tuple[int, ...]]) -> None:
        """The next chunk, if there is one."""
        worker.chunk = chunks.popleft() if chunks else ()
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

    def _replace(self, dead: _Worker, sent: _BeginVisit, tried: set[int], missing: dict[int, Missing]) -> list[int]:
        """Replace a dead worker; returns which of its clients are tried again."""
        dead.stop()
        code = dead.process.exitcode
        again = [c for c in dead.chunk if c not in tried]
        for client in set(dead.chunk) - set(again):
            missing[client] = Missing(client, f"the worker process died on it, twice (exit code {code})")
        tried.update(dead.chunk)
        others = [w for w in self._workers if w is not dead]
        fresh = _Worker(self._model, self.federation, others, self._runner)
        self._workers[self._workers.index(dead)] = fresh
        self._send(fresh, sent, lane=0)
        return again
