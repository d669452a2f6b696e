"""What first users met: frozen parts of a network of one's own, losses that do not fit, an attack that is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from conftest import raises
from coterie.core.errors import CoterieError
from coterie.training.build import named_model

CLIENTS = [(np.random.default_rng(i).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2) for i in range(4)]


def test_what_is_frozen_of_a_network_by_name_is_the_same_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is another state of torch's generator."""
    code = "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))\n"
    (tmp_path / "own_net.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    data = coterie.Federation.from_arrays(CLIENTS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one = named_model("own_net:net", {"train": "head"}, data)
        torch.manual_seed(2)
        other = named_model("own_net:net", {"train": "head"}, data)
        assert one.frozen == other.frozen
        assert one.size == 4 * 2 + 2
        draws = [m.init(np.random.default_rng(0)) for m in (one, other)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], one.init(np.random.default_rng(1)))


class Two(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("loss", "code"), [("mse", "model-invalid"), ("mae", "model-shape"), ("multilabel", "model-shape")]
)
def test_losses_that_do_not_fit_classes_are_refused_before_a_round(loss: str, code: str) -> None:
    with raises(code):
        coterie.run("fedavg", CLIENTS, coterie.Tuned(Two, loss=loss), rounds=1)


def test_an_attack_is_told_of_a_run_that_was_read_back(tmp_path: Path) -> None:
    attack = {"share": 0.25, "kind": "sign-flip"}
    result = coterie.run("fedavg", CLIENTS, "linear", rounds=1, attack=attack, out=tmp_path / "a")
    assert result.attack is not None
    assert coterie.load(tmp_path / "a").attack == result.attack


def test_an_attacker_that_is_no_function_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_attack.py").write_text("number = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CoterieError, match="is a int, not a function"):
        coterie.Attack(share=0.25, kind="own_attack:number").attacker()
