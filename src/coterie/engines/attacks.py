"""Attacks as configuration: what hostile clients of a simulation answer, and which clients they are.

An attacker is a function of what it sees to what it says (`AttackView` to `Lie`). It knows every honest answer of the
visit, which is the worst case that defences are measured against. Your own is named as `module:function`
or, in Python, given as the function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator
from torch import Tensor

from coterie.core.errors import suggest
from coterie.core.registry import ATTACKS, Consent
from coterie.core.seeds import Purpose, draw_seed, generator
from coterie.core.settings import STRICT, dataclass, explained
from coterie.core.tasks import Fit


@explained
@dataclasses.dataclass(frozen=True, eq=False)
class AttackView:
    """What hostile clients know when they answer one training: all that was computed, by everyone."""

    task: Fit
    ids: Tensor  # (n,) everyone who answers, ascending
    updates: Tensor  # (n, d) what each would honestly send: its update, or the sketch of it
    hostile: Tensor  # (n,) bool
    victims: Tensor  # (n,) bool: honest clients of the cluster that is attacked; all honest ones where it is not known
    choice: Tensor | None  # (n,) the row that each chose to train, where it is the client's choice
    scale: float  # `attack.scale`, or the default of the kind
    rng: np.random.Generator

    @property
    def honest(self) -> Tensor:
        """(n,) bool."""
        return ~self.hostile


@explained
@dataclasses.dataclass(frozen=True, eq=False)
class Lie:
    """What hostile clients say instead: an update each, and which row they claim to have trained."""

    updates: Tensor  # (h, d)
    choice: Tensor | None = None  # (h,); None: as they would have


Attacker: TypeAlias = Callable[[AttackView], Lie]


def sign_flip(view: AttackView) -> Lie:
    """The own update, reversed and `scale` times as long."""
    return Lie(-view.scale * view.updates[view.hostile])


def scaling(view: AttackView) -> Lie:
    """The own update, `scale` times as long."""
    return Lie(view.scale * view.updates[view.hostile])


def gaussian(view: AttackView) -> Lie:
    """A random direction, `scale` times as long as the own update."""
    own = view.updates[view.hostile]
    random = torch.Generator().manual_seed(draw_seed(view.rng))
    noise = torch.randn(own.shape, generator=random, dtype=own.dtype)
    return Lie(noise * (view.scale * own.norm(dim=1) / noise.norm(dim=1))[:, None])


def alie(view: AttackView) -> Lie:
    """A little is enough (Baruch et al. 2019): the honest mean less `scale` standard deviations, in every number."""
    honest = view.updates[view.honest if bool(view.honest.any()) else view.hostile]
    spread = honest.std(0, correction=0)
    return Lie((honest.mean(0) - view.scale * spread).repeat(int(view.hostile.sum()), 1))


def inner_product(view: AttackView) -> Lie:
    """The honest mean, reversed and `scale` times as long (Xie et al. 2020)."""
    honest = view.updates[view.honest if bool(view.honest.any()) else view.hostile]
    return Lie((-view.scale * honest.mean(0)).repeat(int(view.hostile.sum()), 1))


def nan(view: AttackView) -> Lie:
    """Not a number."""
    return Lie(torch.full_like(view.updates[view.hostile], torch.nan))


def free_rider(view: AttackView) -> Lie:
    """No update at all: what was sent comes back."""
    return Lie(torch.zeros_like(view.updates[view.hostile]))


def colluders_as_cluster(view: AttackView) -> Lie:
    """All claim to be of one cluster, and send its honest members' mean update, reversed and `scale` times as long."""
    many = int(view.hostile.sum())
    if not bool(view.victims.any()):
        return Lie(view.updates[view.hostile])
    mean = view.updates[view.victims].mean(0)
    choice = None if view.choice is None else view.choice[view.victims].mode().values.repeat(many)
    return Lie((-view.scale * mean).repeat(many, 1), choice)


def boosted(view: AttackView) -> Lie:
    """What was learnt from poisoned data, `scale` times as long."""
    return Lie(view.scale * view.updates[view.hostile])


KINDS: Mapping[str, tuple[Attacker, float]] = {  # and the default scale
    "sign-flip": (sign_flip, 10.0),
    "gaussian": (gaussian, 10.0),
    "scaling": (scaling, 10.0),
    "label-flip": (boosted, 1.0),
    "alie": (alie, 1.5),
    "inner-product": (inner_product, 2.0),
    "nan": (nan, 1.0),
    "free-rider": (free_rider, 1.0),
    "colluders-as-cluster": (colluders_as_cluster, 10.0),
    "backdoor": (boosted, 1.0),
}
POISONS = ("label-flip", "backdoor")  # the training data of hostile clients
POSES = "colluders-as-cluster"
NO_SCALE = ("nan", "free-rider")  # what they send has no length to choose


def name_of(kind: str | Attacker) -> str:
    """How an attack is called: as it is named, or where the function is."""
    if isinstance(kind, str):
        return kind
    own = kind if hasattr(kind, "__qualname__") else type(kind)
    return f"{own.__module__}:{own.__qualname__}"


@dataclass(frozen=True, config=STRICT)
class Attack:
    """Which share of the clients is hostile, and what they do."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    # One of `KINDS`, or the user's own: module:function or, in Python, the function itself.
    kind: str | Callable[[AttackView], Lie] = "sign-flip"
    scale: NonNegativeFloat | None = None  # how much longer, or how many deviations; each kind has its own default
    cluster: NonNegativeInt = 0  # colluders-as-cluster: the hidden cluster that they pose as
    target: NonNegativeInt = 0  # backdoor: the class that a trigger is to lead to

    @model_validator(mode="after")
    def _known(self) -> Attack:
        if isinstance(self.kind, str) and self.kind not in KINDS and ":" not in self.kind:
            raise ValueError(f"kind: unknown attack '{self.kind}'.{suggest(self.kind, KINDS)}")
        known = self.kind in KINDS
        ignored = {
            "scale": self.scale is not None and self.kind in NO_SCALE,
            "cluster": self.cluster != 0 and known and self.kind != POSES,
            "target": self.target != 0 and self.kind != "backdoor",
        }
        for key in (key for key, found in ignored.items() if found):
            raise ValueError(f"{key}: '{self.name}' makes no use of it; leave it out")
        return self

    @property
    def name(self) -> str:
        """The kind as a word; of a function, module:function."""
        return name_of(self.kind)

    @property
    def poisons(self) -> bool:
        """Whether it changes the training data of hostile clients."""
        return self.kind in POISONS

    @property
    def size(self) -> float:
        """The scale, by default that of the kind."""
        return self.scale if self.scale is not None else KINDS[self.name][1] if self.kind in KINDS else 1.0

    def attacker(self, consent: Consent) -> Attacker:
        """The function of this kind."""
        if not isinstance(self.kind, str):
            return self.kind
        if self.kind in KINDS:
            return KINDS[self.kind][0]
        found: Attacker = ATTACKS.find(self.kind, consent)
        return found

    def hostile(self, seed: int, ids: Tensor) -> Tensor:
        """Which of these clients are hostile, by ascending id: drawn from the seed, the same for every method."""
        if not len(ids):
            return ids
        luck = torch.from_numpy(generator(seed, Purpose.ATTACK).random(int(ids.max()) + 1))[ids]
        return ids[luck.argsort(stable=True)[: round(self.share * len(ids))]].sort().values
