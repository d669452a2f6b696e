"""A model is told when it is no better than always saying the commonest class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import CoterieWarning
from coterie.core.local import Local
from coterie.core.tasks import Evaluated
from coterie.training import warnings as run_warnings
from coterie.training.settings import Settings
from coterie.training.warnings import commonest, only_class

LOCAL = Local(epochs=10, batch=10, lr=0.1)


def clients(labels: Any, learnable: bool = False) -> list[Any]:
    """Six clients whose labels follow from the inputs or do not."""
    out = []
    for client in range(6):
        rng = np.random.default_rng(client)
        x = rng.normal(size=(100, 3)).astype(np.float32)
        y = np.array([labels(rng, row) for row in x])
        out.append((np.where(y[:, None] > 0, x + 2, x - 2) if learnable else 0 * x, y))
    return out


def mostly_zero(rng: Any, _: Any) -> int:
    return int(rng.random() < 0.3)


def test_by_hand() -> None:
    x = np.zeros((4, 1), np.float32)
    parts: list[Any] = [(x, [0, 0, 0, 1], x[:2], [0, 1]), (x, [0, 1, 1, 0], x[:3], [1, 1, 0])]
    data = coterie.Federation.from_arrays([tuple(map(np.asarray, part)) for part in parts], standardise=False)
    column = torch.tensor([0.0, 0.0])
    reply = Evaluated(torch.tensor([0, 1]), torch.tensor([2, 3]), column, column, column)
    found = commonest(data, reply, Settings(), "test")
    assert found is not None
    assert (found.label, found.alone) == ("0", False)
    assert found.accuracy == pytest.approx(2 / 5)
    equal = commonest(data, reply, Settings(weigh_clients="equal"), "test")
    assert equal is not None
    assert equal.accuracy == pytest.approx((1 / 2 + 1 / 3) / 2)
    one = Evaluated(torch.tensor([1]), torch.tensor([3]), column[:1], column[:1], column[:1])
    alone = commonest(data, one, Settings(), "test")
    assert alone is not None
    assert alone.accuracy == pytest.approx(1 / 3)


def test_a_model_that_has_learnt_nothing_says_so_and_one_that_has_does_not(tmp_path: Path) -> None:
    nothing = coterie.run(coterie.FedAvg(local=LOCAL), clients(mostly_zero), "linear", rounds=2, out=tmp_path / "a")
    (said,) = nothing.warnings
    assert "is no better than always saying '0', the commonest class (" in said
    assert run_warnings.read(tmp_path / "a") == nothing.warnings
    learnt = coterie.run(coterie.FedAvg(local=LOCAL), clients(mostly_zero, learnable=True), "linear", rounds=2)
    assert learnt.warnings == ()


def test_labels_that_are_all_the_same_are_said_before_and_after() -> None:
    same = coterie.Federation.from_arrays(clients(lambda *_: 1), standardise=False)
    assert only_class(same) == "1"
    (said,) = coterie.run(coterie.FedAvg(local=LOCAL), same, "linear", rounds=1).warnings
    assert said.startswith("all labels are '1': there is nothing to learn, and an accuracy of 100.0% says nothing")
    with pytest.warns(CoterieWarning, match="all labels are '1', so clients cannot differ"):
        found = coterie.inspect(same, "linear", local=LOCAL, steps=(1,))
    assert "any multiple" not in str(found)
