"""Clients without an update join no cluster by angle, and too few answers found no clusters, in any method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scripted import LOCAL, ScriptedAsk, by_client, fitted, make_cohort, make_roster, scored, table, variant

from conftest import raises
from coterie.methods.cfl import CFL, Tree
from coterie.methods.composed import Composed, Kit
from coterie.methods.fesem import FeSEM
from coterie.methods.flhc import FLHC, Hierarchy
from coterie.methods.hard_clusters import Clusters
from coterie.methods.wecfl import WeCFL

ROSTER = make_roster({3: 30, 7: 10, 11: 60, 19: 20})
CENTERS, START, FEATURES = torch.tensor([[5.0, 1.0], [1.0, 9.0]]), torch.tensor([1.0, 1.0]), torch.arange(2)
LABELS = by_client({3: 0, 7: 1})
ZERO, ONE, SIDES = torch.tensor([0]), torch.tensor([1]), torch.eye(2)
STATES: dict[str, tuple[Any, Any]] = {
    "cfl": (CFL(local=LOCAL), Tree(CENTERS, LABELS, FEATURES, ZERO, ONE, START[None], SIDES[None])),
    "fl+hc": (FLHC(k=2, metric="cosine", local=LOCAL), Hierarchy(CENTERS, LABELS, FEATURES, START, SIDES)),
    "composed": (
        Composed(k=2, representation="gradient", distance="cosine", local=LOCAL),
        Kit(CENTERS, LABELS, FEATURES, SIDES, START, 0, False),
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_newcomer_that_did_not_move_goes_by_loss(name: str) -> None:
    """11 and 19 stay at the start; 11 fits the second model better, 19 is gone when it is asked."""
    method, state = STATES[name]
    ask = ScriptedAsk(fitted({11: [1.0, 1.0], 19: [1.0, 1.0]}), scored({11: [0.9, 0.1]}))
    state = method.admit(state, make_cohort([11, 19], ROSTER, round=3), ask)
    assert table(state.labels) == {3: 0, 7: 1, 11: 1}


FRESH = torch.tensor([[1.0, 1.0]])
FIRST: dict[str, tuple[Any, Any]] = {
    "fesem": (FeSEM(k=3, local=LOCAL), Clusters(FRESH, by_client({}), FEATURES)),
    "wecfl": (variant(WeCFL, k=3, kmeans="fresh", local=LOCAL), Clusters(FRESH, by_client({}), FEATURES)),
    "fl+hc": (FLHC(k=3, warmup=0, local=LOCAL), Hierarchy(FRESH, by_client({}), FEATURES)),
}


@pytest.mark.parametrize("name", FIRST)
def test_too_few_answers_make_no_first_clustering(name: str) -> None:
    method, state = FIRST[name]
    reply = fitted({3: [2.0, 1.0], 7: [1.0, 2.0]}, choice=[0, 0])
    with raises("quorum", match="2 clients answered, too few to find 3 clusters"):
        method.round(state, make_cohort([3, 7, 11, 19], ROSTER), ScriptedAsk(reply))


def test_a_kit_that_clusters_once_waits_for_enough_answers() -> None:
    kit: Any = Composed(k=3, when="once", local=LOCAL)
    state = Kit(FRESH, by_client({}), FEATURES, FRESH[:0, :0], FRESH[0], 0, False)
    reply = fitted({3: [2.0, 1.0], 7: [1.0, 2.0]}, choice=[0, 0])
    state = kit.round(state, make_cohort([3, 7, 11, 19], ROSTER), ScriptedAsk(reply))
    assert not state.done
    reply = fitted({3: [2.0, 1.0], 7: [1.0, 2.0], 11: [9.0, 9.0]}, choice=[0, 0, 0])
    state = kit.round(state, make_cohort([3, 7, 11, 19], ROSTER), ScriptedAsk(reply))
    assert state.done
    assert len(state.centers) == 3
