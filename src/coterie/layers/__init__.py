"""The layers of a run, and their options.

`contract` says what a layer is; each of the others is in a file of its own, with its options, its state in checkpoints,
its part of a round's line, its conflicts and its warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.core.settings import STRICT, dataclass
from coterie.layers.attack import AttackSettings, Hostile
from coterie.layers.contract import Layer
from coterie.layers.dropout import Dropout, DropoutSettings
from coterie.layers.privacy import PrivacySettings, Private
from coterie.layers.quorum import Quorum, QuorumSettings
from coterie.layers.robust import Guard, RobustSettings
from coterie.layers.screening import Screening, ScreeningSettings
from coterie.layers.server_optimizer import ServerOptimizerSettings, ServerStep
from coterie.layers.traffic import Traffic

# Outermost first: what a layer does is done to the answers that those after it have left.
ORDER: tuple[type[Layer], ...] = (ServerStep, Private, Quorum, Guard, Screening, Dropout, Traffic, Hostile)
OWN = ORDER.index(Dropout)  # layers of a user's own lie inside screening, and outside what makes up the clients


@dataclass(frozen=True, config=STRICT)
class LayerSettings(
    PrivacySettings,
    AttackSettings,
    ServerOptimizerSettings,
    RobustSettings,
    DropoutSettings,
    ScreeningSettings,
    QuorumSettings,
):
    """The options of all layers."""


def chosen(settings: Any, own: Sequence[Layer] = ()) -> tuple[Layer, ...]:
    """The layers that settings ask for, outermost first, and a user's own."""
    made = [kind.of(settings) for kind in ORDER]
    found = [layer for layer in (*made[:OWN], *own, *made[OWN:]) if layer is not None]
    replaced = {key for layer in found for key in layer.replaces}
    return tuple(layer for layer in found if layer.key not in replaced)


def own_of(layers: Sequence[Layer]) -> list[Layer]:
    """Those of these layers that are a user's own."""
    return [layer for layer in layers if not isinstance(layer, ORDER)]


def fixed(settings: Any) -> frozenset[str]:
    """Settings that a resumed run keeps because of its layers."""
    return frozenset(key for layer in chosen(settings) for key in layer.fixes)


def reasons() -> dict[str, str]:
    """Why settings that layers fix cannot change, whichever of them a run has or is to have."""
    return {key: why for kind in ORDER for key, why in kind.fixes.items()}


def free() -> tuple[str, ...]:
    """Options of layers that may change when a run is resumed."""
    return tuple(key for kind in ORDER for key in kind.free)


def warnings_of(settings: Any, history: Sequence[Any], clients: Any) -> Iterator[str]:
    """What layers have to say of a run that has ended; history: its rounds."""
    for kind in ORDER:
        yield from kind.warnings(settings, history, clients)


def line_of(said: Mapping[str, Any]) -> list[str]:
    """What layers say of a run in a line each; said: their part of its last round, by key."""
    return [line for kind in ORDER if kind.key in said and (line := kind.line(said[kind.key])) is not None]
