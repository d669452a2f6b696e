"""`engine: auto`: which engine is the fastest here, found out by trying."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from coterie.client.answers import Moment
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import Evaluate, Fit
from coterie.data.federation import Federation
from coterie.engines.batched import Batched
from coterie.engines.contract import Engine, Visit
from coterie.engines.sequential import Sequential

CLIENTS = 8  # tried, from the largest to the smallest
STEPS = 20  # of each, at most
WORTH = 0.02  # seconds a round must take before other processes are worth their messages
CLEARLY = 0.95  # of the plain engine's time: a tie goes to the one that computes as the reference does


@dataclass(frozen=True)
class Choice:
    """An engine, and why."""

    name: str
    workers: int | None
    why: str

    def __str__(self) -> str:
        many = "" if self.workers is None else f", {self.workers} worker{'s' if self.workers != 1 else ''}"
        return f"{self.name}{many} ({self.why})"


def choose(model: Model, federation: Federation, local: Local, per_round: int, cores: int) -> Choice:
    """Train and evaluate a few clients one by one and together, and see which takes less time.

    Nothing of it is kept. The choice follows from time, so it may differ from day to day; engines agree to rounding.
    """
    by_size = torch.argsort(federation.roster.n, descending=True, stable=True)
    some = by_size[torch.linspace(0, len(by_size) - 1, min(CLIENTS, per_round, len(by_size))).long()].unique()
    theta = model.init(generator(0, Purpose.INIT))
    trial = replace(local, epochs=None, steps=min(local.steps or STEPS, STEPS), keep_optimizer=False)
    tasks = (Fit(All(theta), trial, send=False), Evaluate((All(theta),)))
    visit = Visit(tasks, some, Moment(0, 0, 0), keep=False)
    engines: dict[str, Engine] = {"plain": Sequential(model, federation), "together": Batched(model, federation)}
    seconds = dict.fromkeys(engines, float("inf"))
    for _ in range(3):  # in turns, and the best counts: other work on the machine hits one as well as the other
        for name, engine in engines.items():
            began = time.perf_counter()
            engine.visit(visit)
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    together = seconds["together"] < CLEARLY * seconds["plain"]
    best = min(seconds.values())
    steps = local.steps or (local.epochs or 1) * max(1, int(federation.roster.n.float().mean()) // _batch(local))
    a_round = best / len(some) * per_round * max(1.0, steps / STEPS)
    workers = min(cores, per_round) if a_round > WORTH else 1
    apart, one = (f"{seconds[name] * 1e3:.0f} ms" for name in ("plain", "together"))
    why = f"{len(some)} clients: {apart} one by one, {one} together"
    if together:
        return Choice("batched", workers, why)
    return Choice("workers", workers, why) if workers > 1 else Choice("sequential", None, why)


def _batch(local: Local) -> int:
    return 10**9 if local.batch == "full" else local.batch
