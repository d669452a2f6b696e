"""The command line. Imports what is heavy only when a command needs it, so that --help is instant."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError, CoterieWarning, of_the_machine
from coterie.core.processes import end_with_parent, exit_code, import_from_here_last, interruptible
from coterie.tools.cli import (
    certs,
    client,
    compare,
    data,
    init,
    inspect,
    listing,
    report,
    server,
    serving,
    sweep,
)
from coterie.tools.cli.options import (
    AsJson,
    BackTo,
    Device,
    More,
    Out,
    Resume,
    Trust,
    With,
    Words,
    check_resume,
    prepared,
    stopping,
)

if TYPE_CHECKING:
    from coterie.training.config import RunConfig
    from coterie.training.events import Listener
    from coterie.training.result import Result

app = typer.Typer(
    help="Clustered federated learning: find the groups hidden among clients and train a model per group.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(
    words: Words = None,
    out: Out = None,
    resume: Resume = None,
    more: More = None,
    new: With = None,
    back_to: BackTo = None,
    trust: Trust = None,
    device: Device = None,
    track: Annotated[
        list[str] | None, typer.Option(metavar="TRACKER", help="tensorboard, mlflow or wandb, too; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a federation. Without a file: the demo's data and model; without a method: halves, which needs no K.

    Example: coterie run my.yaml, or coterie run method.name=wecfl method.k=4 rounds=30 seed=1 --out runs/a
    Later: coterie run --resume runs/a --more 50 --with new.csv
    """
    from coterie.training.config import split_words
    from coterie.training.run_directory import free_directory

    file, changes = split_words([*(words or []), *([] if device is None else [f"device={device}"])])
    check_resume(resume, file, out)
    config = _config(file, changes, resume, trust or ())
    config = prepared(resume, config, more, new, back_to, changes, _console(stderr=True, quiet=as_json))
    path = resume or out or free_directory(config.method.name)
    result = _run(config, path, resume is not None, as_json, track=track or ())
    _show(result, config, path, as_json)


def _show(result: Result[Any], config: RunConfig, path: Path, as_json: bool) -> None:
    """What has come out, in a table or as JSON."""
    from coterie.tools.cli import console
    from coterie.training.run_directory import read_history

    if as_json:
        _print_json(
            {"run_dir": str(result.run_dir), "rounds": config.rounds}
            | console.as_json(result.summary)
            | ({} if result.newcomers is None else {"newcomers": console.as_json(result.newcomers.summary)})
            | {"seconds": round(result.seconds, 3)}
            | console.privacy_json(result.privacy)
            | ({} if (followed := result.following) is None else {"following": dataclasses.asdict(followed)})
            | ({} if result.attack is None else {"attack": dataclasses.asdict(result.attack)})
            | ({"warnings": list(result.warnings)} if result.warnings else {})
        )
        return
    stdout = _console()
    rows = [(config.method.name, result.summary, result.seconds)]
    if result.newcomers is not None:
        rows.append(("  newcomers", result.newcomers.summary, result.seconds))
    stdout.print(console.results(rows))
    if result.serves.personal:  # else the table says it all
        stdout.print(str(result.serves), highlight=False, soft_wrap=True, markup=False)
    if result.attack is not None:
        stdout.print(str(result.attack), highlight=False, soft_wrap=True, markup=False)
    if (followed := result.following) is not None:
        stdout.print(str(followed), highlight=False, soft_wrap=True, markup=False)
    if (spent := console.privacy_line(result.privacy)) is not None:
        stdout.print(spent, highlight=False, soft_wrap=True)
    lost = console.missing_line(read_history(path, config.rounds))  # of the whole run, also where it was resumed
    if lost:
        stdout.print(lost, style="yellow")
    console.warned(result.warnings, stdout)
    stdout.print(f"run directory: {result.run_dir}", soft_wrap=True, highlight=False, markup=False, emoji=False)


def demo(
    out: Annotated[Path | None, typer.Option(help="Where the runs go; runs/demo-N when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """FedAvg, WeCFL and Halves under the same budget, on 40 clients with rotated digits and four hidden clusters."""
    from coterie.tools.cli import console, demo
    from coterie.training.config import read
    from coterie.training.run_directory import free_directory

    stdout = _console()
    base = out or free_directory("demo")
    rows: list[tuple[str, Result[Any]]] = []
    for name in demo.TOLD:
        config = read(None, [f"method.name={name}"])
        rows.append((name, _run(config, base / name, False, as_json, announce=not rows)))
    if as_json:
        _print_json(
            {"run_dir": str(base)}
            | {name: console.as_json(r.summary) | {"seconds": round(r.seconds, 3)} for name, r in rows}
        )
        return
    stdout.print(console.results([(name, r.summary, r.seconds) for name, r in rows]))
    for name, r in rows:
        console.warned(r.warnings, stdout, name)
    demo.shown(dict(rows), stdout)
    for line in (f"run directory: {base}", *demo.further(base, [name for name, _ in rows])):
        stdout.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


# The first of a project, in the order in which they are needed, and those that come later.
FIRST = (
    *(demo, init.init, inspect.inspect, run, compare.compare, report.report),
    *(serving.clusters, serving.assign, serving.predict, serving.export, serving.api),
)
MORE = (
    *(sweep.sweep, report.dashboard, serving.watch, serving.forget),
    *(server.server, client.client, certs.certs),
)
for command in FIRST:
    app.command()(command)
app.command("list", rich_help_panel="More")(listing.list_)
app.add_typer(data.app, name="data", rich_help_panel="More")
for further in MORE:
    app.command(rich_help_panel="More")(further)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from coterie.core.version import __version__

        typer.echo(__version__)
        raise typer.Exit


def _config(file: Path | None, changes: list[str], resume: Path | None, trusted: Sequence[str]) -> RunConfig:
    from coterie.core.registry import Consent
    from coterie.training.config import read, read_file

    if resume is None:
        return read(file, changes, consent=Consent(frozenset(trusted)))
    tree = read_file(resume / "config.yaml")
    if "network" in tree:
        raise CoterieError(
            f"{resume}: is a run over a network; go on with: coterie server --resume {resume}", code="run-kind"
        )
    consent = Consent(frozenset(trusted), source=str(resume / "config.yaml"))
    return read(None, changes, base=tree, consent=consent)


def _run(
    config: RunConfig, path: Path, resume: bool, quiet: bool, announce: bool = True, track: Sequence[str] = ()
) -> Result[Any]:
    from coterie.data.download import fetch_for
    from coterie.tools.cli import console
    from coterie.tools.trackers import tracker
    from coterie.training.execute import execute
    from coterie.training.trust import trust_words

    stderr = _console(stderr=True, quiet=quiet)
    fetch_for(config.data, partial(data.progress, stderr))

    def say(line: str) -> None:
        if announce or line.startswith("engine"):
            stderr.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    try:
        with (
            interruptible(stopping) as interruption,
            console.progress(stderr, config.method.name) as listen,
            ExitStack() as opened,
        ):
            trackers = [opened.enter_context(tracker(name, path, config.dump())) for name in track]
            heard: list[Listener] = [listen, *trackers]
            return execute(config, path, resume=resume, listeners=heard, say=say, interruption=interruption)
    except KeyboardInterrupt as why:
        begun = (path / "config.yaml").is_file()
        again = (
            f"go on with: coterie run --resume {path}{trust_words(config.dump())}"
            if begun
            else "it had not begun, so nothing was kept"
        )
        sys.stderr.write(f"interrupted; {again}\n")
        raise typer.Exit(exit_code(why)) from None


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _console(stderr: bool = False, quiet: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, quiet=quiet)


def main() -> None:
    """The entry point: a user's mistake is one clear message and exit code 2."""
    end_with_parent()
    os.umask(os.umask(0o077) | 0o002)  # whatever a command writes, not everybody may change it
    import_from_here_last()
    show = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *where: (
        f"warning: {message}\n" if issubclass(category, CoterieWarning) else show(message, category, *where)
    )
    try:
        app(prog_name="coterie")
    except CoterieError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt as why:
        sys.exit(exit_code(why))
    except Exception as error:
        refused = of_the_machine(error)
        if refused is None:
            raise
        sys.stderr.write(f"error: {refused}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
