"""`local.lr: auto`: a short search for the learning rate on a few clients, before the first round.

A few clients train from the initial model with each rate, for as many steps as in a round but on one random half of
their training samples, and are scored on the other half as a model is when it predicts. First coarse rates are tried,
then those beside the best. A rate that is close to one at which training fails is not taken: in later rounds, other
clients' steps may be larger. Nothing of it is left at the clients, and test and validation samples are not used. The
rate that is found is written into the run directory (learning_rate.json), and a resumed run goes on with it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.core.compute import one_thread
from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import CoterieError, NoAnswerError
from coterie.core.files import plain_bytes
from coterie.core.local import Local
from coterie.core.references import All, Pick
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient, Roster
from coterie.core.tasks import Evaluate, Evaluated, Fit, Fitted
from coterie.core.text import short
from coterie.data.federation import Federation
from coterie.training.ask import RoundAsk
from coterie.training.job import Job
from coterie.training.round import wait_for_clients
from coterie.training.sampling import draw, split_newcomers

FILE = "learning_rate.json"
RATES = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
BEYOND = 3.0  # is tried too, but only to see whether the largest rate is far from one that fails
ADAM = 0.1  # of these rates, for Adam, whose steps do not grow with the gradient
CLIENTS = 5  # that try them
SAMPLES = 4  # that such a client has at least, where there is one
TIE = 0.05  # of the largest gain, and of the least loss: a smaller rate that misses no more is preferred
AWAY = 3.0  # times the rate taken: training must not fail even so

State = TypeVar("State")
Rates = Mapping[str, float]  # the rate that was found for each kind of local training


@dataclass(frozen=True)
class Search:
    """What was tried for one kind of local training, and found."""

    kind: str
    rate: float
    tried: tuple[tuple[float, float | None], ...]  # rates, and the held-out loss after training; None: it diverged
    clients: tuple[int, ...]

    def __str__(self) -> str:
        losses = ", ".join(
            f"{rate:g} diverged" if loss is None else f"{rate:g} {short(loss, 3)}" for rate, loss in self.tried
        )
        return (
            f"local.lr: auto tried {len(self.clients)} clients (rate, held-out loss: {losses}) and found {self.rate:g}"
        )


def settle(job: Job[State], known: Rates, say: Callable[[str], None]) -> tuple[Any, tuple[Search, ...]]:
    """The method with a number for every learning rate that is `auto`, and the searches made for it.

    known: rates that were found before (a resumed run).
    """
    searches: dict[str, Search] = {}
    for local in autos(job.method):
        kind = kind_of(local)
        if kind not in known and kind not in searches:
            wait_for_clients(job.engine)
            if isinstance(job.clients, Federation) and not searches:  # what it refuses need not wait for the search
                roster, _ = split_newcomers(job.clients, job.settings)
                job.method.init(job.model, roster, generator(job.settings.seed, Purpose.INIT))
            with one_thread():
                searches[kind] = _search(job, local)
            say(str(searches[kind]))
    found = {**known, **{kind: search.rate for kind, search in searches.items()}}
    return with_rates(job.method, found), tuple(searches.values())


def autos(method: Any) -> Iterator[Local]:
    """The local trainings of a method, and of the one it wraps, whose learning rate is to be found."""
    for value in _parts(method).values():
        if isinstance(value, Local):
            yield from (value,) if value.lr == "auto" else ()
        elif hasattr(value, "round"):
            yield from autos(value)


def with_rates(method: Any, rates: Rates) -> Any:
    """A copy of a method in which `auto` is the rate found; the method itself where there is nothing to change."""
    changed: dict[str, Any] = {}
    for name, value in _parts(method).items():
        if isinstance(value, Local) and value.lr == "auto" and kind_of(value) in rates:
            changed[name] = dataclasses.replace(value, lr=rates[kind_of(value)])
        elif not isinstance(value, Local) and hasattr(value, "round"):
            below = with_rates(value, rates)
            changed |= {} if below is value else {name: below}
    if not changed:
        return method
    if dataclasses.is_dataclass(method) and not isinstance(method, type):
        return dataclasses.replace(method, **changed)
    other = copy.copy(method)
    for name, value in changed.items():
        setattr(other, name, value)
    return other


def _parts(method: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(method):
        return {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    return dict(getattr(method, "__dict__", {}))


def kind_of(local: Local) -> str:
    """What a learning rate depends on besides the data, as text: not how long a training is."""
    return repr(dataclasses.replace(local, epochs=None, steps=None, lr="auto", lr_decay=1.0, keep_optimizer=False))


# ------------------------------------------------------------------------------------------------- the search


def _search(job: Job[State], local: Local) -> Search:
    seed = job.settings.seed
    roster, _ = split_newcomers(job.clients, job.settings)
    ids = _some(roster, generator(seed, Purpose.LEARNING_RATE))
    start = job.model.init(generator(seed, Purpose.INIT))
    before = _held_out(job, ids, All(start))
    if before is None or not before:
        raise NoAnswerError("local.lr: auto: no client could be asked; write a number, such as local.lr=0.1")
    unit = ADAM if local.optimizer == "adam" else 1.0
    rates = [float(f"{rate * unit:g}") for rate in (*RATES, BEYOND)]
    losses: dict[float, Mapping[int, float] | None] = {}
    for rate in (*rates[:-1:2], rates[-1]):  # the coarse ones; one that diverges is the last
        losses[rate] = _after(job, ids, start, dataclasses.replace(_as_in_a_round(local), lr=rate))
        if losses[rate] is None:
            break
    means, shared = _means(losses, before)
    known = {rate: loss for rate, loss in means.items() if loss is not None}
    if not known:
        raise CoterieError(
            f"local.lr: auto: training diverges with every rate down to {min(means):g}; standardise the inputs, bound "
            "the steps (local.clip=1), or write a rate",
            code="diverged",
        )
    best = rates.index(min(known, key=lambda rate: (known[rate], rate)))
    for rate in (rates[max(best - 1, 0)], rates[min(best + 1, len(rates) - 1)]):
        if rate not in losses:
            losses[rate] = _after(job, ids, start, dataclasses.replace(_as_in_a_round(local), lr=rate))
    means, shared = _means(losses, before)
    rate = _best(means, float(np.mean([before[client] for client in shared])), rates[-1])
    return Search(kind_of(local), rate, tuple(sorted(means.items())), tuple(shared or ids.tolist()))


def _some(roster: Roster, rng: np.random.Generator) -> Tensor:
    """A few clients, of those with samples enough to halve."""
    enough = roster.n >= SAMPLES
    here = Roster(roster.ids[enough], roster.n[enough]) if bool(enough.any()) else roster
    return draw(here, min(CLIENTS, len(here.ids)), rng)


def _as_in_a_round(local: Local) -> Local:
    """As many steps as a round has: of half the samples that takes twice the epochs."""
    epochs = None if local.steps is not None else 2 * (local.epochs or 1)
    return dataclasses.replace(local, epochs=epochs, lr_decay=1.0, keep_optimizer=False)


def _after(job: Job[State], ids: Tensor, start: Tensor, local: Local) -> Mapping[int, float] | None:
    """Each client's loss on the half it did not train on; None if a training diverged."""
    ask = _asks(job, ids)
    try:
        trained: Fitted = ask(Fit(All(start), local, half=0, keep=False))
    except NoAnswerError:
        trained = None  # type: ignore[assignment]
    if any(missing.diverged for missing in ask.lost):
        return None
    if trained is None:
        return {}
    rows = ByClient(trained.ids, torch.arange(len(trained.ids)))
    return _held_out(job, trained.ids, Pick(trained.models, rows))


def _held_out(job: Job[State], ids: Tensor, model: All | Pick) -> Mapping[int, float] | None:
    """Each client's loss on its second half under a model that predicts: without dropout, with its own statistics.

    None if one is not finite.
    """
    ask = _asks(job, ids)
    try:
        reply: Evaluated = ask(Evaluate((model,), split="train", half=1))
    except NoAnswerError:
        return None if any(missing.diverged for missing in ask.lost) else {}
    losses = dict(zip(reply.ids.tolist(), reply.loss.tolist(), strict=True))
    bad = any(missing.diverged for missing in ask.lost) or not all(map(math.isfinite, losses.values()))
    return None if bad else losses


def _asks(job: Job[State], ids: Tensor) -> RoundAsk:
    """A new one each time, so that all rates see the same batches; it leaves nothing at the clients."""
    return RoundAsk(job.stack, ids, job.settings.seed, 0, kind="probe", names=job.clients.names)


def _means(
    losses: Mapping[float, Mapping[int, float] | None], before: Mapping[int, float]
) -> tuple[dict[float, float | None], list[int]]:
    """The loss with each rate, over the clients that answered every time; None where a training diverged."""
    shared = sorted(set.intersection(*(set(found) for found in (before, *losses.values()) if found)))
    mean = {
        rate: float(np.mean([found[client] for client in shared])) if found and shared else None
        for rate, found in losses.items()
    }
    return mean, shared


def _best(means: Mapping[float, float | None], before: float, beyond: float) -> float:
    """The rate of the least loss, or a smaller one that gains nearly as much; not close to one that fails.

    A larger rate than the best fails if training diverges, or leaves a model no better than the one it started from.
    """
    known = {rate: loss for rate, loss in means.items() if loss is not None}
    best = min(known, key=lambda rate: (known[rate], rate))
    fails = min((r for r, loss in means.items() if r > best and (loss is None or loss >= before)), default=math.inf)
    known.pop(beyond, None)
    safe = {rate: loss for rate, loss in known.items() if AWAY * rate < fails * (1 - 1e-9)}
    known = safe or {min(known): known[min(known)]}
    least = min(known.values())
    slack = TIE * min(max(0.0, before - least), least)
    return min(rate for rate, loss in known.items() if loss <= least + slack)


# ------------------------------------------------------------------------------------------------- in a run directory


def as_text(searches: Sequence[Search]) -> str:
    """learning_rate.json."""
    return json.dumps([dataclasses.asdict(search) for search in searches], indent=1) + "\n"


def recorded(path: Path) -> dict[str, float]:
    """The rates that a run found; none where it did not look for any."""
    try:
        rows = parse_json(plain_bytes(path / FILE))
        return {str(row["kind"]): float(row["rate"]) for row in rows}
    except FileNotFoundError:
        return {}
    except (OSError, DecodeError, ValueError, KeyError, TypeError) as error:
        raise CoterieError(
            f"{path / FILE}: cannot be read ({error}); write the learning rate that was found, local.lr=...",
            code="run-damaged",
        ) from None
