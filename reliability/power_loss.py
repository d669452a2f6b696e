"""The power fails: what was not flushed is gone. `python reliability/power_loss.py`.

Every fsync of a run is noted, with what it made durable: the content of a file, or the names in a directory. After each
of them the power fails, in three ways: nothing else has reached the disk; names have, contents have not (a new file
is empty); or each name that was not flushed is there or not, at random. From every such disk the run is resumed, and
must end in the same bits. A checkpoint that was in place when the power failed must be there afterwards.
"""

from __future__ import annotations

import argparse
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trial import Row, clear, command_line, differences, finish, go, left_alone, resumed_from, saved_round, workshop

Way = Literal["strict", "names", "random"]
WAYS: tuple[Way, ...] = ("strict", "names", "random")


@dataclass(frozen=True)
class Disk:
    """What is certainly on the disk: the names in each directory by inode, and the content of each file by inode."""

    names: dict[int, dict[str, int]] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """The power fails here: what is durable, what the run could see, and the round whose checkpoint it had saved."""

    durable: Disk
    seen: Disk
    reported: int


def _names(directory: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(directory)}


def observed(root: Path) -> Disk:
    """Everything below a directory, as it is now."""
    disk = Disk({root.stat().st_ino: _names(root)}, {})
    for path in root.rglob("*"):
        inode = path.stat().st_ino
        if path.is_dir():
            disk.names[inode] = _names(path)
        else:
            disk.contents[inode] = path.read_bytes()
    return disk


def record(root: Path, work: Callable[[], None]) -> list[Moment]:
    """Do the work with every fsync noted. root: was there before, and is empty."""
    durable, moments, real = Disk({root.stat().st_ino: {}}, {}), list[Moment](), os.fsync
    held: list[int] = []  # files are held open, so that no inode is given to another one

    def fsync(file: int) -> None:
        real(file)
        about = os.fstat(file)
        path = Path(f"/proc/self/fd/{file}").readlink()
        if stat.S_ISDIR(about.st_mode):
            durable.names[about.st_ino] = _names(path)
        else:
            durable.contents[about.st_ino] = path.read_bytes()
            held.append(os.open(path, os.O_RDONLY))
        now = Disk(dict(durable.names), dict(durable.contents))
        moments.append(Moment(now, observed(root), _reported(now, root)))

    os.fsync = fsync  # type: ignore[assignment]
    try:
        work()
    finally:
        os.fsync = real
        for file in held:
            os.close(file)
    return moments


def _reported(durable: Disk, root: Path) -> int:
    """The newest checkpoint whose save has returned: its directory was flushed with its name in it."""
    rounds = [saved_round(path) for path in root.iterdir() if path.is_dir()]
    newest = f"round-{max(rounds, default=0):06d}.safetensors"
    flushed = any(newest in names for names in durable.names.values())
    return max(rounds, default=0) if flushed else 0


def rebuilt(moment: Moment, root: int, into: Path, way: Way, draw: random.Random) -> None:
    """The disk as it is found when the power is back."""
    into.mkdir()
    _fill(moment, root, into, way, draw)


def _fill(moment: Moment, inode: int, into: Path, way: Way, draw: random.Random) -> None:
    old, new = moment.durable.names.get(inode, {}), moment.seen.names.get(inode, {})
    names = dict(old)
    if way == "names":
        names = dict(new)
    elif way == "random":
        for name in sorted(set(old) | set(new)):
            if old.get(name) != new.get(name) and draw.random() < 0.5:
                names.pop(name, None)
                names |= {name: new[name]} if name in new else {}
    for name, below in names.items():
        if below in moment.seen.names or below in moment.durable.names:
            (into / name).mkdir()
            _fill(moment, below, into / name, way, draw)
        else:
            (into / name).write_bytes(moment.durable.contents.get(below, b""))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--every", type=int, default=1, help="try every so many moments only")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw, tried, lost, wrong, remarks = random.Random(asked.seed), 0, 0, 0, list[str]()
    with workshop() as place:
        whole = left_alone(place, "sequential")
        root = place / "disk"
        root.mkdir()
        inode = root.stat().st_ino
        moments = record(root, lambda: go(root / "runs" / "a"))
        for number, moment in enumerate(moments[:: asked.every]):
            for way in WAYS:
                after = place / "after"
                clear(after)
                rebuilt(moment, inode, after, way, draw)
                ended, done = resumed_from(after / "runs" / "a", "sequential", place / "report")
                tried += 1
                lost += done < moment.reported
                found = differences(after / "runs" / "a", whole) if not ended.code else [ended.said[-300:]]
                wrong += bool(found)
                if found or done < moment.reported:
                    remarks.append(f"moment {number}, {way}: {found}, went on from {done} of {moment.reported}")
    remark = "; ".join([f"{len(moments)} flushes, 3 ways each", *remarks])
    row = Row("power loss after every flush", command_line(), tried, tried - wrong, lost, wrong, remark)
    row.write("power-loss")
    finish([row])


if __name__ == "__main__":
    main()
