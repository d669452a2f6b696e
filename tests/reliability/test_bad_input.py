"""Whatever a file, a word, a message or a request holds: it is read, or refused with the library's error."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT

sys.path.append(str(ROOT / "fuzz"))
import everything
import long
from mutate import mutated
from target import Fault, Target, judge

pytestmark = pytest.mark.filterwarnings("ignore")  # of damaged images and archives their readers warn
SECONDS = 2.5  # of each target, where all combinations are tried: a minute together


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", everything.TARGETS)
def test_valid_inputs_are_read_and_former_defects_are_refused(name: str) -> None:
    target = everything.TARGETS[name]
    first, *others = target.seeds()
    if name != "leaf":  # which is read as images and as texts, and can be but one of them
        target.read(first)
    inputs = [first, *others, *everything.kept(target)]
    assert [judge(target, data) for data in inputs] == [None] * len(inputs)


@pytest.mark.parametrize("name", everything.TARGETS)
def test_changed_inputs(name: str) -> None:
    target = everything.TARGETS[name]
    pool = [*target.seeds(), *everything.kept(target)]

    @settings(max_examples=15)
    @given(st.sampled_from(pool), st.randoms(use_true_random=False))
    def check(data: bytes, draw: random.Random) -> None:
        assert judge(target, mutated(data, draw, target.words, pool)) is None

    check()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", everything.TARGETS)
def test_many_changed_inputs(name: str) -> None:
    tried, found, _ = long.fuzz(everything.TARGETS[name], 10**9, seed=0, seconds=SECONDS)
    assert tried > 0
    assert not found


def test_a_defect_is_seen() -> None:
    def read(data: bytes) -> object:
        return {b"a": 1}[data]

    fault = judge(Target("broken", lambda: [b"a"], read), b"b")
    assert isinstance(fault, Fault)
    assert fault.kind == "KeyError"


def test_a_defect_is_kept_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def read(data: bytes) -> object:
        return {b"a": 1}[data]

    broken = Target("broken", lambda: [b"a"], read)
    monkeypatch.setattr(long, "ROOT", tmp_path)
    monkeypatch.setattr(long, "FOUND", tmp_path / "build" / "fuzz")
    monkeypatch.setattr(long, "RESULTS", tmp_path / "rows")
    monkeypatch.setattr(long, "TARGETS", {"broken": broken})
    monkeypatch.setattr(sys, "argv", ["long.py", "--cases", "20", "--seconds", "60", "--seed", "5", "--no-row"])
    with pytest.raises(SystemExit) as ended:
        long.main()
    said = capfd.readouterr()
    assert ended.value.code == 1
    assert not long.RESULTS.exists()
    assert "python fuzz/long.py broken --cases 20 --seed 5" in said.out
    (kept,) = (file for file in (long.FOUND / "broken").iterdir() if file.suffix != ".txt")
    assert f"--again {kept.relative_to(tmp_path)}" in said.err
    assert not long.again(broken, kept)
    kept.write_bytes(b"a")
    assert long.again(broken, kept)
