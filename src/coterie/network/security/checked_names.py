"""Names that `coterie certs` is given: of hosts, and of clients."""

from __future__ import annotations

import ipaddress
import re

from coterie.core.errors import CoterieError

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"


def host_name(host: str) -> str:
    """As a certificate names it: an IP address in its usual form, or a host name in lower case."""
    try:
        return str(ipaddress.IPv6Address(host) if ":" in host and "%" not in host else ipaddress.IPv4Address(host))
    except ValueError:
        pass
    labels = host.lower().split(".")
    if len(host) > 253 or labels[-1].isdigit() or not all(re.fullmatch(LABEL, label) for label in labels):
        raise CoterieError(
            f"--host {host}: write a host name or an IP address, without port, like fl.example.org",
            code="option-invalid",
        )
    return host.lower()


def file_name(name: str) -> str:
    """The name of a client, which is also that of its files."""
    if not re.fullmatch(NAME, name) or name.endswith(".pub") or name == "ca.crt":
        raise CoterieError(
            f"--client {name}: write at most 64 letters, digits, '.', '_' or '-', a letter or digit first, "
            "not ca.crt and not ending in .pub",
            code="option-invalid",
        )
    return name
