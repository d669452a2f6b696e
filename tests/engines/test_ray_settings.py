"""What can be said of the Ray engine without Ray."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from conftest import raises
from coterie.engines.ray.engine import join
from coterie.training.config import read


def test_an_address_is_that_of_a_ray_cluster() -> None:
    config = read(None, ["engine=ray", "engine.address=10.0.0.1:6379", "engine.workers=8"])
    assert (config.engine.name, config.engine.address, config.engine.workers) == ("ray", "10.0.0.1:6379", 8)
    assert config.dump()["engine"] == {"name": "ray", "workers": 8, "address": "10.0.0.1:6379"}
    with raises("config-invalid-value", match=r"engine: address .* 'workers' has none; write engine.name=ray"):
        read(None, ["engine=workers", "engine.address=10.0.0.1:6379"])


def test_an_address_that_needs_no_machine_of_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with raises("engine-unreachable", match=r"engine.address: 'ray://1.2.3.4:10001' .* as in 10.0.0.1:6379"):
        join("ray://1.2.3.4:10001", 1)
    monkeypatch.setenv("RAY_ADDRESS", "http://1.2.3.4:8265")
    with raises("engine-unreachable", match=r"engine.address: 'http://1.2.3.4:8265'"):
        join("auto", 1)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def none(name: str, *rest: Any) -> Any:
        return None if name == "ray" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", none)
    with raises("extra-missing", match=r"pip install 'coterie\[ray\]'"):
        join(None, 1)
