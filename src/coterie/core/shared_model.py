"""A model without a section of it that stays with clients: what a server sees where parts of a model are personal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coterie.core.model import Model
from coterie.core.model_parts import Part, Section


@dataclass(frozen=True)
class SharedModel(Model):
    """The same network; its vectors leave out a section."""

    without: Section = ()

    @staticmethod
    def of_rest(model: Model, section: Section) -> SharedModel:
        """What is left of a model."""
        rest = SharedModel(model.build, model.loss, model.train, model.adapters, section)
        vars(rest)["blueprint"] = model.blueprint  # where `cached_property` looks first: what is frozen in it stays
        return rest

    @cached_property
    def shared(self) -> Tensor:
        """Which entries of the whole vector are shared."""
        return ~self.section(self.without)

    @cached_property
    def size(self) -> int:
        """The length of the shared vector."""
        return int(self.shared.sum())

    @cached_property
    def parameters(self) -> int:
        """How many of its entries are trainable."""
        return int(self.shared[: Model(self.build, self.loss, self.train, self.adapters).parameters].sum())

    def init(self, rng: np.random.Generator) -> Tensor:
        """The shared part of a fresh model."""
        return super().init(rng)[self.shared]

    def part(self, part: Part) -> Tensor:
        """The positions in the shared vector of a part, as far as it is shared; of all that is, where none of it is."""
        place = torch.where(self.shared, self.shared.cumsum(0) - 1, -1)
        found = place[super().part(part)]
        return found[found >= 0] if bool((found >= 0).any()) else torch.arange(self.parameters)
