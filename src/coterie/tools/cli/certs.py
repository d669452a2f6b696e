"""`coterie certs`: certificates and keys for a server and its clients, in one step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coterie.network.certificates import Standing


def certs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are, or shall be.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or IP address that clients reach the server by; repeatable."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A client to make a key for; repeatable.")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Issue the server's certificate anew; clients named get a new key.")
    ] = False,
    revoke: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A client whose key the server refuses from now on.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long a new certificate or key is good for.")] = 825,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")
    ] = False,
) -> None:
    """Make a server's TLS certificate and a key for every client; call it again to add hosts or clients.

    Example: coterie certs certs --host fl.example.org --host 10.0.0.5 --client hospital-a --client hospital-b
    """
    from coterie.network.certificates import provide
    from coterie.network.certificates import revoke as withdraw

    for place in withdraw(directory, revoke) if revoke else ():
        sys.stderr.write(f"revoked: its key is in {place}; a running server refuses it from the next round on\n")
    standing = provide(directory, host or (), client or (), renew=renew, days=days)
    for warning in standing.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    typer.echo(json.dumps(_as_json(standing), indent=2) if as_json else "\n".join(_as_text(standing)))


def _as_text(standing: Standing) -> list[str]:
    """What there is, then who is to get what."""
    from coterie.network.certificates import fingerprint, valid_until

    where = standing.directory
    lines = [
        f"server   {where}/server.pem, {'new, ' if standing.issued else ''}until {standing.until:%Y-%m-%d}, "
        f"for {', '.join(standing.hosts)}"
    ]
    for name, public in standing.clients:
        note = f"; new: give {name} the directory {public.parent}, privately" if name in standing.made else ""
        until = valid_until(public)
        end = "" if until is None else f"until {until:%Y-%m-%d}, "
        lines.append(f"client   {name}, {end}{fingerprint(public)}{note}")
    lines.append(
        f"Only {where}/clients/NAME ever leaves the server, each to NAME alone. {where}/ca.key can be locked away."
    )
    lines.append(f"Then:    coterie server CONFIG --certs {where} --host 0.0.0.0")
    if standing.clients:
        lines.append(f"Clients: coterie client --server {standing.hosts[0]}:8000 --key .../clients/NAME --data ...")
    else:
        lines.append(f"No client has a key yet: coterie certs {where} --client NAME")
    return lines


def _as_json(standing: Standing) -> dict[str, object]:
    from coterie.network.certificates import fingerprint, valid_until

    return {
        "directory": str(standing.directory),
        "server": {
            "hosts": list(standing.hosts),
            "valid_until": standing.until.isoformat(),
            "new": standing.issued,
        },
        "ca": {"valid_until": standing.ca_until.isoformat()},
        "clients": [
            {
                "name": name,
                "directory": str(public.parent),
                "fingerprint": fingerprint(public),
                "valid_until": None if until is None else until.isoformat(),
                "new": name in standing.made,
            }
            for name, public, until in ((name, public, valid_until(public)) for name, public in standing.clients)
        ],
        "warnings": list(standing.warnings),
    }
