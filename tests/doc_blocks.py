"""Code blocks of the documentation, and the comments before them that say how they are run.

`<!-- not run: reason -->` leaves the next block out, `<!-- slow: reason -->` runs it with the slow tests only,
`<!-- setup ... -->` is Python that runs first and that readers do not see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
PIECE = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)\n-->$"
    r"|^<!-- (?P<mark>not run|slow): (?P<reason>[^\n]+) -->$"
    r"|^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SHOWN = ("text", "yaml", "json", "toml")  # nothing to run in them
Mark = Literal["", "not run", "slow"]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    mark: Mark = ""
    reason: str = ""

    @property
    def where(self) -> str:
        """For messages and names of tests."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page with examples. The changelog and the table of results have none."""
    there = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [*there, *sorted((ROOT / "deploy").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order; a hidden setup is a block of the language `setup`."""
    text, name = page.read_text(), page.relative_to(ROOT).as_posix()
    mark: Mark = ""
    reason = ""
    for found in PIECE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["mark"]:
            mark, reason = ("slow" if found["mark"] == "slow" else "not run"), found["reason"]
        elif found["setup"] is not None:
            yield Block(name, line, "setup", found["setup"], mark, reason)
        else:
            yield Block(name, line, found["language"], found["text"], mark, reason)
            mark, reason = "", ""


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, as words, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words
