"""A pytest plugin: what each test costs in processor time, which a busy machine does not change.

    python -m pytest -p tests.cpu_times --cpu-times times.tsv tests/core
    python tests/cpu_times.py times.tsv [how many tests to list]

A line per test: seconds of processor time (this process and the children it waited for; setup and teardown included,
and so a shared fixture counts for the first test that asks for it), seconds on the clock, the test's name.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", type=Path, help="append the processor time of each test to this file")


def spent() -> float:
    """Seconds of processor time so far."""
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    file: Path | None = item.config.getoption("--cpu-times")
    if file is None:
        return (yield)
    cpu, clock = spent(), time.perf_counter()
    answer = yield
    with file.open("a") as lines:
        lines.write(f"{spent() - cpu:.3f}\t{time.perf_counter() - clock:.3f}\t{item.nodeid}\n")
    return answer


def main(file: Path, many: int) -> None:
    """The sums by test file, and the tests that cost most."""
    rows = [line.split("\t", 2) for line in file.read_text().splitlines()]
    tests = sorted(((float(cpu), float(clock), name) for cpu, clock, name in rows), reverse=True)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for cpu, clock, name in tests:
        for place in (name.split("::")[0], "in all"):
            sums[place] = [total + more for total, more in zip(sums[place], (cpu, clock, 1), strict=True)]
    for place, (cpu, clock, count) in sorted(sums.items(), key=lambda row: row[1][0]):
        print(f"{cpu:9.1f} {clock:9.1f} {count:6.0f}  {place}")
    for cpu, clock, name in tests[:many]:
        print(f"{cpu:9.2f} {clock:9.2f}  {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 30)
