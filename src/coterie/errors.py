"""What went wrong, where, and what to write instead: every error a user can cause is one of these."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(Exception):
    """A mistake in the input or a run that cannot go on. The command line prints it and exits with 2."""


class QuorumError(CoterieError):
    """Too few of the clients that were asked have answered."""


class ResumeError(CoterieError):
    """What a run left behind is another run's or damaged: this one cannot go on from there."""


def suggest(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' when a known name is near, and the list of the known ones."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{hint} Known: {', '.join(options)}." if options else hint
