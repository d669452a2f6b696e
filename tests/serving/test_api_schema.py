"""Requests made up from the OpenAPI description, right ones and wrong ones: each answer is one that it describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import api_calls as calls
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import coterie
from coterie.data.federation import Federation

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


@pytest.fixture  # of each test: an application that has ended once does not begin again
def numbers(tmp_path: Path) -> Any:
    path = tmp_path / "numbers"
    calls.train(path, coterie.WeCFL(k=2, local=calls.LOCAL), calls.federation([0, 0, 1, 1]))
    return calls.app_of(path, local=False)


@pytest.fixture  # of each test: an application that has ended once does not begin again
def tables(tmp_path: Path) -> Any:
    """Two runs, one of tables with names for everything."""
    place, rng = tmp_path, np.random.default_rng(0)
    clients: list[Any] = []
    for _ in range(3):
        ward = np.where(rng.random(30) > 0.5, "north", "south")
        clients.append(({"age": rng.normal(size=30), "ward": ward}, np.where(rng.random(30) > 0.5, "yes", "no")))
    data = Federation.from_arrays(clients, names=["Ada", "Bea", "Cleo"], standardise=True)
    calls.train(place / "table", coterie.WeCFL(k=2, local=calls.LOCAL), data, 1)
    calls.train(place / "other", coterie.FedEM(k=2, local=calls.LOCAL), calls.federation([0, 1, 1]), 1)
    return calls.app_of(place / "table", place / "other", local=False)


def check_all(app: Any, examples: int, equal_lengths: bool) -> None:
    """Every operation, with so many examples of right and of wrong requests.

    A schema cannot say that there is one label for each row, nor (equal_lengths) that columns have one length: such
    requests may be refused though they fit the schema.
    """
    tried = 0
    for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
        operation = found.ok()
        may_refuse = operation.path.endswith("/assign") or (operation.method == "post" and not equal_lengths)
        for mode in schemathesis.GenerationMode:
            if mode.is_negative and operation.method == "get" and not operation.query:
                continue  # nothing about it can be wrong
            tried += check_one(operation, mode, examples, may_refuse)
    assert tried > 10


def check_one(operation: Any, mode: Any, examples: int, may_refuse: bool) -> int:
    """The number of requests that were made."""
    excluded = [schemathesis.checks.positive_data_acceptance] if may_refuse else []
    tried = 0

    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        nonlocal tried
        tried += 1
        case.call_and_validate(base_url=calls.BASE, excluded_checks=excluded)

    check()
    return tried


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_answers_are_as_described(numbers: Any, examples: int) -> None:
    check_all(numbers, examples, True)


@pytest.mark.parametrize("examples", [5, pytest.param(60, marks=pytest.mark.exhaustive)])
def test_answers_of_several_runs_are_as_described(tables: Any, examples: int) -> None:
    check_all(tables, examples, False)
