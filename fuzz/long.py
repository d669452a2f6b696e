"""Many cases of every target, or of some: `python fuzz/long.py --cases 1000000`, `python fuzz/long.py npz csv`.

Seeds and the kept corpus are changed at random. Every tenth case starts from an input that another case came from. A
case that is a defect (an exception other than CoterieError, more than ten seconds, more than 512 MiB) is written to
build/fuzz/TARGET, and the command that tries it again is printed. The row of figures goes to
reliability/results/fuzz-TARGET.json. `make fuzz` gives every target three seconds and writes no row.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import logging
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from everything import TARGETS, kept
from mutate import mutated
from target import Target, judge

ROOT = Path(__file__).parent.parent
FOUND = ROOT / "build" / "fuzz"
RESULTS = ROOT / "reliability" / "results"
HANGS = 120.0  # seconds after its time in which a target must have ended: one case that never returns ends the program


def fuzz(target: Target, cases: int, seed: int, seconds: float | None = None) -> tuple[int, Counter[str], float]:
    """How many cases were tried, the defects by where they are, and the seconds it took."""
    draw, pool = random.Random(f"{seed} {target.name}"), [*target.seeds(), *kept(target)]
    found: Counter[str] = Counter()
    began = time.monotonic()
    done = 0
    while done < cases:
        done += 1
        start = draw.choice(pool)
        data = mutated(start, draw, target.words, pool)
        if draw.random() < 0.1:
            data = mutated(data, draw, target.words, pool)
        fault = judge(target, data)
        if fault is not None:
            place = f"{fault.kind} {fault.where}"
            if place not in found:
                _keep(target, data, f"{place}: {fault.why}")
            found[place] += 1
        if seconds is not None and time.monotonic() - began > seconds:
            break
    return done, found, time.monotonic() - began


def _keep(target: Target, data: bytes, why: str) -> None:
    place = FOUND / target.name
    place.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(data).hexdigest()[:16]
    (place / name).write_bytes(data)
    (place / f"{name}.txt").write_text(why + "\n", encoding="utf-8")
    again = f"python fuzz/long.py {target.name} --again {(place / name).relative_to(ROOT)}"
    sys.stderr.write(f"{target.name}: {why}\nto try it again: {again}\n")


def again(target: Target, file: Path) -> bool:
    """Try one input; returns whether it is read or refused as it should be."""
    fault = judge(target, file.read_bytes())
    print(f"{target.name}: {f'{fault.kind} {fault.where}: {fault.why}' if fault else 'read, or refused in words'}")
    return fault is None


def measured(name: str, cases: int, seed: int, seconds: float | None) -> dict[str, object]:
    """The row of a target. It says first how to repeat it, in case it never ends."""
    command = f"python fuzz/long.py {name} --cases {{}} --seed {seed}"
    print(f"{name}: seed {seed}", flush=True)
    if seconds is not None:
        faulthandler.dump_traceback_later(seconds + HANGS, exit=True)
    tried, found, took = fuzz(TARGETS[name], cases, seed, seconds)
    faulthandler.cancel_dump_traceback_later()
    bad = sum(found.values())
    row = {"fault": f"fuzz: {name}", "command": command.format(tried), "tried": tried, "survived": tried - bad}
    return row | {"lost": 0, "wrong": bad, "seconds": round(took)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET")
    parser.add_argument("--cases", type=int, default=10_000, help="of each target")
    parser.add_argument("--seconds", type=float, help="of each target at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-row", action="store_true", help="do not write the figures down")
    parser.add_argument("--again", type=Path, metavar="FILE", help="try this input of the one target, and nothing else")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # of damaged images and archives their readers warn
    logging.disable(logging.CRITICAL)
    if asked.again is not None:
        if len(asked.targets) != 1:
            parser.error("--again FILE needs one target, the one that the file is for")
        sys.exit(0 if again(TARGETS[asked.targets[0]], asked.again) else 1)
    bad = False
    for name in asked.targets or TARGETS:
        row = measured(name, asked.cases, asked.seed, asked.seconds)
        bad |= bool(row["wrong"])
        print(json.dumps(row), flush=True)
        if not asked.no_row:
            RESULTS.mkdir(parents=True, exist_ok=True)
            (RESULTS / f"fuzz-{name}.json").write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
