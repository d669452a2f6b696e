"""A disk that is full at any of a run's files, a damaged log or checkpoint: told in words, and gone on from."""

from __future__ import annotations

import errno
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from conftest import linear, make_federation, raises
from coterie.core import files
from coterie.core.errors import CoterieError
from coterie.core.files import LineLog
from coterie.network.client_state import DirectoryStore
from coterie.training.checkpoint import load_newest
from coterie.training.round_history import missing_rounds, read
from coterie.training.run_directory import read_history
from papers.page import _put

LOCAL = coterie.Local(steps=2, batch=4, lr=0.1)


def go(path: Path, rounds: int = 4, **more: Any) -> coterie.Result[Any]:
    method = more.pop("method", coterie.WeCFL(k=2, local=LOCAL))
    return coterie.run(method, make_federation(6), linear(), rounds=rounds, out=path, **{"checkpoint_every": 1} | more)


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """No file of this name finds room: half of it is written, then the system says no."""
    write, write_line = Path.write_bytes, LineLog.add

    def refuse(self: Path, data: Any) -> int:
        if self.name != f"{name}.part":
            return write(self, data)
        write(self, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse_line(self: LineLog, line: str) -> None:
        if name == Path(self._file.name).name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_line(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        patch.setattr(LineLog, "add", refuse_line)
        if name == "status.json":
            patch.setattr(Path, "write_text", lambda self, text, encoding: refuse(self, text.encode()))
        yield


BEGINNING = ("config.yaml", "serving.json", "run.json", "status.json")
LATER = ("rounds.jsonl", "sketch.safetensors", "assignments.json", "clients.json")


@pytest.mark.parametrize("name", BEGINNING)
def test_a_run_that_finds_no_room_to_begin_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full(monkeypatch, name), raises("disk-write", match=r"cannot be written \(No space.*make room"):
        go(tmp_path / "run")
    go(tmp_path / "run")  # the directory is free


@pytest.mark.parametrize("name", LATER)
def test_a_run_whose_disk_fills_up_is_gone_on_with(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with full(monkeypatch, name), raises("disk-write", match=r"cannot be written \(No space.*--resume"):
        go(tmp_path / "run")
    assert not [file for file in (tmp_path / "run").rglob("*.part") if not file.name.startswith("status")]
    again, whole = go(tmp_path / "run", resume=True), go(tmp_path / "whole")
    assert torch.equal(again.state.centers, whole.state.centers)
    assert [event.round for event in read_history(tmp_path / "run", 9)] == [1, 2, 3, 4]


def test_a_line_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "log")
    log.add("x" * 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # the kernel takes the first 39 bytes and then says no
    try:
        with pytest.raises(OSError, match="File too large"):
            log.add("y" * 60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.add("z")
    log.sync()
    log.close()
    assert (tmp_path / "log").read_text() == "x" * 60 + "\nz\n"


def test_other_files_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.html").write_text("old")
    with full(monkeypatch, "page.html"), raises("disk-write", match="No space left"):
        _put(tmp_path / "page.html", "new")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "old"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(CoterieError, match="cannot be written"):
            DirectoryStore(tmp_path / "kept").write("run1", 1, {"v": torch.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "kept").rglob("*.part"))


def test_the_log_is_on_the_disk_before_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, replace = LineLog.sync, files.replace_durably

    def note_sync(self: LineLog) -> None:
        order.append(Path(self._file.name).name)
        sync(self)

    def note(temporary: Path, path: Path) -> None:
        order.append(path.name)
        replace(temporary, path)

    monkeypatch.setattr(LineLog, "sync", note_sync)
    monkeypatch.setattr("coterie.training.checkpoint.replace_durably", note)
    go(tmp_path / "run", rounds=2, checkpoint_every=2)
    checkpoint = order.index("round-000002.safetensors")
    assert {"rounds.jsonl", "trace.jsonl"} <= set(order[:checkpoint])


# ---------------------------------------------------------------------------------------------------------- damage


def no_utf8(line: bytes) -> bytes:
    return b"\xff\xfe" + line


def without_field(line: bytes) -> bytes:
    found = json.loads(line)
    del found["asked"]
    return json.dumps(found).encode()


def other_type(line: bytes) -> bytes:
    return json.dumps(json.loads(line) | {"attempts": "many"}).encode()


def deep(_: bytes) -> bytes:
    return b'{"round":' + b"[" * 100_000


@pytest.mark.parametrize("damage", [no_utf8, without_field, other_type, deep, lambda _: b"", lambda _: b"[1]"])
def test_a_damaged_log_is_said_and_gone_on_from(damage: Any, tmp_path: Path) -> None:
    go(tmp_path / "run", rounds=3)
    log = tmp_path / "run" / "rounds.jsonl"
    lines = log.read_bytes().splitlines()
    lines[1] = damage(lines[1])
    log.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.warns(UserWarning, match=r"rounds.jsonl: rounds 2 are missing or damaged"):
        again = go(tmp_path / "run", rounds=4, resume=True)
    assert torch.equal(again.state.centers, go(tmp_path / "whole").state.centers)
    assert list(read(tmp_path / "run")) == [1, 3, 4]


def test_a_gap_does_not_shift_who_was_met(tmp_path: Path) -> None:
    """Who was drawn for a round follows from its number, not from its place among the lines that are left."""
    few: dict[str, Any] = {"participation": 1, "evaluate_whom": "met", "method": coterie.FedAvg(local=LOCAL)}
    go(tmp_path / "run", rounds=3, **few)
    log = tmp_path / "run" / "rounds.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[2:]))
    with pytest.warns(UserWarning, match="rounds 1-2 are missing"):
        again = go(tmp_path / "run", resume=True, **few)
    whole = go(tmp_path / "whole", **few)
    assert again.clients.ids.tolist() == whole.clients.ids.tolist()


def test_gaps_in_words() -> None:
    assert missing_rounds([1, 2, 3], 3) is None
    assert missing_rounds([2, 5, 6], 9) == "1, 3-4, 7-9"


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole = go(tmp_path / "whole")
    go(tmp_path / "run", rounds=3)
    last = tmp_path / "run" / "checkpoints" / "round-000003.safetensors"
    last.write_bytes(last.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=r"round-000003.safetensors: damaged; this is the run as of round 2"):
        coterie.load(tmp_path / "run", federation=make_federation(6), model=linear())
    with pytest.warns(UserWarning, match=r"round-000003.safetensors: damaged; the run continues after round 2"):
        again = go(tmp_path / "run", resume=True)
    assert torch.equal(again.state.centers, whole.state.centers)
    names = sorted(file.name for file in last.parent.glob("round-*"))
    assert names == ["round-000003.safetensors", "round-000003.safetensors.damaged", "round-000004.safetensors"]


def test_where_all_checkpoints_are_damaged_nothing_is_touched(tmp_path: Path) -> None:
    go(tmp_path / "run", rounds=3)
    saves = sorted((tmp_path / "run" / "checkpoints").iterdir())
    for file in saves:
        file.write_bytes(b"\0" * 50)
    with raises("checkpoint-damaged"):
        go(tmp_path / "run", resume=True)
    assert sorted((tmp_path / "run" / "checkpoints").iterdir()) == saves
    with raises("checkpoint-damaged"):
        load_newest(saves, None, None, {})


def test_another_arithmetic_is_said(tmp_path: Path) -> None:
    go(tmp_path / "run", rounds=2, engine="sequential")
    with pytest.warns(UserWarning, match="began with the arithmetic of the engine 'sequential' .* 'batched'"):
        go(tmp_path / "run", rounds=3, resume=True, engine="batched", workers=1)
    go(tmp_path / "run", rounds=4, resume=True, engine="sequential")  # as it began
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["arithmetic"]  # as 0.1 wrote it, where nothing is known
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    go(tmp_path / "run", rounds=5, resume=True, engine="batched", workers=1)
