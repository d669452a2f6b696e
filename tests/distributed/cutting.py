"""A client whose upload breaks off in the middle when a test says so: it announces its answer, sends a part of it, and
is gone. `cutting.py SERVER KEY DATA STATE` is the client; the file STATE/cut makes its next upload such a one.

It starts its SuperNode with this file, which then runs as `cutting.py flower-supernode ...`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CUT = "cut"
FIRST = 2  # parts that are sent; a report has more


def cut_uploads(mark: Path) -> None:
    """Have this SuperNode die in the middle of an upload, once the file is there."""
    from flwr.supernode import start_client_internal as node

    whole = node.push_object_contents_from_iterable

    def push(contents: Iterable[tuple[str, bytes]], push_object_fn: Callable[[str, bytes], None]) -> None:
        if not mark.exists():
            whole(contents, push_object_fn)
            return
        parts = list(contents)
        if len(parts) <= FIRST:
            whole(parts, push_object_fn)
            return
        mark.unlink()
        whole(parts[:FIRST], push_object_fn)
        os.kill(os.getpid(), signal.SIGKILL)

    node.push_object_contents_from_iterable = push


def client(server: str, key: str, data: str, state: str) -> None:
    """As `coterie client`."""
    from coterie.network.certificates import client_files
    from coterie.network.client_data import own_data
    from coterie.network.client_state import DirectoryStore
    from coterie.network.flower import processes
    from coterie.network.flower.supernode import ServerConnection, run_client
    from coterie.network.worker import ClientWorker

    def say(line: str) -> None:
        print(line, flush=True)

    processes.LAUNCHER = (__file__,)
    os.environ[CUT] = str(Path(state, CUT).absolute())
    files = client_files(Path(key))
    worker = ClientWorker(files.name, lambda: own_data(data), DirectoryStore(Path(state) / "kept"), say=say)
    run_client(ServerConnection(server, files), worker, Path(state) / "flower", say=say)


def main(*words: Any) -> None:
    """Be the client, or its SuperNode."""
    if words[0] != "flower-supernode":
        client(*words)
        return
    from coterie.network.flower import launcher

    cut_uploads(Path(os.environ[CUT]))
    launcher.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
