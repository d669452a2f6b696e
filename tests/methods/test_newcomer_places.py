"""Newcomers of FeSEM, WeCFL and what is built on them find the cluster of their kind: digits, four hidden clusters.

A local epoch from the mean of the centers is too little to tell clients apart: joining the center nearest to what it
gives puts newcomers of different kinds together (test_the_nearest_center_is_not_enough).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from scripted import variant
from sklearn.metrics import adjusted_rand_score

import coterie
from coterie import Composed, FeSEM, Local, WeCFL
from coterie.data.federation import Federation
from coterie.data.partitions.by_cluster import ClusterDirichlet, Pathological, Rotated, Shifted
from coterie.data.sets.images import Digits
from coterie.methods.cam import CAM

LOCAL = Local(epochs=1, batch=16, lr=0.1)
FEW: dict[str, Any] = {"rounds": 20, "participation": 4}  # the first clustering sees 12 of 19 clients
KINDS: dict[str, Any] = {
    "rotated": Rotated(clients=32),
    "shifted": Shifted(clients=32),
    "class groups": Pathological(clients=32),
    "dirichlet": ClusterDirichlet(clients=32, clusters=4),
}
METHODS: dict[str, Any] = {
    "fesem": FeSEM(k=4, local=LOCAL),
    "wecfl": WeCFL(k=4, local=LOCAL),
    "wecfl-cam": CAM(base=WeCFL(k=4, local=LOCAL), warmup=2, local=LOCAL),
    "composed": Composed(k=4, when="once", local=LOCAL),
}


@cache
def federation(kind: str) -> Federation:
    return coterie.federate(Digits(), KINDS[kind], seed=1)


def found(method: Any, kind: str, rounds: int = 10, **settings: Any) -> tuple[float, float]:
    """How well members and newcomers are told apart: the adjusted Rand index of each."""
    data = federation(kind)
    result = coterie.run(
        method, data, "linear", rounds=rounds, newcomers=0.4, evaluate_every=rounds, engine="batched", **settings
    )
    assert data.truth is not None
    assert result.newcomers is not None
    parts = (result.clients, result.newcomers.clients)
    members, newcomers = (adjusted_rand_score(data.truth[part.ids.numpy()], part.choice) for part in parts)
    return members, newcomers


@pytest.mark.covering
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_newcomers_join_their_kind(name: str, kind: str) -> None:
    _, newcomers = found(METHODS[name], kind)
    assert newcomers >= 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_clients_first_met_in_a_later_round_join_their_kind(kind: str) -> None:
    members, newcomers = found(WeCFL(k=4, alpha=3, local=LOCAL), kind, **FEW)
    assert members >= 0.9
    assert newcomers >= 0.9


def test_the_nearest_center_is_not_enough() -> None:
    members, newcomers = found(variant(WeCFL, k=4, alpha=3, join="nearest", local=LOCAL), "rotated", **FEW)
    assert members < 0.9
    assert newcomers < 0.1
