"""`coterie client`: take part in a federation with one's own data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import CoterieError


def client(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server.")],
    data: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION|PATH", help="This client's data; it stays here. (a.csv,y=outcome)")
    ],
    key: Annotated[Path | None, typer.Option(metavar="DIR", help="What the server handed over (clients/NAME).")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: for a try-out only.")] = False,
    name: Annotated[str | None, typer.Option(help="Who this client is; with a key, the key says it.")] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it keeps what is its own; ./coterie-NAME when not given.")
    ] = None,
    trust: Annotated[
        list[str] | None, typer.Option(metavar="MODULE:NET", help="A network beyond the catalogue's; repeatable.")
    ] = None,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to try again where it is not let in.")] = 150.0,
    look: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds between two looks for a message; more spare the server.")
    ] = 1.0,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="A local port for Flower; a free one when not given.")
    ] = None,
) -> None:
    """Take part with one's own data. Nothing but what the server's tasks ask for leaves this machine.

    Example: coterie client --server fl.example.org:8000 --key hospital-a --data records.parquet,y=outcome
    """
    from coterie.network.errand import check_name
    from coterie.network.need import need_flower

    need_flower("coterie client")
    if (key is None) != insecure:
        raise CoterieError(
            "--key DIR (the directory that the server handed over) or, for a try-out, --insecure"
            + ("" if key is None else "; not both")
        )
    if key is None and name is None:
        raise CoterieError("--name: who is this client? Without a key it must say, for example --name hospital-a")
    if not _is_address(server):
        raise CoterieError(f"--server {server}: expected HOST:PORT, for example fl.example.org:8000")

    from coterie.network.certs import client_files

    files = None if key is None else client_files(key)
    if files is not None and name not in (None, files.name):
        raise CoterieError(f"--name {name}: the key is {files.name}'s; leave the name out")
    who = check_name(files.name if files is not None else str(name), "--name")
    place = state or Path(f"coterie-{who}")

    from coterie.network.desk import Desk
    from coterie.network.node import Membership, attend
    from coterie.network.own import own_data
    from coterie.network.shelf import Folder

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    desk = Desk(who, lambda: own_data(data), Folder(place / "kept"), trusted=tuple(trust or ()), say=say)
    try:
        attend(Membership(server, files, look), desk, place / "flower", port, patience, say)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _is_address(server: str) -> bool:
    host, colon, port = server.rpartition(":")
    return bool(host and colon) and port.isdigit() and 0 < int(port) < 65536
