"""What a user says of privacy: `privacy: {epsilon: 8, delta: 1e-5}` and, if need be, the rest."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from coterie.core.settings import STRICT, dataclass

MOST = 1e6  # of noise and clip: beyond it, what is released is no model any more
LONGEST = 65_536  # numbers of a sketch: every client's gets noise, and is kept in memory


@dataclass(frozen=True, config=STRICT)
class Privacy:
    """Client-level differential privacy by a trusted server: clipped updates, and noise on what is released."""

    epsilon: PositiveFloat | None = None  # what the whole run may cost; the noise is found for it
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    # In place of epsilon: the noise multiplier of a mean; 0 is no privacy.
    noise: Annotated[float, Ge(0), Le(MOST)] | None = None
    clip: Annotated[float, Gt(0), Le(MOST)] = 1.0  # the largest norm of a client's update, and of a sketch of it
    signal: Annotated[float, Gt(0), Lt(1)] = 0.5  # share of the budget for sketches and votes, where a method has any
    sketch: Annotated[int, Ge(1), Le(LONGEST)] = 16  # numbers for a client's model, where single models are clustered
    smallest: NonNegativeFloat = 5.0  # clients of a cluster, by a noisy count; a smaller cluster keeps its model
    evaluation: Literal["simulated", "trusted"] = "simulated"  # over a network scores of clients need "trusted"

    @model_validator(mode="after")
    def _one_of_both(self) -> Privacy:
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("give epsilon (8) or noise (1.1), one of them")
        return self
