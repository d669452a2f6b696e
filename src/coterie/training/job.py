"""What every round of a run works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from coterie.core.model import Model
from coterie.core.tables import Clients
from coterie.engines.contract import Engine
from coterie.methods.contract import Method
from coterie.training.privacy.plan import PrivacyPlan
from coterie.training.settings import Settings

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Job(Generic[State]):
    """A method, the model it trains, the clients, the settings, and the engine that carries tasks to the clients."""

    method: Method[State]
    model: Model
    clients: Clients
    settings: Settings
    engine: Engine
    privacy: PrivacyPlan | None = field(default=None, kw_only=True)
