"""The Markdown that model cards are written in, as HTML: headings, tables, lists, code. Everything else is text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape


def to_html(text: str, level: int = 1) -> str:
    """The text with its first headings at this level."""
    return "".join(_blocks(text, level - 1))


def _blocks(text: str, deeper: int) -> Iterator[str]:
    code: list[str] | None = None
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            if code is None:
                yield from _block(lines, deeper)
                code, lines = [], []
            else:
                yield f'<pre tabindex="0"><code>{escape(chr(10).join(code))}</code></pre>'
                code = None
        elif code is not None:
            code.append(line)
        elif not line.strip():
            yield from _block(lines, deeper)
            lines = []
        else:
            lines.append(line)


def _block(lines: list[str], deeper: int) -> Iterator[str]:
    """Lines between two empty ones."""
    if not lines:
        return
    heading = re.match(r"(#{1,4}) (.*)", lines[0])
    if heading:
        level = min(len(heading[1]) + deeper, 6)
        yield f"<h{level}>{_inline(heading[2])}</h{level}>"
        yield from _block(lines[1:], deeper)
    elif lines[0].startswith("|"):
        yield _table([_cells(line) for place, line in enumerate(lines) if place != 1])  # which is |---|---|
    elif lines[0].startswith("- "):
        items = "\n".join(lines)[2:].split("\n- ")
        yield "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
    else:
        yield f"<p>{_inline(' '.join(lines))}</p>"


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _table(rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in rows[0]) if any(rows[0]) else ""
    body = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    first = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="table" tabindex="0"><table>{first}<tbody>{body}</tbody></table></div>'


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
