"""The network soak: `python reliability/soak.py` (ten minutes and more; it needs `make test-distributed`'s packages).

Fifty rounds over Flower on this machine, during which clients, the SuperLink and the server are killed at random, and
uploads break off in the middle (tests/distributed/test_soak.py). Then the same rounds in one process must come to the
same models. Lost is an update that was reported and is not in them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from trial import Row, finish

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "build" / "soak.json"
TEST = [sys.executable, "-m", "pytest", "-q", "-m", "slow and distributed", "tests/distributed/test_soak.py"]
WHAT = {
    "clients_killed": "clients",
    "uploads_cut": "uploads",
    "superlinks_killed": "SuperLinks",
    "servers_killed": "servers",
}


def row(figures: dict[str, int]) -> Row:
    """A fault is one process that was killed, or one upload that was cut."""
    tried = sum(figures[name] for name in WHAT)
    lost, wrong = figures["updates_lost"], figures["wrong_results"]
    said = ", ".join(f"{figures[name]} {what}" for name, what in WHAT.items())
    fault = f"network: clients, SuperLink and server killed and uploads cut in {figures['rounds']} rounds"
    remark = f"{said}; {figures['answers']} answers, {figures['missed']} missed, {figures['seconds']} seconds"
    return Row(fault, "python reliability/soak.py", tried, tried - lost - wrong, lost, wrong, remark)


def main() -> None:
    """The command."""
    FIGURES.unlink(missing_ok=True)
    ended = subprocess.run(TEST, cwd=ROOT, check=False)
    if not FIGURES.is_file():  # skipped, or it ended before it could be judged: then there is no row
        raise SystemExit(ended.returncode or "the soak was skipped: install what `make test-distributed` needs")
    found = row(json.loads(FIGURES.read_text(encoding="utf-8")))
    found.write("soak")
    finish([found])


if __name__ == "__main__":
    main()
