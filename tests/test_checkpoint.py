"""A checkpoint's tensors come back as they were, however they lay in memory; what lies alone is written from there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie import checkpoint
from coterie.memory import Memory


@dataclass(frozen=True)
class State:
    """Tensors that share their memory, as those of a method may."""

    centers: Tensor
    first: Tensor
    last: Tensor
    turned: Tensor
    none: Tensor


@pytest.fixture
def state() -> State:
    centers = torch.arange(6.0).reshape(3, 2)
    return State(centers, centers[0], centers[2], centers.T, centers[:, 1][:0])


@pytest.fixture
def memory(state: State) -> Memory:
    memory, rows = Memory(), torch.rand(3, 4)
    memory.write(7, {"v": rows[1], "the server's": state.centers[1]})
    memory.write(8, {"v": rows[2], "again": rows[2]})
    return memory


def test_what_overlaps_comes_back_whole(state: State, memory: Memory, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", state, memory, 3, {"run": "this"})
    found = checkpoint.load(tmp_path / "c", state, object(), {"run": "this"})
    for name in ("centers", "first", "last", "turned", "none"):
        assert torch.equal(getattr(found.state, name), getattr(state, name))
    assert found.memory.keys() == memory.tensors().keys()
    assert all(torch.equal(value, memory.tensors()[name]) for name, value in found.memory.items())


def test_only_what_overlaps_is_copied(memory: Memory, state: State) -> None:
    """Two rows of one tensor do not: thousands of personal models are not held twice to be written."""
    found = checkpoint._apart(memory.tensors() | {"centers": state.centers})
    before = memory.tensors()
    copied = {name for name in before if found[name].data_ptr() != before[name].data_ptr()}
    assert "7/v" not in copied
    assert copied == {"7/the server's", "8/v"} or copied == {"7/the server's", "8/again"}
