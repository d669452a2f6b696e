"""What privacy allows but should not pass over in silence, and all that stands against it at once."""

from __future__ import annotations

import pytest

import coterie
from conftest import raises
from coterie.core.errors import CoterieWarning
from coterie.core.local import Local
from coterie.layers.privacy import declared, planned
from coterie.training.build import as_model
from coterie.training.settings import Settings

pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
LOCAL = Local(epochs=1, lr=0.1)


def plan(privacy: coterie.Privacy) -> None:
    clients = coterie.federate("digits", "rotated")  # 40
    planned(coterie.FedAvg(local=LOCAL), as_model("linear", clients), clients, Settings(rounds=1, privacy=privacy))


def test_an_epsilon_that_is_not_reached_says_why() -> None:
    with pytest.warns(CoterieWarning, match=r"privacy\.epsilon: 500 would need so little noise .* of about 284\."):
        plan(coterie.Privacy(epsilon=500))


def test_all_obstacles_are_named_at_once_and_the_line_works() -> None:
    auto = Local(epochs=1, lr="auto")
    both = r"trial=True is refused: .*; local\.lr=auto is refused: .* Write method\.trial=false local\.lr=0\.1 \("
    with raises("privacy-unaccounted", match=both):
        declared(coterie.Halves(local=auto))
    with raises("privacy-unaccounted", match=r"Write method\.k=4 local\.lr=0\.1$"):
        declared(coterie.IFCA(k="auto", local=auto))
    assert declared(coterie.Halves(trial=False, local=LOCAL)).sketches
