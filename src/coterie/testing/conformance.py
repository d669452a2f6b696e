"""Does a method keep the promises that engines, checkpoints and evaluation rely on? A check for each promise.

The docstring of a check is the promise and what to do where it is broken: it ends the error message.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.contract import Memory
from coterie.core.codec import pack
from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError
from coterie.core.tasks import Evaluate
from coterie.data.federation import Federation
from coterie.engines.batched import Batched
from coterie.engines.sequential import Sequential
from coterie.methods.contract import Admits
from coterie.testing.trial import BrokenPromiseError, Played, Renamed, Step, Trial, expect, same, two_kinds
from coterie.training import checkpoint
from coterie.training.build import as_model


class MethodCheckError(CoterieError, AssertionError):
    """A method breaks a promise of the contract; `check` is the name of the check that found it."""

    code = "method-check-failed"

    def __init__(self, check: str, text: str) -> None:
        super().__init__(text)
        self.check = check


def check_method(method: Any, *, model: Any = None, federation: Any = None) -> None:
    """Check that a method of your own keeps the promises that the rest of the library relies on.

    Trains it for a few rounds and raises a MethodCheckError that names the first broken promise and what to do.
    model, federation: as `coterie.run` takes them; a linear model and eight small clients where they are not given.
    """
    trial = new_trial(method, model, federation)
    for check in CHECKS:
        carry_out(check, trial)


def new_trial(method: Any, model: Any = None, federation: Any = None) -> Trial:
    """A method with the data it is tried on."""
    data = two_kinds() if federation is None else Federation.of(federation)
    if len(data) < 4:
        raise CoterieError(
            f"check_method: the federation has {len(data)} clients; give at least 4", code="argument-invalid"
        )
    return Trial(method, as_model("linear" if model is None else model, data), data)


def carry_out(check: Callable[[Trial], None], trial: Trial) -> None:
    """One check. Whatever goes wrong is reported with the promise; global generators are left as they were."""
    plain, numpy = random.getstate(), np.random.get_state()
    who = trial.method.__name__ if isinstance(trial.method, type) else type(trial.method).__name__
    try:
        with one_thread(), torch.random.fork_rng(devices=[]):
            check(trial)
    except Exception as error:
        found = str(error) if isinstance(error, BrokenPromiseError) else f"{type(error).__name__}: {error}"
        promise = " ".join((check.__doc__ or "").split())
        raise MethodCheckError(check.__name__, f"{who}: {check.__name__}: {found}. {promise}") from error
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)


# ---------------------------------------------------------------------------------------------------- the checks


def has_the_functions(trial: Trial) -> None:
    """A method is an object with init(model, roster, rng), round(state, cohort, ask) and predictor(state); admit(state,
    cohort, ask) is optional."""
    expect(not isinstance(trial.method, type), "a class, not an object; write check_method(MyMethod())")
    for name, many in (("init", 3), ("round", 3), ("predictor", 1), ("admit", 3)):
        function = getattr(trial.method, name, None)
        if function is None and name == "admit":
            continue
        expect(callable(function), f"there is no function {name}")
        try:
            inspect.signature(function).bind(*range(many))  # type: ignore[arg-type]
        except TypeError as error:
            raise BrokenPromiseError(f"{name} does not take these {many} arguments ({error})") from None


def is_a_frozen_dataclass(trial: Trial) -> None:
    """Hyper-parameters are the fields of a frozen dataclass: put @dataclass(frozen=True) above the class. They are the
    keys of a configuration and are part of what a checkpoint belongs to."""
    expect(dataclasses.is_dataclass(trial.method), "it is not a dataclass")
    expect(_frozen(trial.method), "the dataclass is not frozen")


def trains_and_predicts(trial: Trial) -> None:
    """Where everyone takes part and answers, every round returns the new state, every client can do what it is asked,
    and predictor(state) returns Evaluate((All(w),)) or the like."""
    given = trial.method.predictor(trial.init())
    expect(isinstance(given, Evaluate), f"predictor returned a {type(given).__name__}, not an Evaluate")
    expect(not trial.full.failed, trial.full.failed)


def state_can_be_saved(trial: Trial) -> None:
    """A state is a tensor, or a frozen dataclass of tensors, numbers, text, tuples and ByClient tables (frozen
    dataclasses of the method's own module): a checkpoint writes it and reads it back to the same bits."""
    for state in (trial.full.states[0], trial.full.states[-1], trial.partial.states[-1]):
        for part in _parts(state):
            frozen = not dataclasses.is_dataclass(part) or _frozen(part)
            expect(frozen, f"the dataclass {type(part).__name__} in the state is not frozen")
        read = _saved(trial, state, {}, 0).state
        expect(same(state, read), "what is read from a checkpoint is not what was written (lists become tuples)")


def init_depends_on_its_rng_only(trial: Trial) -> None:
    """Draw what `init` draws from the `rng` it is given (model.init(rng)), never from a global generator."""
    expect(same(trial.init(), trial.init(noise=1)), "init gave two states for one seed")


def round_leaves_its_state_alone(trial: Trial) -> None:
    """`round` returns a new state and does not change the one it was given: a round that too few answer is repeated
    from there. Write `a + b` and `torch.where` in place of `a += b` and `a[i] = b`, or clone first."""
    changed = trial.full.changed or trial.partial.changed
    expect(changed is None, f"round {changed} changed the state it was given")


def same_seed_same_bits(trial: Trial) -> None:
    """The same seed gives the same bits: draw from `cohort.rng`, never from a global generator, do not go through sets,
    and keep nothing in the method itself or in a module."""
    again = trial.play([Step(trial.everyone, trial.everyone)] * 2, noise=1)
    expect(same(trial.full.states, again.states), "two runs of one seed ended in different states")


def allows_partial_participation(trial: Trial) -> None:
    """Any of the clients may take part in a round, and clients may join later: a client that the state does not know
    yet (ByClient.has, or `at` with a default) is given its place in the round it is first met."""
    expect(not trial.partial.failed, trial.partial.failed)


def ids_are_ids(trial: Trial) -> None:
    """Client ids are ids, not positions, and need not be 0..n-1: keep what belongs to a client in a ByClient table, and
    never index a tensor with an id or a reply's rows with a position in the cohort."""
    spread = trial.play(trial.comings, ids=7 * trial.ids + 3)
    expect(same(trial.partial.losses, spread.losses), "clients under other ids have other predictions")
    if trial.partial.drew or trial.partial.in_turn:
        return  # in another order a draw falls upon others, and another client goes on from another one's result
    turned = trial.play(trial.comings, ids=7 * trial.ids.flip(0) + 3)
    close = torch.allclose(trial.partial.losses, turned.losses, rtol=1e-3, atol=1e-4, equal_nan=True)
    expect(close, "clients in another order have other predictions")


def survives_missing_replies(trial: Trial) -> None:
    """Clients that were asked may not answer: go by `reply.ids`, which may be fewer than `cohort.ids`. Nothing in the
    state becomes NaN."""
    some_answer = Step(trial.everyone, trial.everyone, silent=trial.everyone[::4])
    _expect_usable(trial.play([some_answer] * 2))


def keeps_empty_clusters(trial: Trial) -> None:
    """A cluster that nobody answers for keeps its model: `mean` and `mean_by` take it as `empty`. Nothing in the state
    becomes NaN where one client alone answers."""
    all_answer, one_answers = Step(trial.everyone, trial.everyone), Step(trial.everyone, trial.everyone[-1:])
    _expect_usable(trial.play([all_answer, one_answers, all_answer]))


def survives_no_replies(trial: Trial) -> None:
    """Where nobody answers, `round` lets the NoAnswerError (or QuorumError) of `ask` through, or catches it and returns
    a state to go on from."""
    all_answer, nobody = Step(trial.everyone, trial.everyone), Step(trial.everyone, trial.everyone, trial.everyone)
    _expect_usable(trial.play([nobody, all_answer, nobody]))


def predicts_for_everyone(trial: Trial) -> None:
    """Every client has a prediction, also one that was never asked: `predictor` refers to what fits anyone (All, Best),
    or `admit` gives the clients that the state does not know their place."""
    for client, missing in trial.partial.unpredicted.items():
        raise BrokenPromiseError(f"client {client} has no prediction ({missing.reason})")


def admits_without_training(trial: Trial) -> None:
    """`admit` returns a state that knows the newcomers too. It does not change the state it is given, nor what the
    clients that are known already predict."""
    if not isinstance(trial.method, Admits):
        return
    state, clients = (
        copy.deepcopy(trial.partial.states[-1]),
        Renamed(Sequential(trial.model, trial.federation), trial.ids),
    )
    clients.memory.restore(trial.partial.memories[-1])
    before, unknown = trial.predictions(state, clients, trial.ids, 3, admitted=())
    newcomers = sorted({*unknown, trial.everyone[-1]})
    after, _ = trial.predictions(state, clients, trial.ids, 3, admitted=newcomers)
    known = [client for client in trial.everyone if client not in newcomers]
    expect(same(before[known], after[known]), "after `admit` clients that were known predict otherwise")
    expect(same(state, trial.partial.states[-1]), "`admit` changed the state it was given")


def resumes_where_it_stopped(trial: Trial) -> None:
    """A run that goes on from a checkpoint ends in the bits of one that was never interrupted: whatever is needed to go
    on is in the state, or at the clients (Fit.save, Own)."""
    saved = _saved(trial, trial.partial.states[1], trial.partial.memories[1], 1)
    resumed = trial.play(trial.comings, since=saved)
    ended, ends = pack(trial.partial.states[-1]), pack(resumed.states[-1])
    expect(same(ended, ends), "a resumed run ended in another state")
    expect(same(trial.partial.losses, resumed.losses), "clients of a resumed run have other predictions")


def engines_agree(trial: Trial) -> None:
    """The batched engine gives what the sequential one gives, up to rounding: do not rely on exact equality of numbers
    that clients computed."""
    batched = trial.play([Step(trial.everyone, trial.everyone)] * 2, engine=Batched(trial.model, trial.federation))
    close = torch.allclose(trial.full.losses, batched.losses, rtol=1e-2, atol=1e-3, equal_nan=True)
    expect(close, "clients of the batched engine have other predictions")


CHECKS: tuple[Callable[[Trial], None], ...] = (
    has_the_functions,
    is_a_frozen_dataclass,
    trains_and_predicts,
    state_can_be_saved,
    init_depends_on_its_rng_only,
    round_leaves_its_state_alone,
    same_seed_same_bits,
    allows_partial_participation,
    ids_are_ids,
    survives_missing_replies,
    keeps_empty_clusters,
    survives_no_replies,
    predicts_for_everyone,
    admits_without_training,
    resumes_where_it_stopped,
    engines_agree,
)


def _frozen(value: Any) -> bool:
    return bool(type(value).__dataclass_params__.frozen)


def _parts(state: Any) -> list[Any]:
    """The state and what it consists of."""
    if dataclasses.is_dataclass(state):
        inner = [getattr(state, f.name) for f in dataclasses.fields(state)]
    else:
        inner = list(state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ())
    return [state, *(part for value in inner for part in _parts(value))]


def _saved(trial: Trial, state: Any, memory: dict[str, Tensor], round: int) -> checkpoint.Checkpoint:
    """What a checkpoint makes of it."""
    kept = Memory()
    kept.restore(memory)
    with tempfile.TemporaryDirectory() as place:
        checkpoint.save(Path(place) / "state", state, kept, round, {})
        return checkpoint.load(Path(place) / "state", trial.init(), trial.method, {})


def _expect_usable(played: Played) -> None:
    """A state to go on from after every round, without NaN, and clients that could do what they were asked."""
    for t, state in enumerate(played.states):
        nan = any(part.is_floating_point() and bool(part.isnan().any()) for part in pack(state)[1])
        expect(not nan, f"round {t} left NaN in the state")
    expect(not played.failed, played.failed)
