"""Small trained runs to export: every method on inputs of every zoo model."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import coterie
from coterie import Federation, Local, zoo
from coterie.core.registry import METHODS, NO_CODE
from coterie.data.federation import Domain, Ragged
from coterie.data.scale import Scale
from coterie.methods.contract import Method
from coterie.methods.fesem import FeSEM
from coterie.training.result import Result
from coterie.zoo import Architecture

CLIENTS, SAMPLES = 4, 10
LOCAL = Local(steps=2, batch=4, lr=0.05)
WORDS = 12
MODELS: Mapping[str, tuple[Architecture, tuple[int, ...]]] = {
    "linear": (zoo.LinearModel(), (3,)),
    "mlp": (zoo.MLP(hidden=(5,)), (3,)),
    "cnn": (zoo.CNN(channels=(2, 3)), (1, 8, 8)),
    "lenet": (zoo.LeNet(), (1, 16, 16)),
    "cnn1d": (zoo.CNN1D(channels=(2, 3), kernel=3, hidden=4), (2, 12)),
    "lstm": (zoo.LSTM(vocabulary=WORDS, embedding=3, hidden=4, dense=3), (5,)),
}
TRUTH = tuple(client % 2 for client in range(CLIENTS))


def method(name: str, local: Local = LOCAL) -> Method[Any]:
    """A method of the catalogue, with two clusters where it takes a number, that has warmed up after one round."""
    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params: dict[str, Any] = {n: v for n, v in {"local": local, "k": 2, "warmup": 1}.items() if n in fields}
    if "base" in fields:
        inner = fields["base"].default
        named = [n for n in METHODS.places if METHODS.find(n, NO_CODE) is type(inner)]
        params["base"] = method(named[0] if named else "wecfl", local)
        if "section" in fields:
            params["section"] = ("*bias",)  # a part of every model: the head of a single layer is all of it
    if issubclass(METHODS.find(name, NO_CODE), FeSEM):
        params["alpha"] = 0
    made: Method[Any] = METHODS.build(name, params, NO_CODE)
    return made


def inputs(model: str, samples: int, seed: int = 0) -> Tensor:
    """Samples as they are stored: bytes of images, words, or numbers far from 0."""
    _, shape = MODELS[model]
    rng = np.random.default_rng(seed)
    if model == "lstm":
        return torch.from_numpy(rng.integers(0, WORDS, (samples, *shape)))
    if len(shape) == 3:
        return torch.from_numpy(rng.integers(0, 256, (samples, *shape), dtype=np.uint8))
    return torch.from_numpy(rng.normal(20, 5, (samples, *shape))).float()


def federation(model: str) -> Federation:
    """Four clients in two clusters that label alike samples differently."""
    _, shape = MODELS[model]
    x = inputs(model, CLIENTS * SAMPLES)
    large = x.double().flatten(1).mean(1)
    owner = np.repeat(np.arange(CLIENTS), SAMPLES)
    y = ((large > large.median()).numpy() != (owner % 2 == 1)).astype(np.int64)
    scale = None if model == "lstm" else Scale(255.0, 0.5, 0.25) if len(shape) == 3 else Scale(1.0, 20.0, 5.0)
    rows = [np.flatnonzero(owner == client) for client in range(CLIENTS)]
    return Federation(
        (Domain(x, torch.from_numpy(y), scale),),
        *(Ragged.of([row[3:] for row in rows]), Ragged.of([row[:3] for row in rows])),
        outputs=2,
        truth=np.array(TRUTH),
        groups=tuple("ab"[side] for side in TRUTH),
    )


@functools.cache
def trained(name: str, model: str) -> Result[Any]:
    """Two rounds of a method with a zoo model."""
    architecture, _ = MODELS[model]
    result: Result[Any] = coterie.run(
        method(name), federation(model), architecture, rounds=2, seed=3, engine="sequential"
    )
    return result


def run_onnx(file: Path, x: Any) -> list[Any]:
    """As a user without this library runs it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, {"inputs": np.asarray(x)})
    return found


def table(rows: int = 60, seed: int = 0) -> Sequence[str]:
    """A csv as people have it: holes, categories, numbers of different size; shops are clients."""
    rng = np.random.default_rng(seed)
    lines = ["shop,price,size,area,rating,sold"]
    for row in range(rows):
        price, size, area = rng.normal(20, 6), "SML"[rng.integers(3)], rng.normal(3000, 500)
        cell = "" if row % 7 == 3 else f"{price:.2f}"
        kind = "" if row % 11 == 5 else size
        sign = 1 if row % 2 else -1
        rating = "good" if sign * (price - 20) + 3 * (size == "L") > 0 else "bad"
        lines.append(f"shop-{row % 4},{cell},{kind},{area:.1f},{rating},{1e5 + 300 * sign * price:.2f}")
    return lines


@pytest.fixture(scope="module", autouse=True)
def translations_read_once() -> Iterator[None]:
    """Torch reads its table of ONNX translations anew for every export, which is half of the time that one takes."""
    try:
        registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
        read = registry.from_torchlib
    except (ImportError, AttributeError):  # another version of torch: the tests only take longer
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_torchlib", staticmethod(_once(read)))
        yield


@functools.cache
def _once(read: Any) -> Any:
    return functools.cache(read)
