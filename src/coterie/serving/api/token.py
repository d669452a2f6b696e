"""The bearer token of a service that other machines can reach."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.network.certificates import check_private
from coterie.serving.address import is_local

VARIABLE = "COTERIE_API_TOKEN"
SHORTEST = 16
MAKE = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"


def read_token(host: str, file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The token of a file or of the environment; it must be there where other machines can reach the service."""
    where = VARIABLE if file is None else str(file)
    try:
        text = environment.get(VARIABLE) if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CoterieError(f"--token-file {file}: cannot be read ({why})", code="option-invalid") from None
    if file is not None:
        check_private(file, "a token")
    if text is None:
        if is_local(host):
            return None
        raise CoterieError(
            f"--host {host}: other machines can reach this, so a token is needed: set {VARIABLE}, or write "
            f"--token-file FILE (one to use: {MAKE})",
            code="option-missing",
        )
    token = text.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise CoterieError(
            f"{where}: a token has at least {SHORTEST} letters, digits and signs, without spaces (one to use: {MAKE})",
            code="option-invalid",
        )
    return token
