"""Small runs for the tests of going on and of forgetting."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from coterie import Federation, Local
from coterie.core.codec import pack
from coterie.core.registry import METHODS, NO_CODE
from coterie.methods.contract import Method
from coterie.methods.fesem import FeSEM
from coterie.training import checkpoint
from coterie.training.result import Result

LOCAL = Local(steps=2, batch="full", lr=0.5)


def federation(groups: str = "001101", seed: int = 0, names: tuple[str, ...] | None = None) -> Federation:
    """Clients of twelve samples, labelled by the sign of the first number, the two groups in opposite ways."""
    rng = np.random.default_rng(seed)
    arrays = []
    for group in groups:
        x = rng.normal(size=(12, 2)).astype(np.float32)
        arrays.append((x, ((x[:, 0] > 0) != (group == "1")).astype(np.int64)))
    return Federation.from_arrays(
        arrays, truth=list(map(int, groups)), groups=list(groups), names=names, standardise=False
    )


def method(name: str) -> Method[Any]:
    """A method of the catalogue with two clusters, where it has such a number."""
    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params: dict[str, Any] = {n: v for n, v in {"local": LOCAL, "k": 2, "warmup": 1}.items() if n in fields}
    if "base" in fields and fields["base"].default is dataclasses.MISSING:
        params["base"] = method("wecfl")
    if "base" in fields and "section" in fields:
        params["section"] = ("*bias",)  # the head of a single layer is all of it, and nothing would be left to share
    if issubclass(METHODS.find(name, NO_CODE), FeSEM):
        params["alpha"] = 0
    made: Method[Any] = METHODS.build(name, params, NO_CODE)
    return made


def bits(result: Result[Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """The state and what clients keep, to the last bit."""
    outline, tensors = pack(result.state)
    kept = {key: value.tolist() for key, value in result.memory.tensors().items()}
    return outline, [t.tolist() for t in tensors], kept


def header(run: Path) -> dict[str, str]:
    """What the newest checkpoint of a run says that it belongs to."""
    return checkpoint.belongs_of(sorted((run / "checkpoints").glob("round-*.safetensors"))[-1])
