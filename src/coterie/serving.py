"""After training: a finished run read back from its directory, newcomers taken in, predictions made.

Nobody is retrained. A newcomer brings its own (training) data, by which the method's own rule finds its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie import checkpoint
from coterie.asking import Asker
from coterie.client import ClientData, Workbench
from coterie.data.federation import Federation
from coterie.driver import Result, one_thread
from coterie.engines.contract import Missing
from coterie.engines.sequential import Sequential
from coterie.errors import CoterieError
from coterie.memory import Memory
from coterie.methods.contract import Admits
from coterie.seeds import Purpose, generator
from coterie.tasks import Cohort, Evaluated, Roster


@dataclass(frozen=True, eq=False)
class _Behind:
    """A federation whose clients are numbered behind those that were trained on."""

    newcomers: Federation
    first: int

    def client(self, client: int) -> ClientData:
        return self.newcomers.client(client - self.first)


@dataclass(frozen=True, eq=False)
class Served:
    """Newcomers in their places. Client i of the newcomers' federation is i here."""

    assignments: NDArray[np.int64]  # the cluster of each: -1 where it could not be found
    clients: Evaluated  # their scores on their own test data (ids as the server numbers them)
    missing: tuple[Missing, ...]
    _result: Result[Any]
    _state: Any
    _behind: _Behind

    def predict(self, client: int, x: ArrayLike | Tensor) -> NDArray[np.int64] | NDArray[np.float32]:
        """Labels (or targets) of new inputs, stored as the newcomers' own are, by the model of the newcomer's place."""
        number = self._behind.first + client
        data, scale = self._behind.client(number), self._behind.newcomers.scale
        inputs = scale(x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x)))
        task = self._result.method.predictor(self._state)
        with one_thread():
            said = Workbench(self._result.model).predict(task, number, data, {}, inputs.to(torch.get_default_dtype()))
        labels: NDArray[np.int64] | NDArray[np.float32]
        labels = said.argmax(1).numpy() if self._result.model.loss == "cross_entropy" else said.numpy()
        return labels


def admit(result: Result[Any], newcomers: Federation) -> Served:
    """Find the place of clients that had no part in training."""
    newcomers.check()
    first = int(result.roster.ids.max()) + 1
    behind = _Behind(newcomers, first)
    ids = torch.arange(first, first + len(newcomers))
    roster = Roster(ids, newcomers.roster.n)
    engine = Sequential(result.model, behind)
    done = result.settings.rounds
    ask: Any = Asker(engine, ids, result.settings.seed, done, keep=False)
    state = result.state
    with one_thread():
        if isinstance(result.method, Admits):
            rng = generator(result.settings.seed, Purpose.METHOD, done, 0)
            state = result.method.admit(state, Cohort(ids, done, roster, rng), ask)
        reply: Evaluated = ask(result.method.predictor(state))
    found = np.full(len(newcomers), -1, dtype=np.int64)
    found[reply.ids.numpy() - first] = 0 if reply.choice is None else reply.choice.numpy()
    return Served(found, reply, tuple(ask.missing[c] for c in sorted(ask.missing)), result, state, behind)


def load(run_dir: str | Path) -> Result[Any]:
    """A finished run of `coterie run`, read back from its directory: its state, its clients' scores, its settings."""
    from coterie.config import build, read, read_file
    from coterie.driver import evaluate

    path = Path(run_dir)
    if not (path / "config.yaml").is_file():
        raise CoterieError(f"{path}: not a run of `coterie run` (it has no config.yaml)")
    config = read(None, base=read_file(path / "config.yaml"))
    job = build(config)
    saves = sorted((path / "checkpoints").glob("round-*.safetensors"))
    if not saves:
        raise CoterieError(f"{path}: has no checkpoint to load")
    roster = job.federation.roster
    template = job.method.init(job.model, roster, generator(config.seed, Purpose.INIT))
    saved = checkpoint.load(saves[-1], template, job.method, {})
    memory = Memory()
    memory.restore(saved.memory)
    engine = Sequential(job.model, job.federation)
    engine.memory = memory
    with one_thread():
        found = evaluate(job.method, saved.state, job.federation, config.settings, engine, saved.round - 1)
    return Result(
        job.method,
        job.model,
        saved.state,
        (),
        found.clients,
        found.summary,
        0.0,
        roster,
        config.settings,
        memory,
        run_dir=path,
    )
