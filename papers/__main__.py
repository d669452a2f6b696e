"""`python -m papers`: list the tables, run cells of one, or render everything that was run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.core.errors import CoterieError, suggest

LISTED = 100  # runs that a plan names
Words = Annotated[
    list[str] | None,
    typer.Option("--cell", metavar="ROW/COLUMN", help="Only this cell, or cells like '*/wecfl'; repeatable."),
]
Files = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="NAME=FILE.npz", help="Read a data set that cannot be fetched from a file."),
]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def papers(
    table: Annotated[str | None, typer.Argument(help="Which table; without one, all are listed.")] = None,
    cell: Words = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many seeds, from the table's first one; its own number if not."),
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only this run, by its place below results/.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="With --run: this seed only.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time, one thread each; as many as cores.")] = None,
    data: Files = None,
    results: Annotated[Path, typer.Option(help="Where outcomes are kept.")] = Path("results"),
    report: Annotated[bool, typer.Option("--report", help="Render everything as a page and as Markdown.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail where a claim does not hold.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what is missing and how long it takes.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")
    ] = False,
) -> None:
    """Run the papers' tables again: their numbers next to ours.

    Example: python -m papers fedgroup-table3 --cell mnist-mclr/fg-edc --seeds 1
    """
    from papers.results import Results

    kept = Results(results)
    if report:
        _report(kept)
    elif run is not None:
        if _carry_out([run], [0 if seed is None else seed], kept, data or (), jobs, as_json):
            raise typer.Exit(1)
    elif table is None and plan:
        _plan_all(kept, seeds, as_json)
    elif table is None:
        _list(kept, as_json)
    elif plan:
        _plan(table, cell, seeds, kept, as_json)
    else:
        _table(table, cell, seeds, kept, data or (), jobs, check, as_json)


def _list(results: Any, as_json: bool) -> None:
    from papers import show
    from papers.standing import standing
    from papers.tables import TABLES

    standings = [standing(table, results) for table in TABLES]
    if as_json:
        _print_json([show.as_json(s) for s in standings])
        return
    out = _console()
    out.print(show.overview(standings))
    out.print("python -m papers TABLE runs what is missing of it; --report renders all of it.", highlight=False)


def _table(
    name: str,
    cells: Sequence[str] | None,
    seeds: int | None,
    results: Any,
    data: Sequence[str],
    jobs: int | None,
    check: bool,
    as_json: bool,
) -> None:
    from papers import show
    from papers.standing import standing
    from papers.tables import table as find_table

    table = find_table(name)
    chosen = _chosen(table, cells)
    numbers = list(_seeds(table, seeds))
    names = [run.name for run in table.runs(chosen)]
    failed = _carry_out(names, numbers, results, data, jobs, as_json, quiet=True, more=seeds is None)
    found = standing(table, results, chosen)
    if as_json:
        _print_json(show.as_json(found))
    else:
        out = _console()
        out.print(f"[bold]{table.name}[/]: {table.title}. {table.paper}", highlight=False)
        if table.own_page is not None and not cells:
            out.print(table.own_page.summary(results), highlight=False, markup=False)
            out.print(f"python -m papers --report writes all of it to docs/{table.own_page.file}", highlight=False)
            claims: Sequence[Any] = ()
        else:
            out.print(show.in_terminal(found))
            claims = found.claims
        for text in (*show.notes(found), f"protocol: {table.protocol}"):
            out.print(text, style="dim", highlight=False, markup=False)
        for claim in claims:
            place = f" [{claim.place}]" if claim.place else ""
            out.print(f"{show.MARKS[claim.holds]}: {claim.text}{place}", highlight=False, markup=False)
    broken = [c.text for c in found.claims if c.holds is False]
    if check and (broken or failed):
        sys.stderr.write("".join(f"error: does not hold: {text}\n" for text in broken))
        raise typer.Exit(1)
    if failed:
        raise typer.Exit(1)


def _seeds(table: Any, many: int | None) -> range:
    """The table's first seeds: as many as asked for, or as many as it says."""
    return range(table.first_seed, table.first_seed + (table.seeds if many is None else many))


def _chosen(table: Any, cells: Sequence[str] | None) -> list[Any]:
    """The cells of these names or patterns, in the order of the table; all without any."""
    from fnmatch import fnmatchcase

    names = [cell.name for cell in table.cells]
    for wanted in cells or ():
        if wanted not in names and not any(fnmatchcase(name, wanted) for name in names):
            raise CoterieError(
                f"{table.name} has no cell '{wanted}'.{suggest(wanted, names)}", code="reproduce-unknown"
            )
    if not cells:
        return list(table.cells)
    return [c for c in table.cells if any(c.name == wanted or fnmatchcase(c.name, wanted) for wanted in cells)]


def _plan(name: str, cells: Sequence[str] | None, seeds: int | None, results: Any, as_json: bool) -> None:
    """What is missing of a table, and about how many hours of one core it takes."""
    from papers import show
    from papers.campaign import missing, planned
    from papers.tables import table as find_table

    table = find_table(name)
    jobs = missing(table.runs(_chosen(table, cells)), _seeds(table, seeds), results, more=seeds is None)
    plan = planned(jobs, results)
    if as_json:
        _print_json({"table": name, "runs": plan.runs, "hours": plan.hours, "unknown": plan.unknown})
        return
    unknown = f"; {plan.unknown} of them are not in this estimate: nothing is known about their time"
    sys.stdout.write(
        f"{name}: {plan.runs} runs missing, about {plan.hours:.1f} hours of one core{unknown if plan.unknown else ''}\n"
    )
    lines = show.to_do(jobs, results)
    for line in lines[:LISTED]:
        sys.stdout.write(f"  {line}\n")
    if len(lines) > LISTED:
        sys.stdout.write(f"  and {len(lines) - LISTED} more\n")


def _plan_all(results: Any, seeds: int | None, as_json: bool) -> None:
    """What is missing of every table, in hours of one core. A run that two tables need counts in both."""
    from rich import box
    from rich.table import Table as RichTable

    from papers.campaign import BASIS, missing, planned
    from papers.tables import TABLES

    more = seeds is None
    plans = {t.name: planned(missing(t.runs(), _seeds(t, seeds), results, more=more), results) for t in TABLES}
    if as_json:
        shown = [{"table": n, "runs": p.runs, "hours": p.hours, "unknown": p.unknown} for n, p in plans.items()]
        _print_json(shown)
        return
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("table", style="bold cyan", no_wrap=True)
    for name in ("runs missing", "hours of one core", "of unknown time"):
        grid.add_column(name, justify="right", no_wrap=True)
    for name, plan in plans.items():
        grid.add_row(name, str(plan.runs), f"{plan.hours:.1f}" if plan.runs else "", str(plan.unknown or ""))
    once = {(j.run.name, j.seed): j for t in TABLES for j in missing(t.runs(), _seeds(t, seeds), results, more=more)}
    total = planned(list(once.values()), results)
    grid.add_section()
    grid.add_row("each run once", str(total.runs), f"{total.hours:.1f}", str(total.unknown or ""))
    out = _console()
    out.print(grid)
    out.print("python -m papers TABLE --plan names the runs; a run that two tables need is in both.", highlight=False)
    out.print(BASIS, style="dim", highlight=False)


def _carry_out(
    names: Sequence[str],
    seeds: Sequence[int],
    results: Any,
    data: Sequence[str],
    jobs: int | None,
    as_json: bool,
    quiet: bool = False,
    more: bool = False,
) -> bool:
    """Run what is missing; whether something failed."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from coterie.core.compute import cores
    from papers.campaign import Progress as Standing
    from papers.campaign import campaign, missing
    from papers.work import find, sources

    todo = missing([find(name) for name in names], seeds, results, more=more)
    stderr = _console(stderr=True, quiet=as_json)
    if not todo:
        if not quiet:
            stderr.print("nothing to do: the outcome is there already", highlight=False)
        return False
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        TextColumn("[cyan]{task.fields[at]}"),
    )
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal or as_json) as bar:
        task = bar.add_task("papers", total=len(todo), at="")

        def tell(so_far: Standing) -> None:
            at = "  ".join(f"{job.run.name} {done}/{total}" for job, done, total in so_far.at)
            bar.update(task, completed=so_far.done, at=at)
            for job, why in so_far.ended:  # at once: a campaign may take hours
                how = "done" if why is None else f"failed: {why}"
                stderr.print(f"{job.run.name}, seed {job.seed}: {how}", highlight=False, markup=False, soft_wrap=True)

        failed = campaign(todo, results, sources(data), at_once=jobs or cores(), tell=tell)
    for one in failed:
        sys.stderr.write(f"failed: {one.job.run.name}, seed {one.job.seed}: {one.why}\n")
    return bool(failed)


def _report(results: Any) -> None:
    from papers.page import write

    for path in write(results, Path("docs") if Path("docs").is_dir() else results.root):
        sys.stdout.write(f"{path}\n")


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _console(stderr: bool = False, quiet: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, quiet=quiet)


def main() -> None:
    """The entry point: a user's mistake is one clear message and exit code 2."""
    try:
        app(prog_name="python -m papers")
    except CoterieError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
