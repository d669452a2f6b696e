"""How a method followed data that changed in the course of a run: the clusters found again, and scores since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.files import plain_bytes
from coterie.data.federation import Federation
from coterie.training import round_history

if TYPE_CHECKING:
    from coterie.training.result import Result

FOUND = 0.9  # an ARI that counts as having found the clusters


@dataclass(frozen=True)
class Following:
    """How a run went after its data changed.

    changes: the first rounds on changed data. waits: how many rounds after each the ARI was 0.9 or more; 0 is the round
    of the change itself, None not before the next change or the end. accuracy, loss: mean from the first change on.
    """

    changes: tuple[int, ...]
    waits: tuple[int | None, ...] | None  # None: there are no true clusters to find
    accuracy: float | None  # None: a regression
    loss: float

    def __str__(self) -> str:
        said = f"the data changed in round {', '.join(map(str, self.changes))}"
        if self.waits is not None:
            waits = ", ".join("never" if wait is None else str(wait) for wait in self.waits)
            said += f"; rounds until the ARI was {FOUND} or more: {waits}"
        score = f"loss {self.loss:.4g}" if self.accuracy is None else f"accuracy {100 * self.accuracy:.1f} %"
        return f"{said}; mean since the first change: {score}"


def changes_in(clients: object) -> tuple[int, ...]:
    """The first rounds, from 1, in which the data is not what it was in the round before."""
    if not isinstance(clients, Federation) or clients.course is None:
        return ()
    return tuple(start + 1 for p, start in enumerate(clients.course.starts) if clients.course.drifted(p).any())


def recorded(path: Path) -> tuple[int, ...]:
    """The same, as run.json has it, for a run that is read back without its data; nothing where it says nothing."""
    try:
        found = parse_json(plain_bytes(path / "run.json"))
    except (OSError, DecodeError):
        return ()
    rounds = found.get("changes") if isinstance(found, dict) else None
    rounds = rounds if isinstance(rounds, list) else []
    return tuple(sorted({one for one in rounds if type(one) is int and one > 0}))


def waits_after(changes: Sequence[int], rounds: ArrayLike, ari: ArrayLike, end: int) -> tuple[int | None, ...]:
    """Rounds from each change to the first evaluated one with an ARI of 0.9 or more, before the next change.

    end: the number of rounds; None where it is not reached.
    """
    rounds, ari, waits = np.asarray(rounds), np.asarray(ari, dtype=np.float64), list[int | None]()
    for start, until in pairwise([*changes, end + 1]):
        hits = rounds[(rounds >= start) & (rounds < until) & (ari >= FOUND)]
        waits.append(int(hits.min()) - start if len(hits) else None)
    return tuple(waits)


def mean_since(first: int, rounds: ArrayLike, values: ArrayLike) -> float | None:
    """The mean of a score over the evaluated rounds from the first change on: the area under its curve."""
    here = np.asarray(values, dtype=np.float64)[np.asarray(rounds) >= first]
    return float(here[~np.isnan(here)].mean()) if (~np.isnan(here)).any() else None


def following(result: Result[Any]) -> Following | None:
    """Of a run that has ended; None where its data did not change, or was not scored since."""
    history = {event.round: event for event in result.history}
    if result.run_dir is not None:  # of a resumed run, the rounds of before
        history = {number: event for number, (_, event) in round_history.read(result.run_dir).items()} | history
    done = max(history, default=0)
    known = changes_in(result.known) or (() if result.run_dir is None else recorded(result.run_dir))
    changes = tuple(change for change in known if change <= done)
    scored = ((number, history[number].summary or history[number].validation) for number in sorted(history))
    found = [(number, summary) for number, summary in scored if summary is not None]
    rounds = [number for number, _ in found]
    loss = mean_since(changes[0], rounds, [summary.loss for _, summary in found]) if changes else None
    if loss is None:
        return None
    ari = np.array([np.nan if summary.ari is None else summary.ari for _, summary in found])
    accuracy = [np.nan if summary.accuracy is None else summary.accuracy for _, summary in found]
    waits = None if np.isnan(ari).all() else waits_after(changes, rounds, ari, done)
    return Following(changes, waits, mean_since(changes[0], rounds, accuracy), loss)
