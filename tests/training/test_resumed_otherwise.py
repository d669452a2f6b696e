"""A run that is resumed with other privacy, another precision or another device: refused with the reason, or said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises

RNG = np.random.default_rng(0)
CLIENTS = coterie.Federation.from_arrays(
    [(RNG.normal(size=(12, 3)), RNG.integers(0, 2, 12)) for _ in range(4)], standardise=False
)


def run(path: Path, **settings: Any) -> coterie.Result[Any]:
    made: dict[str, Any] = {"rounds": 2, "checkpoint_every": 1, "engine": "sequential"}
    return coterie.run("fedavg", CLIENTS, "linear", out=path, **(made | settings))


@pytest.mark.parametrize(("began", "goes_on"), [("bf16", "float32"), ("float32", "bf16")])
def test_another_precision_is_refused(began: Any, goes_on: Any, tmp_path: Path) -> None:
    run(tmp_path / "a", precision=began)
    with raises("checkpoint-mismatch", match=f"began with precision={began} .* write precision={began}"):
        run(tmp_path / "a", precision=goes_on, rounds=3, resume=True)
    assert run(tmp_path / "a", precision=began, rounds=3, resume=True).history[-1].round == 3


def test_a_run_goes_on_in_its_precision(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", precision="bf16", rounds=3)
    run(tmp_path / "parts", precision="bf16")
    parts = coterie.go_on(tmp_path / "parts", more=1, federation=CLIENTS, engine="sequential")
    assert torch.equal(parts.state, whole.state)
    assert not torch.equal(parts.state, run(tmp_path / "plain", rounds=3).state)


def test_a_run_of_before_precision_was_noted_goes_on(tmp_path: Path) -> None:
    run(tmp_path / "a")
    about = json.loads((tmp_path / "a" / "run.json").read_text())
    del about["precision"]
    (tmp_path / "a" / "run.json").write_text(json.dumps(about))
    assert coterie.go_on(tmp_path / "a", more=1, federation=CLIENTS).history[-1].round == 3


def test_another_device_is_said(tmp_path: Path) -> None:
    run(tmp_path / "a")
    file = tmp_path / "a" / "run.json"
    file.write_text(file.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    with pytest.warns(UserWarning, match="began on the device 'cuda' and continues on 'cpu'"):
        run(tmp_path / "a", rounds=3, resume=True)


@pytest.mark.parametrize(
    ("began", "changed", "why"),
    [
        (
            coterie.Privacy(noise=1.0),
            {"privacy": coterie.Privacy(noise=2.0)},
            "its privacy is noise=1.0, this run's is noise=2.0; .* cannot be made more or less private",
        ),
        (
            coterie.Privacy(noise=1.0),
            {"privacy": None},
            "its privacy is epsilon=None, delta=1e-05, .*, this run's is not set; .* made more or less private",
        ),
        (None, {"privacy": coterie.Privacy(noise=1.0)}, "cannot be made more or less private"),
        (
            coterie.Privacy(noise=1.0),
            {"rounds": 3},
            r"this run has rounds=2, not 3: .* for its number of rounds, so leave the change \(--more, rounds\) out",
        ),
    ],
)
def test_other_privacy_is_refused_with_the_reason(began: Any, changed: Any, why: str, tmp_path: Path) -> None:
    run(tmp_path / "a", privacy=began)
    with raises("checkpoint-mismatch", match=why):
        run(tmp_path / "a", **({"privacy": began} | changed), resume=True)


def test_a_changed_option_of_a_group_is_said_as_it_is_written(tmp_path: Path) -> None:
    run(tmp_path / "a", aggregator="median", attack={"kind": "alie"})
    with raises("checkpoint-mismatch", match="its aggregator is name='median', this run's is name='krum';"):
        run(tmp_path / "a", rounds=3, resume=True, aggregator="krum", attack={"kind": "alie"})
    with raises("checkpoint-mismatch", match="its attack is kind='alie', this run's is kind='nan';"):
        run(tmp_path / "a", rounds=3, resume=True, aggregator="median", attack={"kind": "nan"})
