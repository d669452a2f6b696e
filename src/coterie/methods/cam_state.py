"""The state of CAM after a round, and which methods it can wrap."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.references import All, Best, Pick, describe_value
from coterie.core.tasks import Evaluate
from coterie.methods.cam_references import References
from coterie.methods.contract import Admits


def _is_method(given: Any) -> Any:
    if isinstance(given, type) or not all(hasattr(given, name) for name in ("init", "round", "predictor")):
        raise ValueError(f"expected the method to wrap, for example IFCA(k=4), got {describe_value(given)}")
    return given


Base: TypeAlias = Annotated[Any, AfterValidator(_is_method)]


@dataclasses.dataclass(frozen=True, eq=False)
class Additive:
    """Theta_g, and the state of the base method, whose models are residuals of it."""

    shared: Tensor  # (P,) Theta_g
    base: Any
    warm: Tensor  # (P,) where clients start their own warm-up (local_unclustered)
    rounds: int  # done so far
    reference: Tensor | None = None  # (r, P) Theta_g to measure with, for each model that the base measures from

    @property
    def theta_g(self) -> All:
        """Theta_g, for everyone."""
        return All(self.shared)

    @property
    def references(self) -> References:
        """What the base measures from."""
        return References.of(self.base, self.reference, self.shared)

    def after(self, base: Any, shared: Tensor, references: References) -> Additive:
        """The state after a round of the base: what it measures from since then is given this round's Theta_g."""
        reference = References.of(base, references.shared, self.shared).shared
        return dataclasses.replace(self, base=base, shared=shared, rounds=self.rounds + 1, reference=reference)


def refuse_soft_clusters(method: Any, state: Any) -> None:
    """CAM adds a client's one cluster model to the global one: the method it wraps must give each client one."""
    task: Evaluate = method.predictor(state)
    hard = isinstance(method, Admits) or any(isinstance(ref, Pick | Best) for ref in task.models)
    if not hard or task.mixture is not None or task.belongs is not None:
        name = type(method).__name__
        raise CoterieError(
            f"method.base: CAM wraps methods with hard clusters; {name} has soft ones, or none", code="method-invalid"
        )
