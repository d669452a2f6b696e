"""What a user says of privacy: `privacy: {epsilon: 8, delta: 1e-5}` and, if need be, the rest."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Gt, Lt
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from coterie.core.constructors import dataclass
from coterie.core.types import STRICT


@dataclass(frozen=True, config=STRICT)
class Privacy:
    """Client-level differential privacy by a trusted server: clipped updates, and noise on what is released."""

    epsilon: PositiveFloat | None = None  # what the whole run may cost; the noise is found for it
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    noise: NonNegativeFloat | None = None  # in place of epsilon: the noise multiplier of a mean; 0 is no privacy
    clip: PositiveFloat = 1.0  # the largest norm of a client's update, and of a sketch of it
    signal: Annotated[float, Gt(0), Lt(1)] = 0.5  # share of the budget for sketches and votes, where a method has any
    sketch: PositiveInt = 16  # numbers that stand for a client's model, where single models are clustered
    smallest: NonNegativeFloat = 5.0  # clients of a cluster, by a noisy count; a smaller cluster keeps its model
    evaluation: Literal["simulated", "trusted"] = "simulated"  # over a network scores of clients need "trusted"

    @model_validator(mode="after")
    def _one_of_both(self) -> Privacy:
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("give epsilon (8) or noise (1.1), one of them")
        return self
