"""Damaged files: `python reliability/damage.py flip`, `truncate`, `torn`, `foreign`.

flip: every byte of a small checkpoint is changed once. truncate: it is cut at every length. A damaged checkpoint
must be refused, or read to the same values (padding means nothing); where it is refused, the one before it counts.
torn: rounds.jsonl and trace.jsonl are cut anywhere after the last checkpoint, and the run goes on. foreign: checkpoints
of runs with another seed, method, model, data or local training are put in the run's place.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from trial import WORDS, Row, clear, command_line, differences, finish, fork, go, left_alone, workshop

import coterie
from coterie.core.codec import pack
from coterie.core.errors import CoterieError
from coterie.training import checkpoint
from coterie.training.config import read
from coterie.training.execute import execute
from coterie.training.run_directory import belongs

Judged = tuple[int, int, list[str]]  # tried, survived, what is wrong
OTHERS = ("seed=1", "method.k=3", "model=mlp", "data.partition.clients=5", "local.lr=0.5", "participation=1.0")


class Reader:
    """Reads checkpoints as a resumed run does."""

    def __init__(self, path: Path) -> None:
        result = coterie.load(path)
        self.template, self.method = result.state, result.method
        self.belongs = belongs(result.method, result.model, result.known, result.settings)

    def values(self, file: Path) -> list[bytes] | None:
        """All that a checkpoint says; None where it is refused."""
        try:
            found = checkpoint.load(file, self.template, self.method, self.belongs)
        except CoterieError:
            return None
        outline, tensors = pack((found.round, found.state, dict(found.also)))
        kept = [t for _, t in sorted(found.memory.items())]
        raw = [t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in (*tensors, *kept)]
        return [repr(outline).encode(), repr(sorted(found.memory)).encode(), *raw]


def flipped(whole: bytes, draw: random.Random) -> Iterator[bytes]:
    """Every byte changed once."""
    for at, byte in enumerate(whole):
        yield whole[:at] + bytes([byte ^ draw.randrange(1, 256)]) + whole[at + 1 :]


def judge_files(path: Path, changed: Callable[[bytes], Iterator[bytes]]) -> Judged:
    """Each of the changed files is refused, or read to the same values."""
    reader = Reader(path)
    file = max((path / "checkpoints").glob("round-*.safetensors"))
    whole, copy = file.read_bytes(), path.parent / "copy.safetensors"
    expected, tried, wrong = reader.values(file), 0, list[str]()
    for data in changed(whole):
        copy.write_bytes(data)
        tried += 1
        try:
            found = reader.values(copy)
        except Exception as error:
            wrong.append(f"case {tried}: {type(error).__name__}: {error}")
            continue
        if found is not None and found != expected:
            wrong.append(f"case {tried}: read to other values")
    return tried, tried - len(wrong), wrong


def judge_torn(place: Path, whole: Path, step: int) -> Judged:
    """A log that ends anywhere, as after a crash, and one checkpoint less: the run goes on to the same bits."""
    tried, wrong = 0, list[str]()
    for name in ("rounds.jsonl", "trace.jsonl"):
        content = (whole / name).read_bytes()
        third = content.find(b"\n", content.find(b'"round": 4' if name == "rounds.jsonl" else b'"round":4')) + 1
        for length in range(third, len(content), step):
            path = place / "torn"
            clear(path)
            shutil.copytree(whole, path)
            (path / "checkpoints" / "round-000006.safetensors").unlink()  # what remains is of round 4
            (path / name).write_bytes(content[:length])
            ended = fork(lambda path=path: go(path), place / "report").wait()  # type: ignore[misc]
            found = differences(path, whole) if not ended.code else [ended.said[-200:]]
            tried += 1
            wrong += [f"{name} cut at {length}: {found}"] if found else []
    return tried, tried - len(wrong), wrong


def judge_foreign(place: Path, whole: Path) -> Judged:
    """Refused with a clear error, and the run's own files stay."""
    wrong: list[str] = []
    for word in OTHERS:
        other, path = place / f"other-{word}", place / "mine"
        clear(path)
        shutil.copytree(whole, path)
        execute(read(None, [*WORDS, "rounds=6", "engine.name=sequential", word]), other)
        for file in (path / "checkpoints").glob("round-*"):
            shutil.copy(other / "checkpoints" / file.name, file)
        before = {file.name: file.read_bytes() for file in (path / "checkpoints").iterdir()}
        ended = fork(lambda path=path: go(path), place / "report").wait()  # type: ignore[misc]
        after = {file.name: file.read_bytes() for file in (path / "checkpoints").iterdir()}
        if ended.code != 2 or "belongs to another run" not in ended.said or before != after:
            wrong.append(f"{word}: {ended.code} {ended.said[-200:]}")
    return len(OTHERS), len(OTHERS) - len(wrong), wrong


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kind", choices=("flip", "truncate", "torn", "foreign"))
    parser.add_argument("--step", type=int, default=1, help="of torn: bytes between two lengths")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with workshop() as place:
        whole = left_alone(place, "sequential")
        if asked.kind == "flip":
            name = "every byte of a checkpoint changed once"
            judged = judge_files(whole, lambda data: flipped(data, random.Random(asked.seed)))
        elif asked.kind == "truncate":
            name = "a checkpoint cut at every length"
            judged = judge_files(whole, lambda data: (data[:length] for length in range(len(data))))
        elif asked.kind == "torn":
            name, judged = "a log that ends anywhere after the last checkpoint", judge_torn(place, whole, asked.step)
        else:
            name, judged = "another run's checkpoint", judge_foreign(place, whole)
    tried, survived, wrong = judged
    row = Row(name, command_line(), tried, survived, 0, len(wrong), "; ".join(wrong[:5]))
    row.write(f"damage-{asked.kind}")
    finish([row])


if __name__ == "__main__":
    main()
