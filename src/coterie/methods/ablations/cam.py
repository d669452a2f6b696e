"""Fed-CAM without its global model, which leaves the method it wraps (after a warm-up that trains nothing)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from coterie.core.cohort import Roster
from coterie.core.constructors import dataclass
from coterie.core.model import Model
from coterie.core.types import STRICT
from coterie.methods.cam import CAM, Additive, Residual
from coterie.methods.contract import Ask


@dataclass(frozen=True, config=STRICT)
class CAMWithoutGlobal(CAM):
    """Fed-CAM whose global model stays zero: the method it wraps, and nothing else (ablation)."""

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Additive:
        """Theta_g is zero."""
        state = super().init(model, roster, rng)
        return dataclasses.replace(state, shared=torch.zeros_like(state.shared))

    def residual(self, state: Additive, ask: Any, train: bool = True) -> Residual:
        """Theta_g is never trained."""
        return super().residual(state, ask, train=False)

    def warm_up(self, state: Additive, ask: Ask) -> Additive:
        """There is nothing to warm up."""
        return dataclasses.replace(state, rounds=state.rounds + 1)
