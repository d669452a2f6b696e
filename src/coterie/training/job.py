"""What every round of a run works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from coterie.core.model import Model
from coterie.core.tables import Clients
from coterie.engines.contract import Engine
from coterie.layers.contract import Layer, Setup, Stack
from coterie.methods.contract import Method
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
    layers: tuple[Layer, ...] = field(default=(), kw_only=True)  # around the engine, the outermost first
    prepared: Setup | None = field(default=None, kw_only=True)  # by these layers

    @cached_property
    def stack(self) -> Stack:
        """The engine with its layers: what visits go through."""
        return Stack(self.engine, self.layers)

    @cached_property
    def setup(self) -> Setup:
        """What layers have decided outside visits."""
        return self.prepared or Setup(self.method, self.model, self.clients, self.settings)
