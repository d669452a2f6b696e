"""How a client is called wherever a person reads of it: by its name, and by its number only where it has none."""

from __future__ import annotations

from collections.abc import Sequence


def client_name(names: Sequence[str] | None, client: int) -> str:
    """client 'Ada', or client 3 of clients without names. The quotes tell a name from a number: client '7'."""
    known = names is not None and 0 <= client < len(names)
    return f"client '{names[client]}'" if names is not None and known else f"client {client}"
