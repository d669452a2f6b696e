"""How clients are named in messages: by name, and by number only if they have no names."""

from __future__ import annotations

from collections.abc import Sequence


def client_name(names: Sequence[str] | None, client: int) -> str:
    """client 'Ada', or client 3 for clients without names. Quotes distinguish a name from a number: client '7'."""
    known = names is not None and 0 <= client < len(names)
    return f"client '{names[client]}'" if names is not None and known else f"client {client}"
