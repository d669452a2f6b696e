"""What a command says when it is asked to stop while a round is under way."""

from __future__ import annotations

import os
from contextlib import suppress


def stopping() -> None:
    """Said from a signal handler, which may have come while a stream was being written to: so past the streams."""
    with suppress(OSError):
        os.write(2, b"\nstopping after this round; once more to stop at once\n")
