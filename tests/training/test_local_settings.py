"""A Local that a method is given in part (psi, pretrain) is made whole by the run's `local`, not by defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from conftest import raises
from coterie import Local
from coterie.training.build import build_method, method_and_model
from coterie.training.config import read

RUN = ["local.epochs=3", "local.batch=8", "local.lr=0.03", "local.momentum=0.9"]
RUNS_LOCAL = Local(epochs=3, batch=8, lr=0.03, momentum=0.9)


def method(*words: str, base: Any = None) -> Any:
    return build_method(read(None, [*RUN, *words], base=base))


@pytest.mark.parametrize(("name", "key"), [("fedgroup", "pretrain"), ("fedgrouprox", "pretrain"), ("stocfl", "psi")])
def test_what_is_left_out_is_the_runs(name: str, key: str) -> None:
    made = method(f"method.name={name}", f"method.{key}.steps=50")
    assert getattr(made, key) == Local(steps=50, batch=8, lr=0.03, momentum=0.9)  # steps replace epochs
    assert made.local == RUNS_LOCAL
    made = method(f"method.name={name}", f"method.{key}.lr=0.5")
    assert getattr(made, key) == dataclasses.replace(RUNS_LOCAL, lr=0.5)
    assert getattr(method(f"method.name={name}"), key) is None


def test_a_methods_own_local_comes_before_the_runs() -> None:
    made = method("method.name=fedgroup", "method.local.lr=0.2", "method.pretrain.steps=50")
    assert made.local == dataclasses.replace(RUNS_LOCAL, lr=0.2)
    assert made.pretrain == Local(steps=50, batch=8, lr=0.2, momentum=0.9)


def test_below_a_wrapper_too() -> None:
    made = method("method.name=cam", "method.base.name=stocfl", "method.base.psi.epochs=10")
    assert made.base.psi == dataclasses.replace(RUNS_LOCAL, epochs=10)
    made = method("method.name=fedgroup-cam", "method.base.pretrain.steps=5")
    assert made.base.pretrain == Local(steps=5, batch=8, lr=0.03, momentum=0.9)
    assert made.base.local == RUNS_LOCAL


def test_what_was_written_out_whole_is_read_as_it_was() -> None:
    """A run directory names everything; one epoch, the default, is neither epochs nor steps there."""
    config = read(None, [*RUN, "method.name=stocfl"])
    whole = dataclasses.replace(build_method(config), psi=Local(batch=16))  # type: ignore[type-var]
    tree = config.dump() | {"method": method_and_model(config, whole)["method"]}
    assert build_method(read(None, base=tree)) == whole


def test_a_wrong_key_is_told() -> None:
    with raises("config-unknown-key"):
        method("method.name=stocfl", "method.psi.step=4")
