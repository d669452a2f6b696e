"""The methods that only the papers' tables need keep the promises of the library's, on either engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coterie
import papers
from coterie.core.registry import METHODS, NO_CODE
from coterie.data import Rotated
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.testing import check_method
from coterie.zoo import LinearModel

WRAPPED: dict[str, dict[str, Any]] = {
    "cam-authors": {"base": IFCA(k=2), "warmup": 1},
    "cam-without-global": {"base": FeSEM(k=2), "warmup": 1},
}
NAMES = sorted(METHODS.registered)


def test_they_are_found_where_papers_is_imported_and_not_listed() -> None:
    assert papers.__doc__
    assert len(NAMES) == 10
    assert not set(NAMES) & set(METHODS.places)
    assert not set(NAMES) & {entry.name for entry in METHODS.entries()}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_keeps_the_promises(name: str) -> None:
    check_method(METHODS.find(name, NO_CODE)(**WRAPPED.get(name, {})))


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_agree(name: str) -> None:
    made = METHODS.find(name, NO_CODE)(**WRAPPED.get(name, {}))
    one, other = (
        coterie.run(
            made, coterie.federate("digits", Rotated(clients=8)), LinearModel(), rounds=3, engine=engine, seed=1
        )
        for engine in ("sequential", "batched")
    )
    assert one.assignments.tolist() == other.assignments.tolist()
    for mine, theirs in zip(one.history, other.history, strict=True):
        if mine.summary is not None and theirs.summary is not None:
            assert mine.summary.accuracy == pytest.approx(theirs.summary.accuracy, abs=0.02)
    assert torch.isfinite(torch.tensor([one.summary.loss, other.summary.loss])).all()
