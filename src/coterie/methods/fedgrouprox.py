"""FedGrouProx: FedGroup whose clients train with FedProx's proximal term.

Duan et al., FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure, 2021 (section IV).
A member minimises its loss + mu/2 |w - w_group|^2. All else is as in `fedgroup`.
"""

from __future__ import annotations

from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.core.constructors import dataclass
from coterie.core.references import Pick
from coterie.core.tasks import Fit
from coterie.core.types import STRICT
from coterie.methods.fedgroup import FedGroup
from coterie.methods.fedgroup_cold_start import Groups


@dataclass(frozen=True, config=STRICT)
class FedGrouProx(FedGroup):
    """FedGroup whose clients are held near their group's model by a proximal term."""

    mu: NonNegativeFloat = 1.0

    def fit(self, state: Groups, on: Tensor) -> Fit:
        """A member's training, held near its group's model."""
        group = Pick(state.centers, state.labels)
        return Fit(group, anchor=group, mu=self.mu, local=self.local, on=on)
