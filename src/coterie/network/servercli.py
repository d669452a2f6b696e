"""`coterie server`: train with real clients over a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.errors import CoterieError
from coterie.options import AsJson, Out, Resume, Words, check_resume

if TYPE_CHECKING:
    from coterie.events import Event, Listener


def server(
    words: Words = None,
    out: Out = None,
    resume: Resume = None,
    certs: Annotated[Path | None, typer.Option(metavar="DIR", help="What `coterie certs` made.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: for a try-out only.")] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    as_json: AsJson = False,
) -> None:
    """Train with real clients. The data stays with them; a file for `coterie run` will do.

    Example: coterie server wecfl.yaml network.clients=3 --certs certs --host 0.0.0.0 --out runs/hospitals
    """
    from coterie.config import read_file, split_words
    from coterie.grid import free_directory
    from coterie.network.need import need_flower
    from coterie.network.settings import read

    need_flower("coterie server")
    if (certs is None) != insecure:
        raise CoterieError(
            "--certs DIR (see `coterie certs`) or, for a try-out on one machine, --insecure"
            + ("" if certs is None else "; not both")
        )
    file, changes = split_words(words or [])
    check_resume(resume, file, out)
    tree = None if resume is None else read_file(resume / "config.yaml")
    if tree is not None and "network" not in tree:
        raise CoterieError(f"{resume}: is a simulation; go on with: coterie run --resume {resume}")
    config = read(file, changes, tree)
    path = resume or out or free_directory(config.method.name)
    _run(config, path, host, port, certs, resume is not None, as_json)


def _run(config: object, path: Path, host: str, port: int, certs: Path | None, resume: bool, as_json: bool) -> None:
    import json
    import sys

    from rich.console import Console

    from coterie import console
    from coterie.config import build_method
    from coterie.network.serve import Listening, serve
    from coterie.network.settings import ServerConfig
    from coterie.store import check_free, read_history

    assert isinstance(config, ServerConfig)
    build_method(config)  # a mistake in it is told before anything listens
    if not resume:
        check_free(path)
    done = [event.round for event in read_history(path, config.rounds)]
    if resume and len(done) == config.rounds and (path / "clients.json").is_file():
        raise CoterieError(f"{path}: all {config.rounds} rounds are done; rounds={2 * config.rounds} goes further")
    stderr = Console(stderr=True, quiet=as_json)

    def say(line: str) -> None:
        stderr.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    try:
        with console.progress(stderr, config.method.name) as listen:
            listeners = [listen] if stderr.is_terminal else [listen, _line_by_line(say)]
            result = serve(config, path, Listening(host, port, certs), resume=resume, listeners=listeners, say=say)
    except KeyboardInterrupt:
        begun = (path / "config.yaml").is_file()
        sys.stderr.write("interrupted" + (f"; go on with: coterie server --resume {path}\n" if begun else "\n"))
        raise typer.Exit(130) from None
    if as_json:
        found = {"run_dir": str(path), "rounds": config.rounds} | console.as_json(result.summary)
        sys.stdout.write(json.dumps(found | {"seconds": round(result.seconds, 3)}, indent=2) + "\n")
        return
    stdout = Console()
    stdout.print(console.results([(config.method.name, result.summary, result.seconds)]))
    lost = console.missing_line(result.history)
    if lost:
        stdout.print(lost, style="yellow")
    stdout.print(f"run directory: {path}", soft_wrap=True, highlight=False, markup=False, emoji=False)


def _line_by_line(say: Callable[[str], None]) -> Listener:
    """A line per round, for a log."""
    from coterie import console
    from coterie.events import RoundDone

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            found = (
                "" if event.summary is None else f", {console.score(event.summary)}, sizes {list(event.summary.sizes)}"
            )
            say(f"round {event.round}: {event.answered} of {event.asked} answered in {event.seconds:.1f} s{found}")

    return listen
