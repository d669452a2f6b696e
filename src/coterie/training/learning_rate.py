"""`local.lr: auto`: a short search for the learning rate on a few clients, before the first round.

A few clients train from the initial model with each rate, on one random half of their training samples, and are scored
on the other half. Nothing of it is left at the clients, and test and validation samples are not used. The rate that is
found is written into the run directory (learning_rate.json), and a resumed run goes on with it.
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

from coterie.core.client_table import ByClient
from coterie.core.cohort import Roster
from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import CoterieError, NoAnswerError
from coterie.core.formatting import short
from coterie.core.hardware import one_thread
from coterie.core.local import Local
from coterie.core.references import All, Pick
from coterie.core.replies import Fitted
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import Fit
from coterie.data.federation import Federation
from coterie.training.ask import RoundAsk
from coterie.training.job import Job
from coterie.training.round import wait_for_clients
from coterie.training.sampling import draw, split_newcomers

FILE = "learning_rate.json"
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
ADAM = 0.1  # of these rates, for Adam, whose steps do not grow with the gradient
CLIENTS = 5  # that try them
SAMPLES = 4  # that such a client has at least, where there is one
STEPS = 30  # of each training
TIE = 0.05  # of the largest gain: a smaller rate that misses no more of it is preferred
LOOK = Local(epochs=1, batch="full", lr=1e-12, clip="off")  # its loss is that of the model it starts from

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
    losses: dict[float, Mapping[int, float] | None] = {}
    for rate in (r * ADAM for r in RATES) if local.optimizer == "adam" else RATES:
        rate = float(f"{rate:g}")
        losses[rate] = _after(job, ids, start, dataclasses.replace(_short(local), lr=rate))
        if losses[rate] is None:
            break  # a larger one would diverge all the more
    answered = [before, *(found for found in losses.values() if found)]  # whoever answered every time is compared
    shared = sorted(set.intersection(*(set(found) for found in answered)))
    means = {rate: _mean(found, shared) for rate, found in losses.items()}
    return Search(
        kind_of(local), _best(means, _mean(before, shared)), tuple(means.items()), tuple(shared or ids.tolist())
    )


def _some(roster: Roster, rng: np.random.Generator) -> Tensor:
    """A few clients, of those with samples enough to halve."""
    enough = roster.n >= SAMPLES
    here = Roster(roster.ids[enough], roster.n[enough]) if bool(enough.any()) else roster
    return draw(here, min(CLIENTS, len(here.ids)), rng)


def _short(local: Local) -> Local:
    return dataclasses.replace(local, epochs=None, steps=STEPS, lr_decay=1.0, keep_optimizer=False)


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
    """Each client's loss under a model, on its second half; None if one is not finite."""
    ask = _asks(job, ids)
    try:
        reply: Fitted = ask(Fit(model, LOOK, half=1, send=False, keep=False))
    except NoAnswerError:
        return None if any(missing.diverged for missing in ask.lost) else {}
    losses = dict(zip(reply.ids.tolist(), reply.loss.tolist(), strict=True))
    bad = any(missing.diverged for missing in ask.lost) or not all(map(math.isfinite, losses.values()))
    return None if bad else losses


def _asks(job: Job[State], ids: Tensor) -> RoundAsk:
    """A new one each time, so that all rates see the same batches; it leaves nothing at the clients."""
    return RoundAsk(job.stack, ids, job.settings.seed, 0, kind="probe", names=job.clients.names)


def _mean(losses: Mapping[int, float] | None, shared: Sequence[int]) -> float | None:
    """Over the clients, each counted once; None where a training diverged."""
    return float(np.mean([losses[client] for client in shared])) if losses and shared else None


def _best(means: Mapping[float, float | None], before: float | None) -> float:
    """The rate of the least loss, or a smaller one that gains nearly as much."""
    known = {rate: loss for rate, loss in means.items() if loss is not None}
    if not known:
        raise CoterieError(
            f"local.lr: auto: training diverges with every rate down to {min(means):g}; standardise the inputs, bound "
            "the steps (local.clip=1), or write a rate",
            code="diverged",
        )
    least = min(known.values())
    slack = TIE * max(0.0, (least if before is None else before) - least)
    return min(rate for rate, loss in known.items() if loss <= least + slack)


# ------------------------------------------------------------------------------------------------- in a run directory


def as_text(searches: Sequence[Search]) -> str:
    """learning_rate.json."""
    return json.dumps([dataclasses.asdict(search) for search in searches], indent=1) + "\n"


def recorded(path: Path) -> dict[str, float]:
    """The rates that a run found; none where it did not look for any."""
    try:
        rows = parse_json((path / FILE).read_bytes())
        return {str(row["kind"]): float(row["rate"]) for row in rows}
    except FileNotFoundError:
        return {}
    except (OSError, DecodeError, ValueError, KeyError, TypeError) as error:
        raise CoterieError(
            f"{path / FILE}: cannot be read ({error}); write the learning rate that was found, local.lr=...",
            code="run-damaged",
        ) from None
