"""Tables in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as RichTable

from papers.campaign import Job, planned
from papers.cell import Checked
from papers.results import Results
from papers.standing import Line, Standing, number, ours

STYLES = {"agrees": "green", "higher": "yellow", "lower": "yellow", "not comparable": "dim", "not run": "dim"}
INTRODUCTION = """\
Written by `python -m papers --report` from `results/`, where every run lies with its configuration, seed, versions
and curve. Mean ± deviation over seeds (and rounds, where a protocol pools them). A cell *agrees* when it is within the
table's tolerance of the printed number; misses stay in. *Not comparable* means that the printed number comes, in all
likelihood, from a defect of the published code, or from data that could not be had, which the remark says. Where seeds
says *1 only*, the number is of a single seed, and how far another would be from it is not known; *earlier revision*
says that the method was corrected since in a way that changes results. What was not tested is called a guess. One
thread per run, CPU. Fed-CAM's tables share their baselines with WeCFL's: these count in both.

**In a minute.** Each row is a table: how many of its cells were run, how many of the comparable ones agree with the
paper, how many of its claims hold on our numbers, how many cells rest on one seed, and why not more."""
MARKS = {True: "holds", False: "does NOT hold", None: "not known yet"}


def difference(line: Line, unit: str) -> str:
    """Ours minus the paper's, with its sign."""
    apart = line.difference
    return "" if apart is None else ("+" if apart >= 0 else "-") + number(abs(apart), unit)


def paper(line: Line, unit: str) -> str:
    """The paper's number."""
    cell = line.cell
    return number(cell.paper, unit) + ("" if cell.spread is None else f" ± {number(cell.spread, unit)}")


def seeds(line: Line) -> str:
    """How many seeds a number is of; a single one is marked."""
    if line.found is None:
        return ""
    number = "1 only" if line.found.seeds == 1 else str(line.found.seeds)
    return f"{number}, earlier revision" if line.found.earlier else number


def tolerances(found: Standing) -> str:
    """The table's, and those of columns that have their own."""
    own = {line.cell.column: line.cell.tolerance for line in found.lines if line.cell.tolerance is not None}
    if set(own) == {line.cell.column for line in found.lines}:
        return ", ".join(f"{column} {value:g}" for column, value in own.items())
    return ", ".join([f"{found.table.tolerance:g}", *(f"{column} {value:g}" for column, value in own.items())])


def not_run(found: Standing) -> str:
    """Rows and columns without a number; of rows of which nothing was run, the name is enough."""
    columns: dict[str, list[str]] = {}
    begun = {line.cell.row for line in found.lines if line.found}
    for line in found.lines:
        if line.found is None:
            columns.setdefault(line.cell.row, []).append(line.cell.column)
    return ", ".join(f"{row} ({', '.join(names)})" if row in begun else row for row, names in columns.items())


def notes(found: Standing) -> list[str]:
    """Each note once, after the rows that it is about, of those with a number."""
    rows: dict[str, dict[str, None]] = {}
    for line in found.lines:
        if line.cell.note and line.found:
            rows.setdefault(line.cell.note, {})[line.cell.row] = None
    return [f"{', '.join(names)}: {note}" for note, names in rows.items()]


def in_terminal(found: Standing) -> RichTable:
    """Paper, ours, difference, verdict."""
    unit = found.table.unit
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cell", style="bold", overflow="fold")  # in a narrow terminal the words wrap, never the numbers
    for name in ("paper", "ours", "difference", "seeds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for line in found.lines:
        style = STYLES.get(line.verdict, "")
        word = f"[{style}]{line.verdict}[/]" if style else line.verdict
        table.add_row(line.cell.name, paper(line, unit), ours(line, unit), difference(line, unit), seeds(line), word)
    return table


def to_do(jobs: Sequence[Job], results: Results) -> list[str]:
    """A line for each run, with its seeds and about how long one takes."""
    seeds_of: dict[str, list[Job]] = {}
    for job in jobs:
        seeds_of.setdefault(job.run.name, []).append(job)
    lines = []
    for name, mine in seeds_of.items():
        plan = planned(mine[:1], results)
        long = "time unknown" if plan.unknown else f"{60 * plan.hours:.1f} min" + (" each" if mine[1:] else "")
        numbers = ", ".join(str(job.seed) for job in mine)
        lines.append(f"{name}, seed{'s' if mine[1:] else ''} {numbers}: {long}")
    return lines


def overview(standings: Sequence[Standing]) -> RichTable:
    """Every table with how far it is."""
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("table", style="bold cyan", no_wrap=True)
    table.add_column("what it is")
    for name in ("cells", "agree", "claims", "unknown"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in standings:
        agree = f"{found.agreeing}/{len(found.comparable)}" if found.comparable else ""
        known = len(found.claims) - found.unknown
        claims = f"{found.held}/{known}" if known else ""
        cells = f"{found.done}/{len(found.lines)}"
        table.add_row(found.table.name, found.table.title, cells, agree, claims, str(found.unknown or ""))
    return table


def as_json(found: Standing) -> dict[str, Any]:
    """One table for a program."""
    return {
        "table": found.table.name,
        "tolerance": found.table.tolerance,
        "cells": [
            {
                "cell": line.cell.name,
                "paper": line.cell.paper,
                "ours": None if line.found is None else line.found.mean,
                "std": None if line.found is None else line.found.std,
                "seeds": 0 if line.found is None else line.found.seeds,
                "verdict": line.verdict,
                "note": line.cell.note,
            }
            for line in found.lines
        ],
        "claims": [{"claim": c.text, "holds": c.holds, "place": c.place} for c in found.claims],
    }


# ------------------------------------------------------------------------------------------------ Markdown


def markdown(standings: Sequence[Standing], pictures: Sequence[tuple[str, str, Path]], folder: Path) -> str:
    """docs/results.md: every table that was begun, and the figures as pictures (title, remark, file)."""
    shown = [s for s in standings if s.done]
    lines = [
        "# Results: the papers' numbers and ours",
        "",
        INTRODUCTION,
        "",
        "| table | cells run | agree with the paper | claims that hold | of one seed | in a line |",
        "|---|---|---|---|---|---|",
    ]
    for found in shown:
        own = found.table.own_page
        place = f"#{found.table.name}" if own is None else own.file
        lines.append(
            f"| [{found.table.name}]({place}) | {found.done} of {len(found.lines)} | {found.agreed} "
            f"| {found.claimed} | {found.of_one_seed} | {found.in_a_line} |"
        )
    idle = [f"{s.table.name} ({s.table.why or s.table.title})" for s in standings if not s.done]
    lines += ["", f"Declared and not run yet: {'; '.join(idle)}."] if idle else []
    for found in shown:
        lines += _section(found) if found.table.own_page is None else []
    if pictures:
        lines += ["", "## Figures", ""]
    for title, remark, file in pictures:
        lines += [f"**{title}** {remark}", "", f"![{title}]({file.relative_to(folder).as_posix()})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(found: Standing) -> list[str]:
    table, unit = found.table, found.table.unit
    what = f" ({unit})" if unit else ""
    lines = ["", f"## {table.name}", "", f"{table.title}{what}. {table.paper}.", "", table.protocol, ""]
    if any(line.cell.paper is not None for line in found.lines):
        lines += [f"Tolerance: {tolerances(found)}.", ""]
    notes = list(dict.fromkeys(line.cell.note for line in found.lines if line.found and line.cell.note))
    lines += ["| cell | paper | ours | difference | seeds | verdict |", "|---|---|---|---|---|---|"]
    for line in found.lines:
        if line.found is None:
            continue
        mark = f" [{notes.index(line.cell.note) + 1}]" if line.cell.note else ""
        lines.append(
            f"| {line.cell.name}{mark} | {paper(line, unit)} | {ours(line, unit)} | {difference(line, unit)} "
            f"| {seeds(line)} | {line.verdict} |"
        )
    missing = not_run(found)
    if missing:
        lines += ["", f"Not run yet: {missing}."]
    lines += ["", *(f"[{i + 1}] {note}.  " for i, note in enumerate(notes))] if notes else []
    lines += ["", *(f"- {_claim(c)}" for c in found.claims)] if found.claims else []
    lines += ["", *found.more] if found.more else []
    lines += ["", f"`python -m papers {table.name}`"]
    return lines


def _claim(claim: Checked) -> str:
    place = f" [{claim.place}]" if claim.place else ""
    return f"{claim.text}{place}: **{MARKS[claim.holds]}**" + (f" ({claim.note})" if claim.note else "")


def in_readme(found: Standing) -> str:
    """One row of the README: the table, how much of it agrees and holds, and why not more."""
    name = found.table.name
    agree = f"{found.agreeing} of {len(found.comparable)}" if found.comparable else "-"
    return (
        f"| [{name}](docs/results.md#{name}) | {agree} | {found.claimed} | {found.of_one_seed} of {found.done} "
        f"| {found.in_a_line} |"
    )
