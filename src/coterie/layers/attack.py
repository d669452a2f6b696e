"""Hostile clients of a simulation: which they are, what they answer, and how far their attack got.

An attacker is a function of what it sees to what it says (`AttackView` to `Lie`). It knows every honest answer of the
visit, which is the worst case that defences are measured against. Your own is named as `module:function` or, in Python,
given as the function.

The layer works on the answers of a visit, whichever engine brought them, so an attack is the same to the bit on every
engine. Data that is poisoned (label-flip, backdoor) is `data.poisoning`; what clients keep for themselves stays honest,
and so do descriptions, except those of colluders, who describe their data as one of their victims does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator
from torch import Tensor

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import NOT_FINITE, CoterieError, suggest
from coterie.core.files import plain_bytes
from coterie.core.references import Own, Ref, starts_of, vectors_of
from coterie.core.registry import ATTACKS, NO_CODE, Consent
from coterie.core.seeds import Purpose, draw_seed, generator
from coterie.core.settings import STRICT, dataclass, explained
from coterie.core.tables import ByClient, Clients
from coterie.core.tasks import Described, Fit, Fitted, Reply, Scored, Task
from coterie.data.federation import Federation, unchanging
from coterie.data.poisoning import triggered, with_backdoor, with_flipped_labels
from coterie.engines.contract import Missing, Outcome, Visit
from coterie.engines.updates import without
from coterie.layers.contract import EVERY_KIND, NOBODY, Layer, Onward, Setup

FILE = "attack.json"  # in a run's directory


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

    def plain(self) -> dict[str, Any]:
        """As a document has it: a function by its name."""
        return {**dataclasses.asdict(self), "kind": self.name}

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


@dataclass(frozen=True, config=STRICT)
class AttackSettings:
    """The option of a run."""

    attack: Attack | None = None  # simulated: hostile clients, and what they do; scores are of the honest ones


@explained
@dataclasses.dataclass(frozen=True)
class AttackReport:
    """Who was hostile and, of a backdoor, how often honest clients' models follow its trigger to the target class."""

    kind: str
    hostile: tuple[int, ...]
    success: float | None = None

    def __str__(self) -> str:
        said = f"attack: {self.kind} by {len(self.hostile)} clients; scores are of the honest ones"
        return said if self.success is None else f"{said}; the backdoor works in {100 * self.success:.1f} % of tries"


class Hostile(Layer):
    """The answers of hostile clients are replaced by what they say instead, in every kind of visit."""

    key = "attack"
    kinds = EVERY_KIND

    def __init__(self, attack: Attack, seed: int = 0, clients: Tensor = NOBODY, truth: ByClient | None = None) -> None:
        """clients: who is hostile. truth: the hidden cluster of each client, where it is known; colluders pose as one.
        A run finds both (`prepare`)."""
        self._attack, self._seed = attack, seed
        self.clients, self._truth = clients, truth
        self._known: Clients | None = None
        self._report: AttackReport | None = None

    @classmethod
    def of(cls, settings: Any) -> Hostile | None:
        """None where all clients are honest."""
        return None if settings.attack is None else cls(settings.attack)

    def prepare(self, setup: Setup) -> Setup:
        """Who is hostile, and the data as clients train on it: that of hostile ones may be poisoned."""
        attack, roster = self._attack, setup.clients.roster
        attack.attacker(NO_CODE)
        self._seed, self._known, self._truth = setup.settings.seed, setup.clients, roster.truth
        self.clients = attack.hostile(self._seed, roster.ids)
        if setup.given_engine and attack.poisons:
            raise CoterieError(
                f"attack.kind: '{attack.name}' poisons clients' data, which an engine given as an object has already; "
                "name the engine instead",
                code="config-conflict",
            )
        if len(self.clients) == len(roster.ids):
            raise CoterieError(
                f"attack.share: {attack.share:g} of {len(roster.ids)} clients leaves no honest one, and scores are "
                "of these",
                code="config-conflict",
            )
        if (
            attack.kind == POSES
            and self._truth is not None
            and attack.cluster not in (there := self._truth.values.tolist())
        ):
            known = ", ".join(map(str, sorted(set(there))))
            raise CoterieError(
                f"attack.cluster: {attack.cluster}, but the hidden clusters are {known}", code="config-conflict"
            )
        who = AttackReport(attack.name, tuple(self.clients.tolist()))
        return dataclasses.replace(
            setup,
            data=self._poisoned(setup.clients) or setup.data,
            unscored=torch.cat([setup.unscored, self.clients]).unique(),
            remarks=(*setup.remarks, str(who)),
        )

    def _poisoned(self, clients: Clients) -> Federation | None:
        attack = self._attack
        if not attack.poisons or not isinstance(clients, Federation):
            return None
        unchanging(clients, "attack.kind")
        if attack.kind == "label-flip":
            return with_flipped_labels(clients, self.clients)
        return with_backdoor(clients, self.clients, attack.target, self._seed)

    def finish(self, score: Callable[[Clients], Any]) -> AttackReport:
        """How far the attack got, on the honest clients."""
        who, success = tuple(self.clients.tolist()), None
        if self._attack.kind == "backdoor" and isinstance(self._known, Federation):
            success = score(triggered(self._known, self._attack.target)).accuracy
        self._report = AttackReport(self._attack.name, who, success)
        return self._report

    def document(self, clients: Clients) -> Mapping[str, Any] | None:
        """attack.json, once the run has ended."""
        return None if self._report is None else dataclasses.asdict(self._report)

    # ------------------------------------------------------------------------------------------------- answers

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """Everyone answers, and then hostile clients say something else."""
        outcome = onward(visit)
        pairs = zip(visit.tasks, outcome.replies, strict=True)
        replies = [self._answer(visit, i, task, reply) for i, (task, reply) in enumerate(pairs)]
        broken = {client for reply in replies if isinstance(reply, Fitted) for client in _broken(reply)}
        lost = tuple(Missing(client, f"its model has a value {NOT_FINITE}") for client in sorted(broken))
        return Outcome(tuple(without(reply, sorted(broken)) for reply in replies), (*outcome.missing, *lost))

    def _answer(self, visit: Visit, number: int, task: Task, reply: Reply) -> Reply:
        hostile = torch.isin(reply.ids, self.clients)
        if not bool(hostile.any()):
            return reply
        if isinstance(reply, Scored | Described):
            return self._posing(reply, hostile)
        if not isinstance(task, Fit) or not isinstance(reply, Fitted):
            return reply
        words = (visit.moment.round, visit.moment.task + number)
        view = AttackView(
            *(task, reply.ids, torch.empty(0), hostile, self._victims(reply.ids, hostile), reply.choice),
            *(self._attack.size, generator(self._seed, Purpose.ATTACK, *words)),
        )
        if reply.sketch is not None:
            told = self._told(dataclasses.replace(view, updates=reply.sketch))
            reply = dataclasses.replace(reply, sketch=_put(reply.sketch, hostile, told.updates))
        if reply.sent is None:
            return reply
        begin = _starts(task.start, reply)
        told = self._told(dataclasses.replace(view, updates=reply.models - begin))
        if told.choice is not None and reply.choice is not None:
            reply = dataclasses.replace(reply, choice=_put(reply.choice, hostile, told.choice))
            begin = _starts(task.start, reply)
        start = begin.expand(len(reply.ids), -1)[hostile]
        return dataclasses.replace(reply, sent=_put(reply.models, hostile, start + told.updates))

    def _told(self, view: AttackView) -> Lie:
        attacker = self._attack.attacker(NO_CODE)  # one's own is the function itself by now
        try:
            lie = attacker(view)
        except CoterieError:
            raise
        except Exception as error:
            raise CoterieError(
                f"attack.kind: '{self._attack.name}' failed: {type(error).__name__}: {error}", code="component-failed"
            ) from error
        wanted = (int(view.hostile.sum()), view.updates.shape[1])
        if not isinstance(lie, Lie) or tuple(lie.updates.shape) != wanted:
            found = tuple(lie.updates.shape) if isinstance(lie, Lie) else f"a {type(lie).__name__}"
            raise CoterieError(
                f"attack.kind: '{self._attack.name}' returned {found}; return Lie(updates) with updates {wanted}, "
                "one per hostile client",
                code="component-invalid",
            )
        chosen = None if view.choice is None else lie.choice
        if chosen is not None and not _is_choice(chosen, wanted[0], view.task.start):
            raise CoterieError(
                f"attack.kind: '{self._attack.name}' returned the choice {str(chosen)[:80]}; Lie(updates, choice) has "
                f"{wanted[0]} integers, a row of the server's models per hostile client",
                code="component-invalid",
            )
        return lie

    def _victims(self, ids: Tensor, hostile: Tensor) -> Tensor:
        if self._truth is None:
            return ~hostile
        return ~hostile & (self._truth.at(ids, default=-1) == self._attack.cluster)

    def _posing(self, reply: Scored | Described, hostile: Tensor) -> Reply:
        """Colluders score, or describe their data, as their victims do, and so are put into their cluster."""
        victims = self._victims(reply.ids, hostile)
        if self._attack.kind != POSES or not bool(victims.any()):
            return reply
        many = int(hostile.sum())
        if isinstance(reply, Described):  # of one victim: a mean of singular vectors is none
            return dataclasses.replace(reply, rows=_put(reply.rows, hostile, reply.rows[victims][:1].repeat(many, 1)))
        return dataclasses.replace(
            reply, scores=_put(reply.scores, hostile, reply.scores[victims].mean(0).repeat(many, 1))
        )


def _put(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    out = table.clone()
    out[rows] = values.to(table.dtype)
    return out


def _given(start: Ref) -> Ref:
    """For a model of the clients' own, what the server would have given them."""
    while isinstance(start, Own):
        start = start.default
    return start


def _is_choice(choice: object, many: int, start: Ref) -> bool:
    """Whether these are rows of the server's models, one for each of so many clients."""
    if not isinstance(choice, Tensor) or choice.shape != (many,) or choice.is_floating_point():
        return False
    rows = vectors_of(_given(start))
    return rows is None or bool(((choice >= 0) & (choice < len(rows))).all())


def _starts(start: Ref, reply: Fitted) -> Tensor:
    """What clients started from."""
    found = starts_of(_given(start), reply.ids, reply.choice)
    return reply.models.mean(0, keepdim=True) if found is None else found


def _broken(reply: Fitted) -> list[int]:
    tables = [reply.sent if isinstance(reply.sent, Tensor) else None, reply.sketch]
    bad = torch.zeros(len(reply.ids), dtype=torch.bool)
    for table in tables:
        if table is not None:
            bad |= ~table.isfinite().all(1)
    return reply.ids[bad].tolist()


# ------------------------------------------------------------------------------------------- in a run's directory


def read_attack(path: Path) -> AttackReport | None:
    """What a run's directory says of its attack; None where it had none."""
    try:
        found = parse_json(plain_bytes(path / FILE))
        return AttackReport(str(found["kind"]), tuple(map(int, found["hostile"])), found["success"])
    except (OSError, DecodeError, ValueError, KeyError, TypeError):
        return None


def told(path: Path, config: Mapping[str, Any]) -> str | None:
    """What a run's directory says of its attack in words, also before it has ended; None where it had none."""
    found = read_attack(path)
    if found is not None:
        return str(found)
    attack = config.get("attack")
    if not isinstance(attack, Mapping):
        return None
    kind, share = attack.get("kind", Attack.kind), attack.get("share", Attack.share)
    how_many = f"{100 * share:g} % of the" if isinstance(share, int | float) else "some"
    return f"attack: {kind} by {how_many} clients; scores are of the honest ones"
