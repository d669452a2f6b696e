"""One worker process per core, one torch thread each: the same work as `sequential`, spread out.

Clients are dealt out largest first in small hands, so that no worker waits long for another. A
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

from coterie.batch import Batch
from coterie.blocks import Blocks
from coterie.byclient import ByClient
from coterie.client import Call, Done, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer, Workbench
from coterie.data.federation import Federation
from coterie.engines.batched import HANDS
from coterie.engines.channel import Channel
from coterie.engines.contract import Gathering, Missing, Outcome, Visit, reason, restrict
from coterie.engines.dealing import deal
from coterie.memory import Memory
from coterie.model import Model
from coterie.tasks import All, Best, Estimated, Evaluate, Fit, Local, Mix, Own, Pick, Posterior, Score
from coterie.threads import keep_memory

HANDS_PER_WORKER = 6  # enough that the last hand is short, few enough that messages cost nothing


@dataclass(frozen=True, eq=False)
class _Open:
    """A visit begins: its tasks, sent once to each worker."""

    visit: Visit


@dataclass(frozen=True, eq=False)
class _Hand:
    """The clients a worker takes on next, and what each of them keeps."""

    clients: tuple[int, ...]
    keeps: tuple[Mapping[str, Tensor], ...]


@dataclass(frozen=True, eq=False)
class _Played:
    """What became of a hand: for each client what it did, or why it could not."""

    results: tuple[Done | Missing, ...]


TYPES = (
    *(_Open, _Hand, _Played, Visit, Moment, Done, Missing, FitAnswer, ScoreAnswer, EvaluateAnswer),
    *(Fit, Score, Evaluate, All, Pick, Best, Mix, Own, Estimated, Posterior, Local, ByClient),
)


def _serve(
    model: Model, federation: Federation, pipe: Connection, others: Sequence[Connection], bench: type[Workbench]
) -> None:
    """A worker's life: until the pipe closes, which it also does when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for end in others:  # inherited ends of other pipes would keep those open after the parent is gone
        end.close()
    torch.set_num_threads(1)
    keep_memory()
    computes = bench(model)
    channel = Channel(pipe, TYPES)
    hands = 0
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            message = channel.receive()
            if isinstance(message, _Open):
                visit, hands = message.visit, 0
                continue
            calls = [
                Call(client, visit.asked_of(client), keeps)
                for client, keeps in zip(message.clients, message.keeps, strict=True)
            ]
            found = computes.visit_all(calls, federation, visit.moment)
            results = [
                Missing(call.client, reason(result)) if isinstance(result, Exception) else result
                for call, result in zip(calls, found, strict=True)
            ]
            # Two lanes in turn: the parent reads one while the next hand goes into the other.
            channel.send(_Played(tuple(results)), lane=hands % 2)
            hands += 1


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, model: Model, federation: Federation, others: Sequence[_Worker], bench: type[Workbench]) -> None:
        # fork hands model and data over without a copy and without pickling; it is not safe outside Linux.
        context: BaseContext = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        mine, theirs = context.Pipe()
        self.channel = Channel(mine, TYPES)
        self.hand: tuple[int, ...] = ()
        inherited = [w.channel.pipe for w in others] + [mine] if sys.platform == "linux" else []
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(model, federation, theirs, inherited, bench), daemon=True, name="coterie-worker"
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork beside threads; the worker touches no lock that one could hold.
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
    """Spreads a visit over `workers` processes; `batched` ones visit a hand of clients as one computation."""

    def __init__(self, model: Model, federation: Federation, workers: int, batched: bool = False) -> None:
        self.federation = federation
        self.memory = Memory()
        self._model = model
        self._n = federation.roster.n
        self._blocks = Blocks()
        self._bench: type[Workbench] = Batch if batched else Workbench
        self._hands = HANDS if batched else HANDS_PER_WORKER * workers
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(_Worker(model, federation, self._workers, self._bench))

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = Gathering(visit, self._blocks)
        missing: dict[int, Missing] = {}
        keeps: dict[int, Mapping[str, Tensor]] = {}
        tried: set[int] = set()
        hands = deque(deal(visit.ids, self._n[visit.ids], self._hands))
        sent = _Open(restrict(visit, visit.ids))
        for worker in self._workers:
            worker.hand = ()
            self._send(worker, sent, lane=0)
        while hands or any(w.hand for w in self._workers):
            for worker in self._workers:
                if not worker.hand:
                    self._give(worker, hands)
            busy = {w.channel.pipe: w for w in self._workers if w.hand}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                try:
                    played: _Played = worker.channel.receive()
                except (EOFError, OSError):
                    again = self._replace(worker, sent, tried, missing)
                    hands.extend((client,) for client in again)
                    continue
                # The worker goes on with its next hand (and its other lane) while this one is read.
                done = worker.hand
                self._give(worker, hands)
                for client, result in zip(done, played.results, strict=True):
                    if isinstance(result, Missing):
                        missing[client] = result
                    else:
                        answers.add(client, result.answers)
                        keeps[client] = {slot: value.clone() for slot, value in result.keeps.items()}
        for client, written in keeps.items() if visit.keep else ():
            self.memory.write(client, written)
        return Outcome(answers.replies(), tuple(missing[c] for c in sorted(missing)))

    def _give(self, worker: _Worker, hands: deque[tuple[int, ...]]) -> None:
        """The next hand, if there is one."""
        worker.hand = hands.popleft() if hands else ()
        if worker.hand:
            self._send(worker, _Hand(worker.hand, tuple(self.memory.read(c) for c in worker.hand)), lane=1)

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def _send(self, worker: _Worker, message: object, lane: int) -> None:
        # A dead worker is found when its answer is waited for.
        with contextlib.suppress(OSError):
            worker.channel.send(message, lane)

    def _replace(self, dead: _Worker, sent: _Open, tried: set[int], missing: dict[int, Missing]) -> list[int]:
        """A new worker in the place of a dead one; returns which of its clients deserve another try."""
        dead.stop()
        code = dead.process.exitcode
        again = [c for c in dead.hand if c not in tried]
        for client in set(dead.hand) - set(again):
            missing[client] = Missing(client, f"the worker process died on it, twice (exit code {code})")
        tried.update(dead.hand)
        others = [w for w in self._workers if w is not dead]
        fresh = _Worker(self._model, self.federation, others, self._bench)
        self._workers[self._workers.index(dead)] = fresh
        self._send(fresh, sent, lane=0)
        return again
