"""A checkpoint's tensors come back as they were, however they lay in memory; what lies alone is written from there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors
import torch
from torch import Tensor

from conftest import raises
from coterie.client.contract import Memory
from coterie.training import checkpoint


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
    memory, row = Memory(), torch.rand(4)
    memory.write(7, {"v": torch.rand(4), "the server's": state.centers[1]})
    memory.write(8, {"v": row, "again": row})
    return memory


def test_what_overlaps_comes_back_whole(state: State, memory: Memory, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "c", state, memory, 3, {"run": "this"})
    found = checkpoint.load(tmp_path / "c", state, object(), {"run": "this"})
    for name in ("centers", "first", "last", "turned", "none"):
        assert torch.equal(getattr(found.state, name), getattr(state, name))
    assert found.memory.keys() == memory.tensors().keys()
    assert all(torch.equal(value, memory.tensors()[name]) for name, value in found.memory.items())


def test_a_disk_that_is_full_is_told_and_nothing_half_written_stays(
    state: State, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, path: Path, **__: object) -> None:
        path.write_bytes(b"half")
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    checkpoint.save(tmp_path / "c", state, memory, 3, {})
    monkeypatch.setattr("safetensors.torch.save_file", full)
    with raises("disk-write", match=r"cannot be written \(I/O error: No space left .* resumed from the one bef"):
        checkpoint.save(tmp_path / "d", state, memory, 4, {})
    assert [file.name for file in tmp_path.iterdir()] == ["c"]


def test_only_what_overlaps_is_copied(state: State) -> None:
    """Two rows of one tensor do not: models of many clients are not held twice to be written."""
    rows = torch.rand(3, 4)
    before = {"a": rows[1], "b": rows[2], "again": rows[2], "of centers": state.centers[1], "centers": state.centers}
    found = checkpoint._apart(before)
    copied = {name for name in before if found[name].data_ptr() != before[name].data_ptr()}
    assert copied in ({"of centers", "b"}, {"of centers", "again"})


@pytest.mark.parametrize(
    ("theirs", "mine", "same"),
    [
        ("FeSEM(k=4, local=Local(lr=0.1))", "FeSEM(k=4, local=Local(lr=0.1))", True),
        ("FeSEM(k=4, local=Local(lr=0.1))", "FeSEM(k=4, alpha=3, local=Local(lr=0.1, clip=None))", True),
        ("FeSEM(k=4, local=Local(lr=0.1))", "FeSEM(k=4, local=Local(lr=0.2, clip=None))", False),
        ("FeSEM(k=4, alpha=3)", "FeSEM(k=4, alpha=4)", False),
        ("FeSEM(k=4, alpha=3)", "FeSEM(k=4)", False),  # an option that is not known here
        ("IFCA(k=4)", "FeSEM(k=4)", False),
        ("Composed(groups=(1, 2), k=3)", "Composed(groups=(1, 2, 5), k=3)", False),
    ],
)
def test_options_that_a_checkpoint_does_not_know_came_later(theirs: str, mine: str, same: bool) -> None:
    assert checkpoint.agrees(theirs, mine) is same
