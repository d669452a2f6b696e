"""Before the first round: whether privacy can be had at all, and the ledger to go on with."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping
from typing import Any

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.model import Model
from coterie.core.tables import Clients
from coterie.data.federation import Federation
from coterie.training.privacy.ledger import Ledger
from coterie.training.privacy.plan import PrivacyPlan, budget, plan
from coterie.training.settings import Settings

ENOUGH = 0.9  # of epsilon is spent, or it is said why not


def check_with_clients(method: Any, settings: Settings) -> None:
    """What a server can refuse before it listens: everything but what the network is, which clients' data decide."""
    if settings.privacy is None:
        return
    if settings.privacy.evaluation != "trusted":
        raise CoterieError(
            "privacy: with real clients, the scores that they send in evaluations are not covered by epsilon. If the "
            "server and its run directory are trusted with them, write privacy.evaluation=trusted",
            code="privacy-evaluation",
        )
    if settings.checkpoint_every != 1:
        raise CoterieError(
            "privacy: with real clients every round must be saved before its models are sent out, or a server that "
            "crashed would forget what it has spent; leave checkpoint_every at 1",
            code="config-conflict",
        )
    budget(method, settings, 0, simulated=False)


def planned(method: Any, model: Model, clients: Clients, settings: Settings) -> PrivacyPlan | None:
    """The plan of a run. In a simulation noise follows the seed; with real clients it is secret, and new every time."""
    if settings.privacy is None:
        return None
    simulated = isinstance(clients, Federation)
    if not simulated:
        check_with_clients(method, settings)
    key = settings.seed if simulated else secrets.randbits(128)
    found = plan(method, model, settings, key, simulated=simulated)
    if found is not None:
        _warn(found)
    return found


def _warn(found: PrivacyPlan) -> None:
    """What is allowed, but is not what was asked for."""
    asked = found.settings
    if asked.epsilon is None or asked.noise is not None:
        return
    spent = (
        found.amplified_epsilon(found.rounds) if found.amplified else found.epsilon(found.rounds, found.most_signals)
    )
    if spent < ENOUGH * asked.epsilon:
        warnings.warn(
            f"privacy.epsilon: {asked.epsilon:g} would need so little noise that its cost cannot be told: the run has "
            f"more, and ends at an epsilon of about {spent:.3g}. Above 20 or so, epsilon protects hardly anybody",
            CoterieWarning,
            stacklevel=2,
        )


def ledger_of(found: PrivacyPlan | None, kept: Mapping[str, Any] | None, done: int) -> Ledger | None:
    """A new ledger, or that of the checkpoint."""
    if found is None:
        return None
    if not done:
        return Ledger(found)
    if kept is None:
        raise CoterieError(
            "privacy: the checkpoint does not say what was spent so far, so the run cannot go on with privacy",
            code="run-not-resumable",
        )
    return Ledger.unpacked(found, kept)
