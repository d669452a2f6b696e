"""What clients keep: by client and name, written over by name, and the same again after a checkpoint."""

from __future__ import annotations

import mmap
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import coterie
from conftest import raises, vector
from coterie.client.contract import Memory
from coterie.core.allocation import LARGE, SMALL, held, on_disk, room
from coterie.training.result import Result


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
    with raises("checkpoint-damaged", match="is not the name of something a client keeps"):
        memory.restore({name: vector(0)})


def test_what_has_no_room_in_memory_lies_in_files_and_is_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    models = {client: torch.full((SMALL // 4,), float(client)) for client in range(4)}
    memory = Memory(limit=2 * SMALL + 100)
    for client, model in models.items():
        memory.write(client, {"v": model, "share": vector(client)})
    assert [held(memory.read(client)["v"]) for client in models] == [SMALL, SMALL, 0, 0]
    assert [held(memory.read(client)["share"]) for client in models] == [4] * 4  # too small to be worth a file
    assert all(torch.equal(memory.read(client)["v"], model) for client, model in models.items())
    assert list(tmp_path.iterdir()) == []  # nothing is left behind, however the process ends


def test_room_that_becomes_free_is_used_and_an_attempt_undone_gives_its_room_back() -> None:
    memory = Memory(limit=SMALL + 100)
    model = torch.ones(SMALL // 4)
    memory.write(0, {"v": model})
    memory.begin()
    memory.write(0, {"v": vector(0)})
    memory.write(1, {"v": model})
    assert held(memory.read(1)["v"]) == SMALL
    memory.undo()
    memory.write(1, {"v": model})
    assert held(memory.read(1)["v"]) == 0
    assert torch.equal(memory.read(0)["v"], model)


def test_a_row_of_something_larger_does_not_keep_the_rest_alive(memory: Memory) -> None:
    rows = torch.arange(20.0).view(2, 10)
    memory.write(0, {"v": rows[1]})
    assert memory.read(0)["v"].untyped_storage().nbytes() == 40
    assert memory.read(0)["v"].tolist() == rows[1].tolist()


def test_a_large_value_is_kept_in_pages_of_its_own(memory: Memory) -> None:
    trained = torch.arange(LARGE // 4, dtype=torch.float32).view(2, -1)
    memory.write(0, {"v": trained})
    kept = memory.read(0)["v"]
    assert kept.data_ptr() != trained.data_ptr()
    assert kept.data_ptr() % mmap.PAGESIZE == 0
    assert held(kept) == kept.untyped_storage().nbytes() == LARGE
    assert torch.equal(kept, trained)


GROW = """
from pathlib import Path
import torch, coterie
from coterie.core.allocation import keep_memory
from coterie.zoo import MLP
keep_memory()

def resident(_):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    seen.append(next(int(line.split()[1]) for line in lines if line.startswith("Anonymous")))

seen = []
draw = torch.Generator().manual_seed(1)
data = [(torch.randn(12, 784, generator=draw), torch.arange(12) % 3) for _ in range(80)]
ditto = coterie.Ditto(lam=0.5, local=coterie.Local(epochs=1, batch="full", lr=0.01))
coterie.run(ditto, data, MLP(hidden=(900,)), rounds=16, participation=0.4, evaluate_every=16, listeners=[resident],
            engine={engine!r}, workers={workers!r})
print(seen[5], seen[16])  # after so many rounds
"""


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").is_file(), reason="needs a Linux that tells what memory is used"
)
@pytest.mark.exhaustive
@pytest.mark.parametrize(("engine", "workers"), [("sequential", None), ("batched", 1)])
def test_memory_does_not_grow_once_everybody_has_been_there(engine: str, workers: int | None) -> None:
    """80 models of 2.9 MB are kept, written over and over among those that come and go."""
    done = subprocess.run(
        [sys.executable, "-c", GROW.format(engine=engine, workers=workers)], capture_output=True, text=True, check=True
    )
    early, late = map(int, done.stdout.split())
    assert late < 1.1 * early


def test_a_full_disk_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("os.posix_fallocate", full)
    with raises("disk-write", match=rf"{tmp_path}: .* \(No space left on device\); set TMPDIR"):
        on_disk(torch.ones(SMALL))
    assert list(tmp_path.iterdir()) == []


def test_there_is_room_for_something() -> None:
    assert room() > 1 << 28


@pytest.mark.parametrize(("engine", "workers"), [("sequential", None), ("batched", 1), ("workers", 2)])
def test_personal_models_in_files_are_trained_and_saved_like_those_in_memory(
    engine: Literal["sequential", "batched", "workers"],
    workers: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = torch.Generator().manual_seed(1)
    data = [(torch.randn(12, 4, generator=rng), torch.arange(12) % 3) for _ in range(6)]
    monkeypatch.setattr("coterie.core.allocation.SMALL", 1)

    def found(limit: int) -> Result[Any]:
        monkeypatch.setattr("coterie.client.contract.room", lambda: limit)
        out = tmp_path / str(limit)
        run = partial(coterie.run, coterie.Ditto(lam=0.5), data, engine=engine, workers=workers, out=out)
        run(rounds=2, participation=0.5, checkpoint_every=1)
        return run(rounds=4, participation=0.5, checkpoint_every=1, resume=True)

    inside, outside = found(1 << 30), found(0)
    kept = outside.memory.tensors()
    assert len(kept) > 3
    assert all(held(value) == 0 for value in kept.values())
    assert all(torch.equal(value, kept[name]) for name, value in inside.memory.tensors().items())
    assert inside.history[-1].summary == outside.history[-1].summary
