"""`coterie run --resume RUN` with --more, --with or --back-to: a run that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from coterie.training.config import RunConfig

More = Annotated[int | None, typer.Option(metavar="ROUNDS", help="With --resume: so many rounds more.")]
With = Annotated[
    Path | None,
    typer.Option("--with", metavar="NEW", help="With --resume: clients to add; a file as the run's own data, or YAML."),
]
BackTo = Annotated[
    int | None,
    typer.Option(metavar="ROUND", help="With --resume: go back to this round; later ones are kept in abandoned-N."),
]


def prepared(
    resume: Path | None,
    config: RunConfig,
    more: int | None,
    new: Path | None,
    back_to: int | None,
    changes: Sequence[str],
    console: Any,
) -> RunConfig:
    """The configuration of a run that goes on; its directory is changed where clients are added or it goes back."""
    if (more, new, back_to) == (None, None, None):
        return config
    if resume is None:
        raise CoterieError(
            "--more, --with and --back-to change a run that is there: name it with --resume DIR", code="option-conflict"
        )
    if any(word.startswith("rounds=") for word in changes) and (more is not None or back_to is not None):
        raise CoterieError(
            "--more and --back-to say how many rounds the run has; leave rounds= out", code="option-conflict"
        )
    from coterie.training.going_on import Change
    from coterie.training.going_on import prepared as changed

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    return changed(resume, config, Change(more, new, back_to), say)
