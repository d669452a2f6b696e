"""`coterie client`: take part in a federation with one's own data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from coterie.network.certificates import ClientFiles
    from coterie.network.local_privacy import PrivacyGuard

State = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where it keeps what is its own; ./coterie-NAME when not given.")
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="That computes: auto, cpu, cuda, cuda:1, mps or xpu.")]
TrustedNetworks = Annotated[
    list[str] | None, typer.Option(metavar="MODULE:NET", help="A network beyond the catalogue's; repeatable.")
]

Allowed = Annotated[
    list[str] | None,
    typer.Option(metavar="WHAT", help="What else the server may ask for: describe, a few numbers on the data."),
]


def client(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server.")],
    data: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION|PATH", help="This client's data; it stays here. (a.csv,y=outcome)")
    ],
    key: Annotated[Path | None, typer.Option(metavar="DIR", help="What the server handed over (clients/NAME).")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys: for a try-out only.")] = False,
    name: Annotated[str | None, typer.Option(help="Who this client is; with a key, the key says it.")] = None,
    state: State = None,
    save_model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Store this client's model there, after every evaluation.")
    ] = None,
    local_privacy: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE,...", help="Add noise here, whatever the server does: epsilon=8,visits=30."),
    ] = None,
    trust: TrustedNetworks = None,
    allow: Allowed = None,
    device: Device = "auto",
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
    from coterie.network.flower.internals import require_flower

    require_flower("coterie client")
    _check(server, key, insecure, allow or ())
    files, who = _identity(key, name)
    place = state or Path(f"coterie-{who}")

    from coterie.core.compute import Compute
    from coterie.core.processes import by_sigterm, exit_code
    from coterie.core.settings import settings_from
    from coterie.network.certificates import private_files
    from coterie.network.client_data import own_data
    from coterie.network.client_state import DirectoryStore
    from coterie.network.flower.supernode import ServerConnection, run_client
    from coterie.network.worker import ClientWorker

    worker = ClientWorker(
        *(who, lambda: own_data(data), DirectoryStore(place / "kept")),
        trusted=tuple(trust or ()),
        allowed=tuple(allow or ()),
        say=_say,
        save_to=save_model,
        guard=None if local_privacy is None else _guard(local_privacy, place),
        compute=settings_from(Compute, device=device).resolved(),
    )
    try:
        with by_sigterm(), private_files():
            run_client(ServerConnection(server, files, look), worker, place / "flower", port, patience, _say)
    except KeyboardInterrupt as why:
        raise typer.Exit(exit_code(why)) from None


def _guard(text: str, place: Path) -> PrivacyGuard:
    """What makes the client's answers private; the budget is said before anything is sent."""
    from coterie.layers.accountant import require_accounting
    from coterie.network.local_privacy import PrivacyGuard, read_local_privacy

    require_accounting()
    guard = PrivacyGuard(read_local_privacy(text), place, say=_say)
    asked = guard.settings
    _say(
        f"local privacy: epsilon {asked.epsilon:g} at delta {asked.delta:g} for {asked.visits} visits, "
        f"{guard.visits} of them done; noise {guard.settings.noise:.3g} times twice the clip {asked.clip:g}"
    )
    return guard


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _check(server: str, key: Path | None, insecure: bool, allow: Sequence[str]) -> None:
    """Options that contradict each other or do not exist, before anything is started."""
    if (key is None) != insecure:
        raise CoterieError(
            "--key DIR (the directory that the server handed over) or, for a try-out, --insecure"
            + ("" if key is None else "; not both"),
            code="option-conflict",
        )
    if not _is_address(server):
        raise CoterieError(
            f"--server {server}: expected HOST:PORT, for example fl.example.org:8000", code="option-invalid"
        )
    if set(allow) - {"describe"}:
        raise CoterieError(f"--allow {' '.join(allow)}: only describe can be allowed", code="option-invalid")


def _is_address(server: str) -> bool:
    host, colon, port = server.rpartition(":")
    return bool(host and colon) and port.isdigit() and 0 < int(port) < 65536


def _identity(key: Path | None, name: str | None) -> tuple[ClientFiles | None, str]:
    """The files of the key, and who the client is: the key says it where there is one."""
    from coterie.network.certificates import client_files
    from coterie.network.messages import check_name

    if key is None:
        if name is None:
            raise CoterieError(
                "--name: who is this client? Without a key it must say, for example --name hospital-a",
                code="option-missing",
            )
        return None, check_name(name, "--name")
    files = client_files(key)
    if name not in (None, files.name):
        raise CoterieError(f"--name {name}: the key is {files.name}'s; leave the name out", code="option-conflict")
    return files, check_name(files.name, "--name")
