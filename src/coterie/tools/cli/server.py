"""`coterie server`: train with real clients over a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError
from coterie.tools.cli.options import AsJson, Out, Resume, Trust, Words, check_resume

if TYPE_CHECKING:
    from coterie.network.config import ServerConfig
    from coterie.training.events import Event, Listener
    from coterie.training.result import Result


def server(
    words: Words = None,
    out: Out = None,
    resume: Resume = None,
    trust: Trust = None,
    certs: Annotated[Path | None, typer.Option(metavar="DIR", help="What `coterie certs` made.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: for a try-out only.")] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    inspect: Annotated[
        bool, typer.Option("--inspect", help="Say whether the clients form clusters, and train nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train with real clients. The data stays with them; a file for `coterie run` will do.

    Example: coterie server wecfl.yaml network.clients=3 --certs certs --host 0.0.0.0 --out runs/hospitals
    """
    from coterie.core.registry import Consent
    from coterie.layers.privacy import check_with_clients
    from coterie.network.config import read
    from coterie.network.flower.internals import require_flower
    from coterie.training.build import build_method
    from coterie.training.config import read_file, split_words
    from coterie.training.run_directory import free_directory

    require_flower("coterie server")
    _check(certs, insecure, inspect, made=resume is not None or out is not None)
    file, changes = split_words(words or [])
    check_resume(resume, file, out)
    tree = None if resume is None else read_file(resume / "config.yaml")
    if tree is not None and "network" not in tree:
        raise CoterieError(f"{resume}: is a simulation; go on with: coterie run --resume {resume}", code="run-kind")
    source = "" if resume is None else str(resume / "config.yaml")
    config = read(file, changes, tree, Consent(frozenset(trust or ()), source=source))
    if inspect:
        _inspect(config, words or [], host, port, certs, as_json)
        return
    check_with_clients(build_method(config), config.settings)  # a mistake is told before anything listens
    path = resume or out or free_directory(config.method.name)
    _run(config, path, host, port, certs, resume is not None, as_json)


def _check(certs: Path | None, insecure: bool, inspect: bool, made: bool) -> None:
    """Options that contradict each other, before anything is read."""
    if (certs is None) != insecure:
        raise CoterieError(
            "--certs DIR (see `coterie certs`) or, for a try-out on one machine, --insecure"
            + ("" if certs is None else "; not both"),
            code="option-conflict",
        )
    if inspect and made:
        raise CoterieError("--inspect trains nothing, so it has no --out and no --resume", code="option-conflict")


def _inspect(
    config: ServerConfig, words: Sequence[str], host: str, port: int, certs: Path | None, as_json: bool
) -> None:
    from rich.console import Console

    from coterie.core.processes import by_sigterm
    from coterie.network.flower.superlink import ServerEndpoint, serve_inspection
    from coterie.tools.cli.inspect import command, show

    stderr = Console(stderr=True, quiet=as_json)

    def say(line: str) -> None:
        stderr.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    with by_sigterm():
        found = serve_inspection(config, ServerEndpoint(host, port, certs), say)
    where = _where(host, port, certs)
    show(found, [f"{line} {where}" for line in command("server", words, found)], None, as_json)


def _where(host: str, port: int, certs: Path | None) -> str:
    """The words that make a server listen there."""
    import shlex

    trusted = ["--insecure"] if certs is None else ["--certs", str(certs)]
    return shlex.join([*trusted, "--host", host, "--port", str(port)])


def _run(
    config: ServerConfig, path: Path, host: str, port: int, certs: Path | None, resume: bool, as_json: bool
) -> None:
    import sys

    from rich.console import Console

    from coterie.core.processes import exit_code, interruptible
    from coterie.network.certificates import private_files
    from coterie.network.flower.superlink import ServerEndpoint, serve
    from coterie.tools.cli import console
    from coterie.tools.cli.options import stopping
    from coterie.training.run_directory import check_free, read_history
    from coterie.training.trust import trust_words

    if not resume:
        check_free(path)
    done = [event.round for event in read_history(path, config.rounds)]
    if resume and len(done) == config.rounds and (path / "clients.json").is_file():
        raise CoterieError(
            f"{path}: all {config.rounds} rounds are done; rounds={2 * config.rounds} goes further", code="run-complete"
        )
    stderr = Console(stderr=True, quiet=as_json)

    def say(line: str) -> None:
        stderr.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    try:
        with (
            interruptible(stopping) as interruption,
            private_files(),
            console.progress(stderr, config.method.name) as listen,
        ):
            listeners = [listen] if stderr.is_terminal else [listen, _line_by_line(say)]
            where = ServerEndpoint(host, port, certs)
            result = serve(config, path, where, resume=resume, listeners=listeners, say=say, interruption=interruption)
    except KeyboardInterrupt as why:
        begun = (path / "config.yaml").is_file()
        words = f"--resume {path} {_where(host, port, certs)}{trust_words(config.dump())}"
        again = f"; go on with: coterie server {words}" if begun else ""
        sys.stderr.write(f"interrupted{again}\n")
        raise typer.Exit(exit_code(why)) from None
    _show(result, config, path, as_json)


def _show(result: Result[Any], config: ServerConfig, path: Path, as_json: bool) -> None:
    """What has come out, in a table or as JSON."""
    import json
    import sys

    from rich.console import Console

    from coterie.tools.cli import console
    from coterie.training.run_directory import read_history

    if as_json:
        found = {"run_dir": str(path), "rounds": config.rounds} | console.as_json(result.summary)
        found |= {"seconds": round(result.seconds, 3)}
        found |= console.privacy_json(result.privacy)
        found |= {"warnings": list(result.warnings)} if result.warnings else {}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    stdout = Console()
    stdout.print(console.results([(config.method.name, result.summary, result.seconds)]))
    if (spent := console.privacy_line(result.privacy)) is not None:
        stdout.print(spent, highlight=False, soft_wrap=True)
    lost = console.missing_line(read_history(path, config.rounds))  # of the whole run, also where it was resumed
    if lost:
        stdout.print(lost, style="yellow")
    console.warned(result.warnings, stdout)
    stdout.print(f"run directory: {path}", soft_wrap=True, highlight=False, markup=False, emoji=False)


def _line_by_line(say: Callable[[str], None]) -> Listener:
    """A line per round, for a log."""
    from coterie.tools.cli import console
    from coterie.training.events import RoundDone

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            found = (
                "" if event.summary is None else f", {console.score(event.summary)}, sizes {list(event.summary.sizes)}"
            )
            say(f"round {event.round}: {event.answered} of {event.asked} answered in {event.seconds:.1f} s{found}")

    return listen
