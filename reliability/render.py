"""The table of docs/reliability.md from reliability/results: `python reliability/render.py`."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "reliability" / "results"
BEGIN, END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
COLUMNS = ("tried", "survived", "lost", "wrong")


def table() -> str:
    """A line per fault."""
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    faults = [row for row in rows if not row["fault"].startswith("fuzz")]
    inputs = [row for row in rows if row["fault"].startswith("fuzz")]
    lines = ["| fault | tried | survived | lost | wrong | command |", "|---|---|---|---|---|---|"]
    lines += [_line(row) for row in faults]
    lines += ["", "| bad input to | cases | refused or read | defects | command |", "|---|---|---|---|---|"]
    for row in inputs:
        name = row["fault"].removeprefix("fuzz: ")
        lines.append(f"| {name} | {row['tried']:,} | {row['survived']:,} | {row['wrong']:,} | `{row['command']}` |")
    total, bad = sum(row["tried"] for row in inputs), sum(row["wrong"] for row in inputs)
    lines.append(f"| all | {total:,} | {total - bad:,} | {bad:,} | |")
    return "\n".join(lines) + "\n"


def _line(row: dict[str, object]) -> str:
    numbers = " | ".join(f"{row[column]:,}" for column in COLUMNS)
    return f"| {row['fault']} | {numbers} | `{row['command']}` |"


def rendered(text: str) -> str:
    """The page with the table of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
