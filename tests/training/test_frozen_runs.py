"""Runs in which a part of the network is frozen: only the rest is sent and stored, on every engine to the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import coterie
from conftest import make_federation, raises
from coterie.core.codec import pack
from coterie.core.model import Model
from coterie.core.parts import Adapters, joined
from coterie.training import checkpoint
from coterie.training.config import read
from coterie.training.execute import execute
from coterie.training.tuned import Tuned
from coterie.zoo import MLP

LOCAL = coterie.Local(epochs=1, batch=4, lr=0.1)
HEAD = Tuned(MLP(hidden=(16, 16)), "head")  # 16*2 + 2 of 354
ADAPTERS = Tuned(MLP(hidden=(16, 16)), "adapters", Adapters(rank=2))


def ran(model: Any, rounds: int = 4, **more: Any) -> coterie.Result[Any]:
    return coterie.run(coterie.WeCFL(k=2, local=LOCAL), make_federation(8, 12), model, rounds=rounds, seed=3, **more)


def tensors(result: coterie.Result[Any]) -> list[torch.Tensor]:
    return pack(result.state)[1]


def same(one: coterie.Result[Any], other: coterie.Result[Any]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))
    assert torch.equal(one.clients.loss, other.clients.loss)


@pytest.mark.parametrize(("model", "size"), [(HEAD, 34), (ADAPTERS, 34 + 2 * (2 + 16) + 2 * (16 + 16))])
def test_the_same_bits_on_every_engine_and_after_a_stop(model: Tuned, size: int, tmp_path: Path) -> None:
    once = ran(model, engine="sequential", out=tmp_path / "once")
    assert once.state.centers.shape == (2, size)
    for engine in ("workers", "batched"):
        same(ran(model, engine=engine, workers=2 if engine == "workers" else None), once)
    ran(model, rounds=2, engine="sequential", out=tmp_path / "twice")  # as if stopped there
    same(ran(model, engine="sequential", out=tmp_path / "twice", resume=True), once)
    read_back = coterie.load(tmp_path / "twice")  # of which the directory says what was trained
    same(read_back, once)
    x = np.linspace(-1, 1, 8).reshape(4, 2)
    assert np.array_equal(read_back.predict(0, x), once.predict(0, x))
    largest = max(file.stat().st_size for file in (tmp_path / "once" / "checkpoints").iterdir())
    assert largest < 20_000


def test_a_configuration_says_what_is_trained_and_the_run_writes_it_down(tmp_path: Path) -> None:
    words = ["rounds=2", "model.name=mlp", "model.hidden=[8]", "model.train=adapters", "model.adapters.rank=2"]
    result = execute(read(None, [*words, "data.partition.clients=6"]), tmp_path / "a")
    assert result.model.size == 2 * (64 + 8) + 8 * 10 + 10
    text = (tmp_path / "a" / "config.yaml").read_text()
    assert "train: adapters" in text
    assert "alpha: 16.0" in text
    same(coterie.load(tmp_path / "a"), result)
    assert "frozen" in json.loads((tmp_path / "a" / "run.json").read_text())["belongs"]["model"]
    with raises("checkpoint-mismatch", match="its model is"):
        execute(
            read(tmp_path / "a" / "config.yaml", ["rounds=3", "model.adapters.rank=3"]), tmp_path / "a", resume=True
        )
    with raises("config-conflict", match="adapters: are for train: adapters"):
        execute(read(None, [*words, "model.train=head"]), tmp_path / "b")
    with raises("config-invalid-value", match=r"model\.adapters\.rank"):
        execute(read(None, [*words, "model.adapters.rank=0"]), tmp_path / "b")


def test_nothing_is_written_where_everything_is_trained(tmp_path: Path) -> None:
    execute(read(None, ["rounds=1", "data.partition.clients=4"]), tmp_path / "a")
    assert "train" not in (tmp_path / "a" / "config.yaml").read_text().replace("training", "")
    assert "frozen" not in (tmp_path / "a" / "run.json").read_text()


def test_an_exported_network_has_its_adapters_merged(tmp_path: Path) -> None:
    result = ran(ADAPTERS, rounds=2)
    written = result.export(tmp_path / "model.safetensors", cluster=0, format="safetensors")
    assert written is not None
    (file,) = tmp_path.rglob("*.safetensors")
    names = set(safetensors.torch.load_file(file))
    assert not any("down" in name or "frozen" in name for name in names)
    assert any(name.endswith("weight") for name in names)


# ----------------------------------------------------------------------------------------------- checkpoints of 0.1


def half_frozen(scale: float = 1.0) -> nn.Module:
    """A frozen layer, BatchNorm and a head: in 0.1 the vector was head and norm, the frozen layer, the statistics."""
    made = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    first = made.get_submodule("0")
    with torch.no_grad():
        for p in first.parameters():
            p.copy_(torch.linspace(-scale, scale, p.numel()).reshape(p.shape))
    first.requires_grad_(False)
    return made


def as_in_0_1(directory: Path, model: Model, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Rewrite the checkpoints of a run as 0.1 wrote them: frozen numbers inside, between weights and statistics."""
    frozen, then = joined(model.layout.outside(model.blueprint)), model.size + model.frozen_size
    said = model.description.partition(", frozen")[0].replace(f"{model.size} numbers", f"{then} numbers")
    for file in (directory / "checkpoints").iterdir():
        with safetensors.safe_open(file, framework="pt") as opened:
            header = {k: v for k, v in opened.metadata().items() if k != "crc32"}
        found = safetensors.torch.load_file(file)
        for name, t in found.items():
            if t.is_floating_point() and t.ndim and t.shape[-1] == model.size:
                inside = change(frozen).expand(*t.shape[:-1], -1)
                found[name] = torch.cat(
                    [t[..., : model.parameters], inside, t[..., model.parameters :]], -1
                ).contiguous()
        header["belongs"] = json.dumps(json.loads(header["belongs"]) | {"model": said})
        crc = str(checkpoint._checksum(header, found))
        safetensors.torch.save_file(found, file, metadata=header | {"crc32": crc})


def test_a_checkpoint_of_0_1_is_read_without_its_frozen_numbers(tmp_path: Path) -> None:
    model = Model(half_frozen)
    assert (model.parameters, model.size, model.frozen_size) == (18, 26, 12)
    whole = ran(model, out=tmp_path / "whole")
    ran(model, rounds=2, out=tmp_path / "old")
    as_in_0_1(tmp_path / "old", model, lambda frozen: frozen * (1 + 1e-6))  # averaging had rounded them
    loaded = coterie.load(tmp_path / "old", model=model)
    assert loaded.state.centers.shape == (2, 26)
    same(ran(model, out=tmp_path / "old", resume=True), whole)


def test_a_checkpoint_of_0_1_with_another_frozen_part_is_refused(tmp_path: Path) -> None:
    model = Model(half_frozen)
    ran(model, rounds=2, out=tmp_path / "old")
    as_in_0_1(tmp_path / "old", model, lambda frozen: frozen + 0.1)
    with raises("checkpoint-mismatch", match="frozen parameters that are not those of this network"):
        coterie.load(tmp_path / "old", model=model)


def test_a_run_does_not_go_on_with_another_frozen_part(tmp_path: Path) -> None:
    ran(Model(half_frozen), rounds=2, out=tmp_path / "run")
    with raises("checkpoint-mismatch", match="its model is"):
        ran(Model(partial(half_frozen, 2.0)), out=tmp_path / "run", resume=True)
