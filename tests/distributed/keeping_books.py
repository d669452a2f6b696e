"""`coterie server`, and beside it a line per round of who was asked and who answered, for the soak to replay."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from coterie.network.config import read
from coterie.network.flower.superlink import ServerEndpoint, serve
from coterie.training.config import read_file
from coterie.training.events import Event, RoundDone


def main(run: str, port: str, *words: str) -> None:
    """Begin the run, or go on with it."""
    path = Path(run)
    resume = (path / "config.yaml").is_file()
    config = read(None, words, read_file(path / "config.yaml") if resume else None)

    def note(event: Event) -> None:
        if isinstance(event, RoundDone) and event.fresh is not None and event.fresh.trained is not None:
            line = {
                "round": event.round,
                "answered": event.fresh.trained.ids.tolist(),
                "missing": [m.client for m in event.missing],
                "attempts": event.attempts,
            }
            with Path(f"{run}.books").open("a", encoding="utf-8") as books:
                books.write(json.dumps(line) + "\n")

    serve(
        config, path, ServerEndpoint("127.0.0.1", int(port), Path("certs")), resume=resume, listeners=[note], say=_say
    )


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
