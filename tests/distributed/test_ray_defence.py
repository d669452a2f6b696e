"""Attacks, robust rules and privacy on Ray: the bits of the sequential engine, and the same record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie

ray = pytest.importorskip("ray")
sys.path.insert(0, str(Path(__file__).parent.parent / "conformance"))

import toys  # noqa: E402

from coterie.engines.ray.engine import join  # noqa: E402

pytestmark = pytest.mark.distributed

WHERE: tuple[dict[str, Any], ...] = ({"engine": "sequential"}, {"engine": "ray", "workers": 1})
CASES = (
    ("wecfl", "krum", "alie"),
    ("fedrep", "geometric-median", "sign-flip"),
    ("stocfl", "median", "gaussian"),
    ("ifca", "trimmed-mean", "colluders-as-cluster"),
    ("halves", "centered-clipping", "nan"),
    ("feddrift", "multi-krum", "backdoor"),
    ("flux", "norm-clip", "label-flip"),
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    assert join(None, 2)
    yield
    ray.shutdown()


def both(name: str, **settings: Any) -> tuple[Any, Any]:
    one, other = (
        coterie.run(toys.method(name), toys.toy(), toys.linear, rounds=2, **where, **settings) for where in WHERE
    )
    toys.assert_same(one.state, other.state)
    return one, other


@pytest.mark.parametrize(("name", "rule", "kind"), CASES)
def test_rules_and_attacks_do_the_same(name: str, rule: str, kind: str) -> None:
    one, other = both(name, aggregator={"name": rule, "floor": 3}, attack={"share": 0.2, "kind": kind})
    assert [event.layers.get("aggregator") for event in one.history] == [
        event.layers.get("aggregator") for event in other.history
    ]
    assert all("aggregator" in event.layers for event in one.history)
    assert one.attack == other.attack


def test_privacy_draws_the_same_noise() -> None:
    one, other = both("ifca", privacy=coterie.Privacy(noise=1.0, smallest=0.0))
    assert one.privacy == other.privacy
