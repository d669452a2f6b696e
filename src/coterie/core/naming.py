"""How clients are named in messages: by name, and by number only if they have no names."""

from __future__ import annotations

from collections.abc import Sequence


def client_name(names: Sequence[str] | None, client: int) -> str:
    """client 'Ada', or client 3 for clients without names. Quotes distinguish a name from a number: client '7'."""
    known = names is not None and 0 <= client < len(names)
    return f"client '{names[client]}'" if names is not None and known else f"client {client}"


def as_written(names: Sequence[str] | None, client: str) -> int | str:
    """A client as a command line names it: by its name, or by its number.

    Where names are numbers themselves, a number is always a name: a mistyped one must not give another client's model.
    """
    if names and (client in names or names[0].isdecimal()):
        return client
    return int(client) if client.isdecimal() else client


def end_to_end(names: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """The names of all; none where some have none, or two would be the same."""
    found = [name for part in names if part is not None for name in part]
    return tuple(found) if None not in names and len(set(found)) == len(found) else None
