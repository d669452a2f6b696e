"""The hostile clients of a simulation: their engine, their data, and how far their attack got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import plain_bytes
from coterie.core.tables import Clients, Roster
from coterie.data.course import unchanging
from coterie.data.federation import Federation
from coterie.data.poisoning import triggered, with_backdoor, with_flipped_labels
from coterie.engines.attacks import POSES, Attack
from coterie.engines.contract import Engine
from coterie.engines.hostile import Hostile
from coterie.engines.sequential import Sequential
from coterie.training.evaluation import evaluate
from coterie.training.events import AttackReport
from coterie.training.job import Job
from coterie.training.settings import Settings

ATTACK = "attack.json"  # in a run's directory


def hostile_clients(clients: Clients, settings: Settings) -> Tensor:
    """The ids of the hostile clients; none without an attack."""
    ids = clients.roster.ids
    return ids[:0] if settings.attack is None else settings.attack.hostile(settings.seed, ids)


def read_attack(path: Path) -> AttackReport | None:
    """What a run's directory says of its attack; None where it had none."""
    try:
        found = parse_json(plain_bytes(path / ATTACK))
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


def poisoned(federation: Federation, settings: Settings) -> Federation:
    """The data as clients train on it: that of hostile ones may be poisoned."""
    attack = settings.attack
    if attack is None or not attack.poisons:
        return federation
    unchanging(federation, "attack.kind")
    who = hostile_clients(federation, settings)
    if attack.kind == "label-flip":
        return with_flipped_labels(federation, who)
    return with_backdoor(federation, who, attack.target, settings.seed)


@contextmanager
def attacked(engine: Engine, clients: Clients, settings: Settings, own_engine: bool) -> Iterator[Engine]:
    """The engine with hostile clients, if the settings have an attack. own_engine: the user's, with data of its own."""
    attack = settings.attack
    if attack is None:
        yield engine
        return
    if own_engine and attack.poisons:
        raise CoterieError(
            f"attack.kind: '{attack.name}' poisons clients' data, which an engine given as an object has already; "
            "name the engine instead",
            code="config-conflict",
        )
    roster = clients.roster
    if len(hostile_clients(clients, settings)) == len(roster.ids):
        raise CoterieError(
            f"attack.share: {attack.share:g} of {len(roster.ids)} clients leaves no honest one, and scores are "
            "of these",
            code="config-conflict",
        )
    truth = roster.truth
    if attack.kind == POSES and truth is not None and attack.cluster not in truth.values.tolist():
        known = ", ".join(map(str, sorted(set(truth.values.tolist()))))
        raise CoterieError(
            f"attack.cluster: {attack.cluster}, but the hidden clusters are {known}", code="config-conflict"
        )
    yield Hostile(engine, attack, settings.seed, roster.ids, roster.truth)


def report(job: Job[Any], state: Any, roster: Roster) -> AttackReport | None:
    """How far the attack got, on the honest clients of the roster; None without one."""
    attack, clients = job.settings.attack, job.clients
    if attack is None:
        return None
    who = tuple(hostile_clients(clients, job.settings).tolist())
    if attack.kind != "backdoor" or not isinstance(clients, Federation):
        return AttackReport(attack.name, who)
    data = triggered(clients, attack.target)
    engine = Sequential(job.model, data)
    engine.memory = job.engine.memory
    found = evaluate(replace(job, clients=data, engine=engine), state, job.settings.rounds - 1, roster)
    return AttackReport(attack.name, who, found.summary.accuracy)
