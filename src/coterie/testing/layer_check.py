"""Does a layer of your own keep the promises that the round loop, the record and the checkpoint rely on?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from coterie.client.contract import Moment
from coterie.core.codec import pack, unpack
from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError, QuorumError
from coterie.core.references import All
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.core.tasks import Evaluate, Fit, Fitted
from coterie.engines.contract import Engine, Kind, Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.engines.updates import norms_of
from coterie.layers.contract import EVERY_KIND, Layer, Round, Setup, Stack
from coterie.methods.fedavg import FedAvg
from coterie.testing.trial import two_kinds
from coterie.training.ask import RoundAsk
from coterie.training.build import as_model
from coterie.training.settings import Settings

ROUNDS = 3


class LayerCheckError(CoterieError, AssertionError):
    """A layer breaks a promise of the contract."""

    code = "layer-check-failed"


def check_layer(make: Callable[[], Layer]) -> None:
    """Check a layer of your own: rounds with models here and elsewhere, an attempt that too few answer, a visit to
    nobody, and a run that is continued from a checkpoint. make: gives a new one, unused.

    Raises a LayerCheckError that says which promise is broken and what to do.
    """
    with one_thread():
        layer = make()
        key = getattr(layer, "key", None)
        _expect(isinstance(key, str) and bool(key), "give it a name: key = '...', as rounds.jsonl is to have it")
        _expect(layer.kinds <= EVERY_KIND, f"kinds: some of {', '.join(sorted(EVERY_KIND))}")
        for kind in sorted(EVERY_KIND - layer.kinds):
            _expect(_seen(make(), kind) == 0, f"a visit of the kind '{kind}' reached it")
        whole = _Trial(make())
        states = [whole.round(t) for t in range(ROUNDS)]
        elsewhere = _Trial(make(), far=True)
        for t, state in enumerate(states):
            close = torch.allclose(elsewhere.round(t), state, rtol=1e-4, atol=1e-5)
            _expect(close, "models that are elsewhere (Ray) give another result; use reply.theta, or norms and means")
        _continued(make, states)
        _given_up(make)
        with _told("a visit to nobody"):
            whole.visit(torch.empty(0, dtype=torch.int64))


def _continued(make: Callable[[], Layer], states: list[Tensor]) -> None:
    """What was committed is in `pack`, and `unpack` takes it."""
    first = _Trial(make())
    first.round(0)
    with _told("pack"):
        outline, tensors = pack(first.stack.pack())
        kept = unpack(json.loads(json.dumps(outline)), tensors, ())
    again = _Trial(make(), memory=first)
    with _told("unpack"):
        again.stack.unpack(kept)
    again.state = states[0]
    for t in range(1, ROUNDS):
        _expect(torch.equal(again.round(t), states[t]), "continued from a checkpoint it does otherwise: pack all state")


def _given_up(make: Callable[[], Layer]) -> None:
    """An attempt that does not stand leaves nothing in the next one that changes its result by accident."""
    trial = _Trial(make())
    attempt = trial.attempt(0)
    trial.stack.begin(attempt)
    trial.visit(attempt.cohort)
    with _told("abort"):
        trial.stack.abort(attempt, QuorumError("too few answered", 1))
        outline, _ = pack(trial.stack.pack())
        json.dumps(outline)
    trial.round(0)


class _Trial:
    """Rounds of FedAvg with one layer."""

    def __init__(self, layer: Layer, far: bool = False, memory: _Trial | None = None) -> None:
        self.data = two_kinds()
        self.model = as_model("linear", self.data)
        self.method, self.settings = FedAvg(), Settings(rounds=ROUNDS)
        setup = layer.prepare(Setup(self.method, self.model, self.data, self.settings))
        _expect(isinstance(setup, Setup), "prepare must return the setup, changed by replace(setup, ...) or not")
        engine: Engine = Sequential(self.model, self.data)
        self.stack = Stack(_Elsewhere(engine) if far else engine, [_Watched(layer)])
        self.state = self.method.init(self.model, self.data.roster, generator(0, Purpose.INIT))

    def attempt(self, t: int) -> Round:
        """An attempt at round t."""
        ids = self.data.roster.ids
        return Round(t, 0, ids, self.data.roster, None, 0, self.model, self.stack.engine)

    def round(self, t: int) -> Tensor:
        """Round t; the state after it."""
        attempt = self.attempt(t)
        cohort = Cohort(attempt.cohort, t, self.data.roster, generator(0, Purpose.METHOD, t, 0))
        with _told("begin"):
            self.stack.begin(attempt)
        after = self.method.round(self.state, cohort, RoundAsk(self.stack, cohort.ids, 0, t))
        with _told("commit"):
            json.dumps(self.stack.commit(attempt, self.state, after), allow_nan=False)
        self.state = after
        return after

    def visit(self, ids: Tensor) -> Outcome:
        """A training visit to these clients."""
        fit = Fit(All(self.state), self.method.local)
        return self.stack.visit(Visit((fit,), ids, Moment(0, 0, 0)))


class _Watched(Layer):
    """The layer, and a check of each of its outcomes."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self.key, self.kinds, self.version = layer.key, layer.kinds, layer.version  # type: ignore[misc]
        for name in ("begin", "commit", "abort", "pack", "unpack", "may_continue"):
            setattr(self, name, getattr(layer, name))

    def visit(self, visit: Visit, onward: Callable[[Visit], Outcome]) -> Outcome:
        try:
            outcome = self._layer.visit(visit, onward)
        except CoterieError:
            raise
        except Exception as error:
            where = "a visit to nobody" if not len(visit.ids) else "visit"
            raise LayerCheckError(f"layer: {where}: {type(error).__name__}: {error}") from error
        _expect(isinstance(outcome, Outcome), "visit must return an Outcome: that of onward(visit), changed or not")
        _expect(len(outcome.replies) == len(visit.tasks), "an Outcome has one reply per task, in their order")
        gone = {missing.client for missing in outcome.missing}
        for reply in outcome.replies:
            ids = reply.ids.tolist()
            _expect(ids == sorted(set(ids)), "replies are by ascending id")
            _expect(not gone & set(ids), f"client {min(gone & set(ids), default=0)} is missing and has a reply")
            _expect(set(ids) <= set(visit.ids.tolist()), "a reply of a client that was not asked")
        return outcome


class _Elsewhere:
    """An engine whose replies have their models on another machine."""

    def __init__(self, engine: Engine) -> None:
        self.memory, self._engine = engine.memory, engine

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        outcome = self._engine.visit(visit)
        pairs = zip(visit.tasks, outcome.replies, strict=True)
        far = (
            replace(reply, sent=_Far(reply.sent, task, reply))
            if isinstance(task, Fit) and isinstance(reply, Fitted) and isinstance(reply.sent, Tensor)
            else reply
            for task, reply in pairs
        )
        return replace(outcome, replies=tuple(far))

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()


class _Far:
    """Models that can be fetched, or combined and measured where they are."""

    def __init__(self, models: Tensor, task: Fit, reply: Fitted) -> None:
        self._models, self._task, self._ids = models, task, reply.ids
        self.dtype, self.nbytes = models.dtype, models.nbytes

    def __len__(self) -> int:
        return len(self._models)

    def combined(self, share: Tensor) -> Tensor:
        return share @ self._models

    def gathered(self) -> Tensor:
        return self._models

    def norms(self, choice: Tensor | None) -> Tensor:
        return norms_of(self._models, self._task.start, self._ids, choice)


def _seen(layer: Layer, kind: Kind) -> int:
    """How often a visit of this kind reaches the layer."""
    trial, seen = _Trial(layer), list[Visit]()
    inner = trial.stack.layers[0]

    def note(visit: Visit, onward: Callable[[Visit], Outcome]) -> Outcome:
        seen.append(visit)
        return onward(visit)

    inner.visit = note  # type: ignore[method-assign]
    task = Evaluate((All(trial.state),))
    trial.stack.visit(Visit((task,), trial.data.roster.ids, Moment(0, 0, 0), kind))
    return len(seen)


def _expect(kept: bool, text: str) -> None:
    if not kept:
        raise LayerCheckError(f"layer: {text}")


class _told:  # noqa: N801 (reads as a word)
    """Errors of the layer, with where they came from."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, LayerCheckError):
            raise LayerCheckError(f"layer: {self._where}: {type(error).__name__}: {error}") from error
