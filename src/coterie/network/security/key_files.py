"""Who may read and write the files that trust rests on, and until when a client's key is valid."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from coterie.core.errors import CoterieError

UNTIL = "valid-until"  # beside a client's key; without it (made by an earlier version) a key does not expire
OTHERS = stat.S_IRWXO | stat.S_IWGRP  # a group may read: that is how containers are given their keys


def check_private(secret: Path, what: str = "a private key") -> Path:
    """Refuse a secret that others can read or replace; returns it."""
    if os.name != "nt" and stat.S_IMODE(secret.stat().st_mode) & OTHERS:
        raise CoterieError(
            f"{secret}: {what} that others can read or replace is not used; chmod 600 {secret}, and make a new one if "
            "somebody may have read it",
            code="file-exposed",
        )
    return secret


def check_not_shared(directory: Path) -> None:
    """Refuse a directory that everybody can write to: who replaces a checkpoint or members.json replaces the models."""
    if os.name != "nt" and directory.is_dir() and directory.stat().st_mode & stat.S_IWOTH:
        raise CoterieError(
            f"{directory}: everybody on this machine can write to it; chmod o-w {directory}, or choose another place",
            code="file-exposed",
        )


@contextmanager
def private_files() -> Iterator[None]:
    """What this process creates meanwhile is not for others: a narrower umask of the user stays as it is."""
    before = os.umask(0o077)
    os.umask(before | 0o027)
    try:
        yield
    finally:
        os.umask(before)


def valid_until(public: Path) -> datetime | None:
    """The end of a client's key; None where it has none."""
    file = public.parent / UNTIL
    try:
        found = datetime.fromisoformat(file.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CoterieError(
            f"{file}: does not say until when the key is valid ({error}); write a time such as "
            "2028-01-31T00:00:00+00:00, or make a new key",
            code="certificate-invalid",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def has_expired(public: Path, now: datetime | None = None) -> bool:
    """Whether a client's key is over."""
    until = valid_until(public)
    return until is not None and until <= (now or datetime.now(UTC))
