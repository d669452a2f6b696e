"""Every method on data that changes by round: on every engine the same, and after an interruption to the same bits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import toys

import coterie
from conftest import PAPERS, few
from coterie.data import Drift
from coterie.data.federation import Federation
from coterie.training.events import RoundDone

KINDS = [kind for kind in get_args(get_type_hints(Drift)["kind"]) if kind != "time"]  # for tables with a time column
DAILY = ("fedavg", "halves", "clove", "fedrc", "feddrift", "fielding", "flux", "fedrep", "composed", "oracle")
ROUNDS, AT = 6, 3


@functools.cache
def drifting(kind: Any = "staggered") -> Federation:
    return Drift(kind, at=AT, every=2, changes=2)(toys.toy(), seed=1)


def run(name: str, kind: toys.Kind = toys.REFERENCE, **more: Any) -> tuple[Any, Any]:
    """The result, and what clients keep."""
    data = more.pop("data", drifting())
    with toys.engine(kind, data) as engine:
        options = {"rounds": ROUNDS, "participation": 0.7, "seed": 1} | more
        result = coterie.run(toys.method(name), data, model=toys.linear, engine=engine, **options)
        return result, engine.memory.tensors()


@pytest.mark.parametrize("name", few(PAPERS, *DAILY))
@pytest.mark.parametrize("kind", few(toys.PARALLEL, ("batched", 1)), ids=str)
def test_all_engines_see_the_data_of_the_round(kind: toys.Kind, name: str) -> None:
    (mine, kept), (reference, expected) = run(name, kind), run(name)
    toys.assert_same(mine.state, reference.state, within=1e-5)
    toys.assert_same(kept, expected, within=1e-5)
    np.testing.assert_array_equal(mine.assignments, reference.assignments)
    assert [e.answered for e in mine.history] == [e.answered for e in reference.history]
    assert [e.summary.ari for e in mine.history] == [e.summary.ari for e in reference.history]


@pytest.mark.parametrize("name", few(PAPERS, *DAILY))
@pytest.mark.parametrize("change", few(KINDS, "staggered"))
def test_interrupted_in_mid_drift_it_goes_on_to_the_same_bits(change: str, name: str, tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, RoundDone) and event.round == AT + 1:  # between the two changes
            raise KeyboardInterrupt

    options: dict[str, Any] = {"data": drifting(change), "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        run(name, out=tmp_path / "run", listeners=[stop], **options)
    resumed, kept = run(name, out=tmp_path / "run", resume=True, **options)
    whole, expected = run(name, **options)
    assert len(resumed.history) < ROUNDS
    toys.assert_same(resumed.state, whole.state)
    toys.assert_same(kept, expected)
    toys.assert_same(resumed.clients, whole.clients)


def test_clients_train_on_other_data_after_a_change() -> None:
    """Otherwise nothing here would be tested: from the round of the change on, and not before, models differ."""
    changed, same = (run("fedavg", data=data, rounds=AT)[0] for data in (drifting(), toys.toy()))
    before = [run("fedavg", data=data, rounds=AT - 1)[0].state for data in (drifting(), toys.toy())]
    toys.assert_same(*before)
    assert not np.array_equal(changed.state.numpy(), same.state.numpy())
