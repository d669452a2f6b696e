"""What clients keep: by client and name, written over by name, and the same again after a checkpoint."""

from __future__ import annotations

import pytest
import torch

from conftest import vector
from coterie.errors import CoterieError
from coterie.memory import Memory


@pytest.fixture
def memory() -> Memory:
    memory = Memory()
    memory.write(12, {"v": vector(1, 2)})
    memory.write(3, {"v": vector(3), "pi/a": vector(0.5, 0.5)})
    return memory


def test_a_client_never_visited_keeps_nothing(memory: Memory) -> None:
    assert dict(memory.read(0)) == {}


def test_reading_does_not_make_room_for_a_client(memory: Memory) -> None:
    memory.read(0)
    memory.write(0, {})
    assert not any(name.startswith("0/") for name in memory.tensors())


def test_clients_do_not_see_each_other(memory: Memory) -> None:
    assert memory.read(12)["v"].tolist() == [1, 2]
    assert memory.read(3)["v"].tolist() == [3]


def test_writing_replaces_a_name_and_leaves_the_others(memory: Memory) -> None:
    memory.write(3, {"v": vector(9)})
    assert {slot: value.tolist() for slot, value in memory.read(3).items()} == {"v": [9], "pi/a": [0.5, 0.5]}


def test_tensors_are_named_by_client_and_slot_in_a_fixed_order(memory: Memory) -> None:
    assert list(memory.tensors()) == ["3/pi/a", "3/v", "12/v"]


def test_restore_gives_the_same_memory_and_forgets_what_was_there(memory: Memory) -> None:
    other = Memory()
    other.write(99, {"old": vector(0)})
    other.restore(memory.tensors())
    assert dict(other.read(99)) == {}
    assert list(other.tensors()) == list(memory.tensors())
    assert all(torch.equal(value, memory.tensors()[name]) for name, value in other.tensors().items())


@pytest.mark.parametrize("name", ["v", "x/v", "3/", "-1/v", ""])
def test_a_foreign_name_is_refused(memory: Memory, name: str) -> None:
    with pytest.raises(CoterieError, match="is not the name of something a client keeps"):
        memory.restore({name: vector(0)})
