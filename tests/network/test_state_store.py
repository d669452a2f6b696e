"""What clients keep, version by version."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conftest import raises
from coterie.network.client_state import DirectoryStore, next_version, remove_unused_versions, round_of


def value(number: float) -> dict[str, torch.Tensor]:
    return {"personal": torch.full((3,), number), "steps": torch.tensor(7)}


def test_a_version_comes_back_as_it_was(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.write("run1", 5, value(0.5))
    found = store.read("run1", 5)
    assert found is not None
    assert torch.equal(found["personal"], torch.full((3,), 0.5))
    assert int(found["steps"]) == 7
    assert store.read("run1", 6) is None
    assert store.read("run2", 5) is None
    assert store.versions("run1") == [5]


def test_versions_rise_and_tell_their_round() -> None:
    first = next_version(3, None)
    second = next_version(3, first)
    third = next_version(4, second)
    assert first < second < third
    assert [round_of(v) for v in (first, second, third)] == [3, 3, 4]
    assert next_version(2, third) > third  # a server that went back to an earlier round knows of a later version


def test_what_the_server_never_heard_of_goes(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    versions = [next_version(r, None) for r in range(4)]
    for v in versions:
        store.write("run", v, value(v))
    remove_unused_versions(store, "run", base=versions[2], since=0)
    assert store.versions("run") == versions[:3]
    remove_unused_versions(store, "run", base=None, since=0)  # it began again
    assert store.versions("run") == []


def test_what_a_server_may_go_back_to_stays(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    versions = [next_version(r, None) for r in range(6)]
    for v in versions:
        store.write("run", v, value(v))
    # It may start over from round 4: what was kept before that round is round 3's, and everything later.
    remove_unused_versions(store, "run", base=versions[5], since=4)
    assert store.versions("run") == versions[3:]


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.write("run", 1, value(1))
    file = tmp_path / "run" / "1.safetensors"
    file.write_bytes(file.read_bytes()[:10])
    assert store.read("run", 1) is None


@pytest.mark.parametrize("run", ["../up", "a/b", "", "."])
def test_a_run_cannot_lead_elsewhere(run: str, tmp_path: Path) -> None:
    with raises("wire-invalid-name"):
        DirectoryStore(tmp_path).write(run, 1, value(1))
