"""A run directory that somebody else has made: pipes, links, renamed checkpoints; and files that are the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from conftest import raises
from coterie.core.files import check_run_files, plain_bytes, save_tensors
from coterie.core.text import cell
from coterie.tools.report.reading import lines_from_the_end, read_json, read_lines, read_yaml
from coterie.training.config import read
from coterie.training.execute import execute
from coterie.training.run_directory import check_directory
from coterie.training.sketches import read_sketch

WORDS = ["rounds=3", "method.name=fedavg", "engine.name=sequential", "data.partition.clients=4", "checkpoint_every=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds."""
    path = tmp_path_factory.mktemp("received") / "run"
    execute(read(None, WORDS), path)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("name", ["checkpoints/round-000003.safetensors", "rounds.jsonl", "run.json", "clients.json"])
def test_a_pipe_in_place_of_a_file_is_told_and_not_waited_for(name: str, run: Path) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    for attempt in (
        lambda: check_directory(run, True),
        lambda: coterie.load(run),
        lambda: coterie.go_on(run, more=1),
        lambda: coterie.clusters(run),
        lambda: coterie.forget(run, 0),
    ):
        with raises("run-damaged", match=f"{Path(name).name}: is a pipe"):
            attempt()
    with pytest.raises(OSError, match="neither a file"):
        plain_bytes(run / name)
    assert read_json(run / name).problem
    assert read_yaml(run / name).problem
    assert read_lines(run / name).problem
    assert list(lines_from_the_end(run / name)) == []


def test_a_pipe_in_place_of_the_sketches_is_as_if_there_were_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sketch.safetensors")
    assert read_sketch(tmp_path) is None


def test_checkpoints_that_lie_elsewhere_are_not_pruned(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run / "checkpoints").rename(elsewhere)
    (run / "checkpoints").symlink_to(elsewhere)
    before = sorted(elsewhere.iterdir())
    with raises("run-damaged", match="symbolic link"):
        execute(read(None, [*WORDS, "rounds=9"]), run, resume=True)
    assert sorted(elsewhere.iterdir()) == before


def test_a_checkpoint_with_the_name_of_another_round_is_refused(run: Path) -> None:
    places = run / "checkpoints"
    (places / "round-000003.safetensors").rename(places / "round-000099.safetensors")
    with raises("checkpoint-damaged", match="is a checkpoint of round 3; give it its name again"):
        coterie.go_on(run, more=2)
    with pytest.warns(UserWarning, match="round-000099"):
        assert len(coterie.load(run).history) == 2


def test_two_identical_runs_have_identical_checkpoints(trained: Path, tmp_path: Path) -> None:
    """In processes of their own: an order that comes from hashing differs between processes only."""
    code = "from coterie.training.config import read; from coterie.training.execute import execute; import pathlib; "
    code += f"execute(read(None, {WORDS}), pathlib.Path({str(tmp_path / 'again')!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    one, other = (sorted((path / "checkpoints").iterdir()) for path in (trained, tmp_path / "again"))
    assert [file.name for file in one] == [file.name for file in other]
    for first, second in zip(one, other, strict=True):
        assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest(), first.name


def test_metadata_is_written_in_order(tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open

    said = {key: f'{key} "quoted" \\ \n\t ü \x01 €' for key in "hgfedcba"}
    save_tensors({"b": torch.arange(3), "a": torch.zeros(2, 2)}, tmp_path / "one", said)
    with safe_open(tmp_path / "one", framework="pt") as file:
        assert file.metadata() == said
        assert file.get_tensor("b").tolist() == [0, 1, 2]
    raw = (tmp_path / "one").read_bytes()
    places = [raw.index(f'"{key}":"'.encode()) for key in sorted(said)]
    assert places == sorted(places)


def test_a_spreadsheet_computes_nothing_of_a_table() -> None:
    assert [cell(text) for text in ('=HYPERLINK("x")', "+1+1", "-a", "@b", "\tc")] == [
        '\'=HYPERLINK("x")',
        "'+1+1",
        "'-a",
        "'@b",
        "'\tc",
    ]
    assert [cell(text) for text in ("-1.5", "+3", "ward a", "", "a=b")] == ["-1.5", "+3", "ward a", "", "a=b"]


def test_an_ordinary_directory_is_fine(run: Path) -> None:
    check_run_files(run)
    check_run_files(run / "not there")
