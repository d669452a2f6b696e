"""What takes the place of a mean does so for every method: each hands its replies over, and knows nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest
import torch
import toys
from torch import Tensor

import coterie
from conftest import few
from coterie.clustering.averaging import mean, mean_by
from coterie.core.references import All, starts_of
from coterie.core.registry import METHODS
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient, Cohort
from coterie.core.tasks import Fitted
from coterie.engines.contract import Engine, Outcome, Visit
from coterie.layers.attack import KINDS
from coterie.layers.contract import Layer, Onward, Stack, averaging
from coterie.layers.robust import RULES
from coterie.training.ask import RoundAsk
from remote_models import THETA, Far

NO_MEAN = {"local"}  # of the catalogue: clients train alone


@dataclass
class Spy:
    """The plain mean, and a note of every time it is taken."""

    started: list[int] = field(default_factory=list)  # how many starts the server knew

    def __call__(self, labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        assert len(labels) == len(weights) == len(reply.ids)
        assert reply.start is not None
        known = starts_of(reply.start, reply.ids, reply.choice)
        self.started.append(0 if known is None else len(known))
        return mean_by(labels, replace(reply, aggregator=None), weights, empty)


class Averaged(Layer):
    """An aggregator in place of every mean."""

    key = "averaged"

    def __init__(self, aggregator: Any) -> None:
        self._aggregator = aggregator

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        outcome = onward(visit)
        return replace(outcome, replies=averaging(visit.tasks, outcome.replies, lambda _: self._aggregator))


def rounds(name: str, opened: Engine, spy: Any) -> Any:
    federation, method = toys.toy(), toys.method(name)
    state, layers = toys.fresh(method, federation), [] if spy is None else [Averaged(spy)]
    for t in range(3):
        ids = federation.roster.ids
        cohort = Cohort(ids, t, federation.roster, generator(0, Purpose.METHOD, t, 0))
        state = method.round(state, cohort, RoundAsk(Stack(opened, layers), ids, 0, t))
    return state


@pytest.mark.parametrize("name", sorted(METHODS.places))
def test_every_method_hands_its_means_over(name: str) -> None:
    """The plain mean in place of the plain mean changes no bit, and is asked for wherever a model is a mean."""
    spy = Spy()
    with toys.engine(toys.REFERENCE, toys.toy()) as plain, toys.engine(toys.REFERENCE, toys.toy()) as spied:
        toys.assert_same(rounds(name, plain, None), rounds(name, spied, spy))
    assert (len(spy.started) >= 2) == (name not in NO_MEAN)


@dataclass
class Held:
    """In place of a mean: what the cluster has already."""

    def __call__(self, labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        return empty.clone()


SIGNALS = {"directions", "psi", "updates", "means", "scale", "then"}  # what states keep to cluster by


@pytest.mark.parametrize("name", sorted(METHODS.places))
def test_no_model_of_the_server_is_a_mean_that_escapes(name: str) -> None:
    """Where no mean moves anything, every model of the server stays one of those that it began with."""
    federation, method = toys.toy(), toys.method(name)
    begun = toys.fresh(method, federation)
    with toys.engine(toys.REFERENCE, federation) as opened:
        ended = rounds(name, opened, Held())
    old, new = (_models(state) for state in (begun, ended))
    assert len(new) >= 1
    for model in new:
        assert any(torch.allclose(model, one, atol=1e-6) for one in old), name


def _models(state: Any) -> list[Tensor]:
    """The server's models in a state, which has them as tensors, somewhere in its dataclasses."""
    if isinstance(state, Tensor):
        return (
            list(state.reshape(-1, state.shape[-1]))
            if state.numel() and state.ndim and state.is_floating_point()
            else []
        )
    if not is_dataclass(state) or isinstance(state, ByClient):
        return []
    found = (_models(getattr(state, one.name)) for one in fields(state) if one.name not in SIGNALS)
    longest = [row for rows in found for row in rows]
    return [row for row in longest if len(row) == max(map(len, longest))]


def test_a_reply_brings_its_aggregator_to_the_mean() -> None:
    """Labels, weights and models reach it; a bare tensor has a plain mean, models elsewhere stay there."""
    far = Far(THETA)
    ids = torch.tensor([2, 4, 7])
    spy = Spy()
    reply = Fitted(ids, ids, torch.zeros(3), far, None, None, spy, All(THETA[0]))
    kept = torch.full((2, 2), -1.0)
    assert mean_by(torch.tensor([1, 1, 1]), reply, torch.ones(3), kept).tolist() == [[-1.0, -1.0], [3.0, 4.0]]
    assert mean(reply, torch.tensor([1, 1, 2]), kept[0]).tolist() == [3.5, 4.5]
    assert spy.started == [1, 1]
    assert far.asked == ["combined", "combined"]
    assert mean(THETA, torch.tensor([1, 1, 2]), kept[0]).tolist() == [3.5, 4.5]


# ------------------------------------------------------------------------- robust rules, and attacks, on every engine

NAMES = sorted(METHODS.places)
TURNS = {name: RULES[i % len(RULES)] for i, name in enumerate(NAMES)}  # one rule for each method, all in turn


def defended(name: str, rule: str, kind: toys.Kind) -> Any:
    federation = toys.toy()
    with toys.engine(kind, federation) as engine:
        return coterie.run(
            toys.method(name),
            federation,
            toys.linear,
            rounds=3,
            engine=engine,
            aggregator={"name": rule, "floor": 3},
            attack={"share": 0.2, "kind": "inner-product"},
        )


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(name, rule, marks=() if TURNS[name] == rule else pytest.mark.exhaustive)
        for name in NAMES
        for rule in RULES
        if TURNS[name] == rule or name in toys.HANDFUL
    ],
)
def test_every_rule_serves_every_method(name: str, rule: str) -> None:
    """The reference and the batched engine agree, and the record says what was done."""
    one, other = (defended(name, rule, kind) for kind in (toys.REFERENCE, ("batched", 1)))
    toys.assert_same(one.state, other.state, within=1e-4)
    assert one.accuracy == other.accuracy
    assert [event.layers.get("aggregator") for event in one.history] == [
        event.layers.get("aggregator") for event in other.history
    ]
    assert all("aggregator" in event.layers for event in one.history)
    assert len(one.clients.ids) == 8
    assert not set(one.clients.ids.tolist()) & set(one.attack.hostile)


@pytest.mark.parametrize("attack", few(sorted(KINDS), "gaussian", "backdoor", "colluders-as-cluster"))
def test_an_attack_is_the_same_on_every_engine(attack: str) -> None:
    """To the bit where engines round alike; batched ones round alike among themselves."""
    found: dict[str, Any] = {}
    for engine, workers in toys.ENGINES:
        result = coterie.run(
            toys.method("wecfl"),
            toys.toy(),
            toys.linear,
            rounds=2,
            engine=engine,  # type: ignore[arg-type]
            workers=workers,
            attack={"share": 0.3, "kind": attack},
        )
        rounding = "batched" if engine == "batched" else "sequential"
        toys.assert_same(found.setdefault(rounding, result).state, result.state)
        assert found[rounding].attack == result.attack
        toys.assert_same(found["sequential"].state, result.state, within=1e-5)
    plain = coterie.run(toys.method("wecfl"), toys.toy(), toys.linear, rounds=2, engine="sequential")
    assert not torch.equal(plain.state.centers, found["sequential"].state.centers)
