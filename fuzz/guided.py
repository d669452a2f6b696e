"""One target with atheris, which prefers inputs that reach new code: `python fuzz/guided.py csv -max_total_time=600`.

It needs `pip install atheris` (Linux or macOS). The words after the target are libFuzzer's. New inputs are collected in
build/fuzz/guided/TARGET; an input that is a defect ends the program and is written beside it.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["coterie"]):
    from everything import TARGETS, kept
    from target import judge

HOME = Path(__file__).parent.parent / "build" / "fuzz" / "guided"


class Defect(Exception):  # noqa: N818 - atheris prints its name
    """What was found."""


def main() -> None:
    """The command."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        raise SystemExit(f"usage: python fuzz/guided.py TARGET [-max_total_time=600]; targets: {', '.join(TARGETS)}")
    target = TARGETS[sys.argv[1]]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    inputs = HOME / target.name
    inputs.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*target.seeds(), *kept(target)]):
        (inputs / f"seed-{number}").write_bytes(data)

    def one(data: bytes) -> None:
        fault = judge(target, data)
        if fault is not None:
            raise Defect(f"{fault.kind} {fault.where}: {fault.why}")

    words = [sys.argv[0], str(inputs), f"-artifact_prefix={HOME / target.name}-", "-max_len=65536", *sys.argv[2:]]
    atheris.Setup(words, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
