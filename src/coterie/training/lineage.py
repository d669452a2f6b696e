"""Which clients the data of a run has: those it began with, those that were added since, those that are forgotten.

additions.json   how many clients the run began with, and each addition: where its data is, and how many clients
forgotten.json   the ids of the clients that were taken out

Either file is written whole or not at all, before anything else changes, and that is the moment from which the run is
another one: a checkpoint of before is still read, and who was added since is admitted, who was forgotten is left out.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from coterie.core.decoder import DecodeError, decode, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import plain_bytes, write_durably, writing
from coterie.core.metrics import summarise
from coterie.core.tables import Clients
from coterie.core.tasks import Evaluated
from coterie.data.federation import Federation
from coterie.data.membership import ChangedFederation, changed, extended, forgotten_in, identity_without, key_of
from coterie.training.checkpoint import Checkpoint
from coterie.training.evaluation import made_of, values_of
from coterie.training.predict import seen_alike

ADDITIONS, FORGOTTEN, FORMAT = "additions.json", "forgotten.json", "coterie-additions-1"


@dataclass(frozen=True)
class Addition:
    """Clients that were added to a run."""

    round: int  # rounds that were done
    clients: int  # how many there are with them
    key: str  # of the data with them: see `membership.key_of`
    data: dict[str, Any] | None  # as a configuration names it; None: it was given in Python


@dataclass(frozen=True)
class _Additions:
    """The file."""

    format: str
    clients: int  # that the run began with
    key: str
    added: tuple[Addition, ...]


@dataclass(frozen=True)
class Lineage:
    """The clients of a run, in the order in which they came."""

    began: int | None = None  # clients that the run began with; None: as many as its data has
    key: str = ""
    added: tuple[Addition, ...] = ()
    forgotten: tuple[int, ...] = ()

    def clients_in(self, identity: str) -> int | None:
        """How many clients the run had when its data had this identity; None where it never had."""
        key = key_of(identity)
        if not set(forgotten_in(identity)) <= set(self.forgotten):
            return None
        known = {self.key: self.began} | {one.key: one.clients for one in self.added}
        return known.get(key)

    def of(self, data: Federation) -> Lineage:
        """The same where nothing was added yet: the run began with this data."""
        return (
            self if self.began is not None else dataclasses.replace(self, began=len(data), key=key_of(data.identity()))
        )

    def write_additions(self, path: Path) -> None:
        """The file, from when on the run has these clients."""
        file = path / ADDITIONS
        added = [dataclasses.asdict(one) for one in self.added]
        text = json.dumps({"format": FORMAT, "clients": self.began, "key": self.key, "added": added}, indent=1)
        with writing(file):
            write_durably(file, text + "\n")


def read(path: Path) -> Lineage:
    """The lineage of a run directory; empty where its clients never changed."""
    forgotten = tuple(sorted(_forgotten(path)))
    found = _json(path / ADDITIONS)
    if found is None:
        return Lineage(forgotten=forgotten)
    try:
        said = decode(found, _Additions)
    except (DecodeError, TypeError, ValueError) as error:
        raise CoterieError(f"{path / ADDITIONS}: damaged ({error})", code="run-damaged") from None
    if said.format != FORMAT:
        raise CoterieError(
            f"{path / ADDITIONS}: has the format {said.format!r}, this version reads {FORMAT}", code="run-version"
        )
    return Lineage(said.clients, said.key, said.added, forgotten)


def _forgotten(path: Path) -> list[int]:
    found = _json(path / FORGOTTEN)
    if found is None:
        return []
    clients = found.get("clients") if isinstance(found, Mapping) else None
    if not isinstance(clients, list) or not all(isinstance(c, int) and not isinstance(c, bool) for c in clients):
        raise CoterieError(f"{path / FORGOTTEN}: damaged (it has no list of clients)", code="run-damaged")
    return clients


def _json(file: Path) -> Any:
    try:
        return parse_json(plain_bytes(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CoterieError(f"{file}: cannot be read ({error.strerror})", code="disk-read") from None
    except DecodeError as error:
        raise CoterieError(f"{file}: damaged ({error})", code="run-damaged") from None


Builder = Callable[[Mapping[str, Any]], Federation]  # data as a configuration names it


def applied(lineage: Lineage, data: Federation, build: Builder | None, clients: int | None = None) -> Federation:
    """The data of a run as it is now, from what it began with, or from data that has the added clients already.

    build: makes the data of an addition. clients: only so many of them, as at an earlier time.
    """
    if lineage.began is None and not lineage.forgotten:
        return data
    began = len(data) if lineage.began is None else lineage.began
    for one in lineage.added:
        if len(data) >= one.clients or (clients is not None and one.clients > clients):
            continue
        if one.data is None or build is None:
            raise CoterieError(
                f"{one.clients - len(data)} clients were added to this run in Python, after round {one.round}; give "
                "their data too: coterie.go_on(dir, added=[...])",
                code="data-needed",
            )
        data = added_to(data, build(one.data))
    if clients is not None and len(data) != clients:
        raise CoterieError(f"the data has {len(data)} clients, the run had {clients}", code="data-changed")
    if len(data) == began and not lineage.forgotten:
        return data
    return changed(data, began, lineage.forgotten)


def added_to(data: Federation, new: Federation) -> ChangedFederation:
    """The data with these clients, seen as the run's own: its scale, its columns, its classes."""
    alike = seen_alike(new, data)
    return extended(data, dataclasses.replace(alike, outputs=data.outputs))


def is_earlier(lineage: Lineage, clients: Clients) -> Callable[[str], bool]:
    """Whether an identity is that of this run's data before clients were added or forgotten."""
    now = clients.identity()
    most = lineage.clients_in(now)  # None: this is not the data that was written down, or nothing was added

    def earlier(identity: str) -> bool:
        if key_of(identity) == key_of(now):
            return set(forgotten_in(identity)) <= set(forgotten_in(now))
        then = lineage.clients_in(identity)
        return then is not None and most is not None and then <= most

    return earlier


EVALUATIONS = ("evaluation", "newcomers")  # of what is saved with a state

Weigh: TypeAlias = Callable[[Evaluated], Tensor]  # how clients count in a mean over them


def without_clients(checkpoint: Checkpoint, ids: Tensor, data: str, weigh: Weigh) -> Checkpoint:
    """A checkpoint without these clients. data: the identity of the data without them."""
    gone, seen = set(ids.tolist()), dict[int, Any]()
    memory = {key: t for key, t in checkpoint.memory.items() if int(key.partition("/")[0]) not in gone}
    also = {
        name: _evaluation(one, ids, seen, weigh) if name in EVALUATIONS else one
        for name, one in checkpoint.also.items()
    }
    state = scrubbed(checkpoint.state, ids, seen)
    return Checkpoint(checkpoint.round, state, memory, also, data, checkpoint.belongs | {"data": data})


def without_forgotten(checkpoint: Checkpoint, forgotten: Sequence[int], weigh: Weigh | None = None) -> Checkpoint:
    """A checkpoint without clients that were forgotten after it was made; as it is if there are none."""
    gone = sorted(set(forgotten) - set(forgotten_in(checkpoint.data)))
    if not gone:
        return checkpoint
    data = identity_without(checkpoint.data, gone)
    return without_clients(checkpoint, torch.tensor(gone), data, weigh or (lambda reply: reply.n.double()))


def scrubbed(node: Any, ids: Tensor, seen: dict[int, Any] | None = None) -> Any:
    """A state without the rows of these clients. seen: what was done already; what occurs twice stays one."""
    seen = {} if seen is None else seen
    if id(node) in seen:
        return seen[id(node)]
    made = _scrubbed(node, ids, seen)
    seen[id(node)] = made
    return made


def _scrubbed(node: Any, ids: Tensor, seen: dict[int, Any]) -> Any:
    if isinstance(node, Mapping):
        return {key: scrubbed(value, ids, seen) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return tuple(scrubbed(value, ids, seen) for value in node)
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return node
    if isinstance(getattr(node, "ids", None), Tensor):
        return _table(node, ids)
    node = node.forget(ids) if hasattr(node, "forget") else node
    values = {f.name: scrubbed(getattr(node, f.name), ids, seen) for f in dataclasses.fields(node) if f.init}
    return dataclasses.replace(node, **values)


def _table(node: Any, ids: Tensor) -> Any:
    """A table of clients (`ids`, and a row for each in every other field) without these."""
    keep = ~torch.isin(node.ids, ids)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Tensor) and value.ndim and len(value) == len(keep):
            values[field.name] = value[keep]
        elif isinstance(value, tuple) and len(value) == len(keep):
            values[field.name] = tuple(v for v, kept in zip(value, keep.tolist(), strict=True) if kept)
    return dataclasses.replace(node, **values)


def _evaluation(found: Mapping[str, Any], ids: Tensor, seen: dict[int, Any], weigh: Weigh) -> dict[str, Any]:
    """An evaluation (see `evaluation_record.packable`) without these clients, and its means over the others."""
    gone, clients = set(ids.tolist()), found["clients"]
    keep = ~torch.isin(clients["ids"], ids)
    rows = {k: v[keep] if isinstance(v, Tensor) and len(v) == len(keep) else v for k, v in clients.items()}
    summary, chosen = dict(found["summary"]), found["chosen"]
    if bool((~keep).any()):
        reply = made_of(Evaluated, rows)
        weights = weigh(reply)
        anew = values_of(summarise(reply, weights, None)) if float(weights.sum()) else {"worst_decile": None}
        summary |= {name: value for name, value in anew.items() if name not in ("ari", "nmi", "mixture_error")}
    return {
        "clients": rows,
        "summary": summary,
        "unscored": tuple(one for one in found["unscored"] if one[0] not in gone),
        "state": scrubbed(found["state"], ids, seen),
        "chosen": None if chosen is None else tuple(one[keep] for one in chosen),
    }
