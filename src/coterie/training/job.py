"""What every round of a run works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from coterie.core.model import Model
from coterie.core.tables import Clients
from coterie.engines.contract import Engine
from coterie.layers import chosen
from coterie.layers.contract import Layer, Setup, Stack, prepared
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
    # Around the engine, the outermost first; None: those that the settings ask for.
    layers: tuple[Layer, ...] | None = field(default=None, kw_only=True)
    prepared: Setup | None = field(default=None, kw_only=True)  # by these layers

    @cached_property
    def stack(self) -> Stack:
        """The engine with its layers: what visits go through."""
        return Stack(self.engine, chosen(self.settings) if self.layers is None else self.layers)

    @cached_property
    def setup(self) -> Setup:
        """What layers have decided outside visits."""
        if self.prepared is not None:
            return self.prepared
        plain = Setup(self.method, self.model, self.clients, self.settings, given_engine=True)
        return prepared(self.stack.layers, plain) if self.layers is None else plain
