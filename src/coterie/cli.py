"""The command line. Imports what is heavy only when a command needs it, so that --help is instant."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie import comparecli, dashboardcli, datacli, reportcli, sweepcli
from coterie.errors import CoterieError
from coterie.network import benchcli, certscli, clientcli, servercli
from coterie.options import AsJson, Out, Resume, Words, check_resume
from coterie.pool import end_with_parent
from coterie.reproduce import cli as reproducing

if TYPE_CHECKING:
    from coterie.config import RunConfig
    from coterie.result import Result

app = typer.Typer(
    help="Clustered federated learning: find the groups hidden among clients and train a model per group.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(datacli.app, name="data")
app.add_typer(benchcli.app, name="bench")


@app.command()
def run(
    words: Words = None,
    out: Out = None,
    resume: Resume = None,
    track: Annotated[
        list[str] | None, typer.Option(metavar="TRACKER", help="tensorboard, mlflow or wandb, too; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a federation. Without a file: the demo's configuration.

    Example: coterie run method.name=wecfl method.k=4 rounds=30 seed=1 --out runs/a
    """
    from coterie import console
    from coterie.config import split_words
    from coterie.grid import free_directory

    file, changes = split_words(words or [])
    check_resume(resume, file, out)
    config = _config(file, changes, resume)
    path = resume or out or free_directory(config.method.name)
    result = _run(config, path, resume is not None, as_json, track=track or ())
    if as_json:
        _print_json(
            {"run_dir": str(result.run_dir), "rounds": config.rounds}
            | console.as_json(result.summary)
            | ({} if result.newcomers is None else {"newcomers": console.as_json(result.newcomers.summary)})
            | {"seconds": round(result.seconds, 3)}
        )
        return
    stdout = _console()
    rows = [(config.method.name, result.summary, result.seconds)]
    if result.newcomers is not None:
        rows.append(("  newcomers", result.newcomers.summary, result.seconds))
    stdout.print(console.results(rows))
    lost = console.missing_line(result.history)
    if lost:
        stdout.print(lost, style="yellow")
    stdout.print(f"run directory: {result.run_dir}", soft_wrap=True, highlight=False, markup=False, emoji=False)


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where the two runs go; runs/demo-N when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """FedAvg and WeCFL under the same budget, on 40 clients with rotated digits and four hidden clusters."""
    from coterie import console
    from coterie.config import read
    from coterie.grid import free_directory

    stdout = _console()
    base = out or free_directory("demo")
    rows: list[tuple[str, Result[Any]]] = []
    for name in ("fedavg", "wecfl"):
        config = read(None, [f"method.name={name}"])
        rows.append((name, _run(config, base / name, False, as_json, announce=not rows)))
    if as_json:
        _print_json(
            {"run_dir": str(base)}
            | {name: console.as_json(r.summary) | {"seconds": round(r.seconds, 3)} for name, r in rows}
        )
        return
    stdout.print(console.results([(name, r.summary, r.seconds) for name, r in rows]))
    stdout.print(f"run directory: {base}", soft_wrap=True, highlight=False, markup=False, emoji=False)


for command in (
    *(comparecli.compare, sweepcli.sweep, reportcli.report),
    *(dashboardcli.dashboard, reproducing.reproduce),
    *(servercli.server, clientcli.client, certscli.certs),
):
    app.command()(command)


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods, one line and the paper each."""
    _list("METHODS", as_json)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models."""
    _list("MODELS", as_json)


@app.command()
def partitions(as_json: AsJson = False) -> None:
    """List the ways to spread a data set over clients."""
    _list("PARTITIONS", as_json)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from coterie import __version__

        typer.echo(__version__)
        raise typer.Exit


def _list(kind: str, as_json: bool) -> None:
    import dataclasses

    from coterie import catalogue, console

    entries = list(getattr(catalogue, kind).entries())
    if as_json:
        _print_json([dataclasses.asdict(e) for e in entries])
    else:
        _console().print(console.listing(entries))


def _config(file: Path | None, changes: list[str], resume: Path | None) -> RunConfig:
    from coterie.config import read, read_file

    if resume is None:
        return read(file, changes)
    tree = read_file(resume / "config.yaml")
    if "network" in tree:
        raise CoterieError(f"{resume}: is a run over a network; go on with: coterie server --resume {resume}")
    return read(None, changes, base=tree)


def _run(
    config: RunConfig, path: Path, resume: bool, quiet: bool, announce: bool = True, track: Sequence[str] = ()
) -> Result[Any]:
    from coterie import console
    from coterie.execute import execute
    from coterie.trackers import tracker

    stderr = _console(stderr=True, quiet=quiet)
    datacli.fetch_for(config, stderr)

    def say(line: str) -> None:
        if announce or line.startswith("engine"):
            stderr.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    try:
        with console.progress(stderr, config.method.name) as listen, ExitStack() as opened:
            trackers = [opened.enter_context(tracker(name, path, config.dump())) for name in track]
            return execute(config, path, resume=resume, listeners=[listen, *trackers], say=say)
    except KeyboardInterrupt:
        begun = (path / "config.yaml").is_file()
        again = f"go on with: coterie run --resume {path}" if begun else "it had not begun, so nothing was kept"
        sys.stderr.write(f"interrupted; {again}\n")
        raise typer.Exit(130) from None


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _console(stderr: bool = False, quiet: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, quiet=quiet)


def main() -> None:
    """The entry point: a user's mistake is one clear message and exit code 2."""
    end_with_parent()
    # A user's own module, named module:Class, is looked for where the command is run.
    sys.path.insert(0, str(Path.cwd()))
    try:
        app(prog_name="coterie")
    except CoterieError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
