"""A personal section around every method that gives each client one model: trouble, newcomers, an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from torch import nn

import coterie
from conftest import PAPERS, few, raises
from coterie.data.federation import Samples
from coterie.methods.personal import Personalised
from coterie.training.events import RoundDone

# Models that are kept at clients, mixed or added.
SEVERAL = ("halves", "local", "ditto", "fedavg+", "fedprox+", "fedem", "fedrc", "fedsoft")
REFUSED = [name for name in PAPERS if name in SEVERAL or "cam" in name]
OWN = ("fedper", "fedrep", "fedbn", "personal", "ifca-personal")  # which keep a section already
BASES = [name for name in PAPERS if name not in (*REFUSED, *OWN)]
DAILY = ("ifca", "clove", "feddrift", "flux", "fielding", "cfl", "stocfl")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def third_is_nan(client: int, split: str, taken: Samples) -> Samples:
    x, y = taken
    return (x * torch.nan, y) if client == 3 and split == "train" else taken


def run(name: str, federation: Any = None, in_turn: int = 0, **more: Any) -> Any:
    method = Personalised(toys.method(name), section="head", head_epochs=in_turn, tune=1)
    clients = toys.toy() if federation is None else federation
    options: dict[str, Any] = {"rounds": 4, "seed": 1, "engine": "batched"} | more
    return coterie.run(method, clients, model=mlp, **options)


@pytest.mark.parametrize("name", few(BASES, *DAILY))
@pytest.mark.parametrize("in_turn", few([0, 2], 0))
def test_clients_in_trouble_are_left_out_and_newcomers_have_a_place(in_turn: int, name: str) -> None:
    hurt = run(name, toys.faulty(third_is_nan), in_turn)
    assert all([m.client for m in event.missing] == [3] for event in hurt.history)
    assert torch.isfinite(hurt.clients.loss).all()
    lost = run(name, in_turn=in_turn, dropout=0.4, quorum=0)
    assert sum(len(event.missing) for event in lost.history) > 4
    late = run(name, in_turn=in_turn, newcomers=0.3)
    assert late.newcomers is not None
    assert len(late.newcomers.clients.ids) == 3
    assert torch.isfinite(late.newcomers.clients.loss).all()


@pytest.mark.parametrize("name", few(BASES, *DAILY))
def test_an_interrupted_run_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"participation": 0.6, "engine": "sequential"}
    with pytest.raises(KeyboardInterrupt):
        run(name, out=tmp_path / "run", checkpoint_every=1, listeners=[stop], **options)
    resumed = run(name, out=tmp_path / "run", checkpoint_every=1, resume=True, **options)
    whole = run(name, **options)
    assert len(resumed.history) < 4
    toys.assert_same(resumed.state, whole.state)
    toys.assert_same(resumed.clients, whole.clients)


@pytest.mark.parametrize("name", few(REFUSED, "fedem", "halves"))
def test_methods_of_several_models_are_refused(name: str) -> None:
    with raises("method-invalid", match="gives each client one of the server's models"):
        run(name)


@pytest.mark.parametrize("name", OWN)
def test_methods_that_keep_a_section_themselves_are_refused(name: str) -> None:
    with raises("method-invalid", match="keeps a section of the model with each client itself"):
        run(name)
