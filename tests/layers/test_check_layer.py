"""`check_layer` passes what keeps the promises, and names the one that is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from conftest import raises
from coterie.core.tasks import Fitted
from coterie.engines.contract import Missing, Outcome, Visit
from coterie.layers import chosen
from coterie.layers.contract import Layer, Onward, Round, Setup
from coterie.testing import check_layer
from coterie.training.settings import Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.3},
        {"aggregator": "geometric-median"},
        {"server_optimizer": "momentum"},
        {"attack": {"kind": "sign-flip"}},
        {"update_bound": 3.0},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_layers_of_the_library_keep_the_promises(settings: dict[str, Any]) -> None:
    made = Settings(**{"quorum": 0.0} | settings)
    for key in [layer.key for layer in chosen(made)]:
        check_layer(lambda key=key: next(layer for layer in chosen(made) if layer.key == key))  # type: ignore[misc]


class Halved(Layer):
    """Every update is halved."""

    key = "halved"

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        outcome = onward(visit)
        return replace(outcome, replies=tuple(self.halved(reply) for reply in outcome.replies))

    def halved(self, reply: Any) -> Any:
        return replace(reply, sent=reply.models / 2) if isinstance(reply, Fitted) and len(reply.ids) else reply


def test_a_good_one_passes() -> None:
    check_layer(Halved)


class Looks(Halved):
    def halved(self, reply: Any) -> Any:
        sent: Any = getattr(reply, "sent", None)
        return replace(reply, sent=sent * 0.5) if isinstance(reply, Fitted) and len(reply.ids) else reply


class Empty(Halved):
    def halved(self, reply: Any) -> Any:
        return replace(reply, sent=reply.models + reply.models[0])


class Nothing(Layer):
    key = "nothing"

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        onward(visit)
        return None  # type: ignore[return-value]


class Both(Layer):
    key = "both"

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        outcome = onward(visit)
        return replace(outcome, missing=tuple(Missing(int(c), "gone") for c in outcome.replies[0].ids[:1]))


class Forgets(Halved):
    """Halves more from round to round, and does not say so in `pack`."""

    def __init__(self) -> None:
        self.rounds = 1

    def halved(self, reply: Any) -> Any:
        return replace(reply, sent=reply.models / self.rounds) if len(reply.ids) else reply

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        self.rounds += 1
        return {}


class Says(Layer):
    key = "says"

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        return {"state": after}


class Prepares(Layer):
    key = "prepares"

    def prepare(self, setup: Setup) -> Setup:
        return None  # type: ignore[return-value]


class Nameless(Layer):
    pass


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Looks, "visit: TypeError: .*_Far"),
        (Empty, "a visit to nobody: CoterieError"),
        (Nothing, "visit must return an Outcome"),
        (Both, "is missing and has a reply"),
        (Forgets, "pack all state"),
        (Says, "commit: TypeError"),
        (Prepares, "prepare must return the setup"),
        (Nameless, "give it a name"),
    ],
)
def test_what_is_broken_is_named(make: Callable[[], Layer], text: str) -> None:
    with raises("layer-check-failed", match=text):
        check_layer(make)


def test_the_numbers_of_a_layer_by_hand() -> None:
    """Halved: (2, 4) becomes (1, 2)."""
    reply = Fitted(torch.tensor([7]), torch.tensor([1]), torch.zeros(1), torch.tensor([[2.0, 4.0]]))
    assert Halved().halved(reply).models.tolist() == [[1.0, 2.0]]
