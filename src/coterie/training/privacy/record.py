"""privacy.json in a run's directory: what the run has cost every client, and what the numbers mean."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.core.files import write_durably, writing
from coterie.core.tables import Clients
from coterie.data.federation import Federation
from coterie.training.config import read_file
from coterie.training.events import RoundDone
from coterie.training.privacy.ledger import Ledger
from coterie.training.settings import Settings

FILE = "privacy.json"
RELATION = "one client's data added or removed; who is on the roster is known"


def contents(ledger: Ledger, clients: Clients) -> dict[str, Any]:
    """Every client of the roster with its epsilon, by id."""
    plan, ids = ledger.plan, clients.roster.ids
    found = zip(ids.tolist(), ledger.epsilon_of(ids), strict=True)
    return {
        "relation": RELATION,
        "epsilon": _number(max(ledger.epsilon_of(ids), default=0.0)),
        "delta": plan.settings.delta,
        "clip": plan.settings.clip,
        "noise": plan.noise,
        "signal_noise": plan.signal_noise if plan.most_signals else None,
        "poisson_share": plan.share,
        "attempts": ledger.attempts,
        "clients": {str(client): _number(epsilon) for client, epsilon in found},
    }


def kept(path: Path, ledger: Ledger, clients: Clients) -> dict[str, Any]:
    """What a checkpoint keeps of it, once privacy.json is written."""
    with writing(path / FILE):
        write_durably(path / FILE, json.dumps(contents(ledger, clients), indent=1) + "\n")
    return ledger.packed()


def check_unchanged(path: Path, what: str) -> None:
    """Refuse what a run with privacy cannot do, before anything is written down. what: `cannot ...`, and why."""
    if (path / FILE).is_file() or read_file(path / "config.yaml").get("privacy") is not None:
        raise CoterieError(f"{path}: a run with privacy cannot {what}", code="privacy-budget")


def check_whole(settings: Settings, clients: Clients, damaged: Sequence[Path]) -> None:
    """Refuse to go on from an older checkpoint than the newest: what was released after it would be forgotten. In a
    simulation the same noise is drawn again, so nothing more is released."""
    if damaged and settings.privacy is not None and not isinstance(clients, Federation):
        raise CoterieError(
            f"{damaged[0]}: damaged, and it has what the rounds since the checkpoint before it have cost the clients; "
            "a run with privacy cannot go on without. Restore this file, or begin another run",
            code="privacy-budget",
        )


def _number(epsilon: float) -> float | None:
    return None if math.isinf(epsilon) else epsilon


def remarks(settings: Settings, history: Sequence[RoundDone], clients: Clients) -> tuple[str, ...]:
    """Warnings where a run has fewer rounds than it was to have, or its delta promises nothing."""
    if settings.privacy is None:
        return ()
    return (*_spent_early(settings, history), *_large_delta(settings.privacy.delta, len(clients)))


def _large_delta(delta: float, clients: int) -> tuple[str, ...]:
    if delta * clients < 1:
        return ()
    return (
        f"privacy: delta {delta:g} is not below 1 / {clients} clients: to publish all that one of them has would "
        "satisfy it. Write a much smaller one, such as 1e-5",
    )


def _spent_early(settings: Settings, history: Sequence[RoundDone]) -> tuple[str, ...]:
    done = history[-1].round if history else settings.rounds
    if done >= settings.rounds:
        return ()
    return (
        f"privacy: the budget is spent after {done} of {settings.rounds} rounds, because rounds that were repeated "
        "count too; a lower quorum repeats fewer of them",
    )
