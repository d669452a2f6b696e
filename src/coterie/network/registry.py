"""The clients of a real federation: an id for every name that ever joined, and which of them are connected.

A client is identified by its name: with keys, the name its key was made for; without, the one it gives. Ids are given
in the order of names to the clients connected when training starts, later as clients join, and never twice.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from coterie.core.decoder import DecodeError, decode, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import write_durably, writing
from coterie.core.settings import Kind
from coterie.core.tables import Roster
from coterie.network.messages import ClientInfo

FILE = "members.json"
MANY = 8  # names in a message

_Kind: TypeAlias = tuple[tuple[int, ...], Kind, str, str]  # inputs, task, features and classes of a client's data


@dataclass(frozen=True)
class RegisteredClient:
    """A client that has joined at some time."""

    name: str
    train: int  # samples
    test: int
    evaluations: bool = True  # whether it is to be asked for them


@dataclass(frozen=True)
class Shape:
    """What every client's data must look like for one model to fit them all."""

    input_shape: tuple[int, ...]
    kind: Kind
    outputs: int
    features: str = ""  # the names of the inputs, where they have names
    classes: str = ""

    def differs(self, info: ClientInfo) -> str | None:
        """How a client's data differs in kind, if it does."""
        return _difference(common(info), self.common)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """What the inputs are called; None where clients told no names, or a fingerprint of them."""
        return _names(self.features, self.input_shape[0] if len(self.input_shape) == 1 else 0)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called."""
        return _names(self.classes, self.outputs)

    @property
    def common(self) -> _Kind:
        """What all have in common."""
        return self.input_shape, self.kind, self.features, self.classes


def _names(text: str, many: int) -> tuple[str, ...] | None:
    """The names in a text of names (see `ClientWorker.info`)."""
    found = tuple(text.split(", "))
    fingerprint = re.fullmatch(r"\d+ names, [0-9a-f]{64}", text)
    return found if text and not fingerprint and len(found) == many else None


def common(info: ClientInfo) -> _Kind:
    """What a client must have in common with the others."""
    return info.input_shape, info.kind, info.features, info.classes


def describe_kinds(infos: Iterable[ClientInfo]) -> str:
    """Which kinds of data there are, who has which, and how each differs from the most frequent; empty if it is one."""
    kinds = _by_kind(infos)
    most = max(kinds, key=lambda kind: len(kinds[kind]), default=None)
    if most is None or len(kinds) == 1:
        return ""
    parts = [f"{_some([info.name for info in kinds[most]])}: inputs {most[0]}, {most[1]}"]
    for kind in kinds:
        differs = _difference(kind, most, "those")
        if differs is not None:
            parts.append(f"{_some([info.name for info in kinds[kind]])}: {differs}")
    return "; ".join(parts)


def _by_kind(infos: Iterable[ClientInfo]) -> dict[_Kind, list[ClientInfo]]:
    kinds: dict[_Kind, list[ClientInfo]] = {}
    for info in sorted(infos, key=lambda info: info.name):
        kinds.setdefault(common(info), []).append(info)
    return kinds


def _difference(theirs: _Kind, mine: _Kind, whose: str = "this federation's") -> str | None:
    """How one kind of data differs from another, if it does."""
    if mine == theirs:
        return None
    i = next(i for i in range(len(mine)) if mine[i] != theirs[i])
    what = ("inputs", "task", "features", "classes")[i]
    here, there = (_names(kind[2], kind[0][0] if len(kind[0]) == 1 else 0) for kind in (theirs, mine))
    if what not in ("inputs", "features") or here is None or there is None:
        return f"its {what}: {theirs[i] or 'no names'}; {whose}: {mine[i] or 'no names'}"
    lacks, more = ([name for name in one if name not in other] for one, other in ((there, here), (here, there)))
    found = [f"without {_some(lacks)}"] * bool(lacks) + [f"with {_some(more)} besides"] * bool(more)
    if not found:
        found = [f"in another order: {_some(here)}; {whose}: {_some(there)}"]
    sizes = f": {theirs[0]}; {whose}: {mine[0]}" if what == "inputs" else ""
    return f"its {what}{sizes}; {' and '.join(found)}"


def _some(names: Sequence[str]) -> str:
    """The first of many names."""
    more = len(names) - MANY
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:MANY])} and {more} others"


@dataclass(frozen=True)
class _SavedRegistry:
    """What members.json says."""

    run: str
    shape: Shape
    members: tuple[RegisteredClient, ...]
    banned: dict[str, str] = field(default_factory=dict)


@dataclass
class ClientRegistry:
    """The clients as the server knows them; the data is theirs."""

    run: str = field(default_factory=lambda: uuid.uuid4().hex)  # clients keep their states under this name
    known: list[RegisteredClient] = field(default_factory=list)  # a client's id is its place
    here: dict[int, int] = field(default_factory=dict)  # the node of each connected client
    shape: Shape | None = None
    banned: dict[str, str] = field(default_factory=dict)  # why, by name
    truth: None = None
    mixture: None = None
    path: Path | None = None  # where it is written down, once there is a directory
    _written: str = ""
    _roster: Roster = field(default_factory=lambda: Roster(torch.empty(0, dtype=torch.int64), torch.empty(0)))

    # ------------------------------------------------------------------- what the driver sees (see clients.Clients)

    def __len__(self) -> int:
        return len(self.known)

    @property
    def roster(self) -> Roster:
        """The connected clients."""
        ids = torch.tensor(sorted(self.here), dtype=torch.int64)
        found = Roster(ids, self.sizes(ids))
        if not (torch.equal(found.ids, self._roster.ids) and torch.equal(found.n, self._roster.n)):
            self._roster = found
        return self._roster

    def sizes(self, ids: Tensor) -> Tensor:
        """The training samples of these clients, connected or not."""
        return torch.tensor([self.known[i].train for i in ids.tolist()], dtype=torch.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """By id."""
        return tuple(member.name for member in self.known)

    @property
    def features(self) -> tuple[str, ...] | None:
        """What the inputs are called."""
        return None if self.shape is None else self.shape.feature_names

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called."""
        return None if self.shape is None else self.shape.class_names

    def describe(self) -> str:
        """One line."""
        many = len(self.here)
        return f"{many} client{'s' if many != 1 else ''} connected, each with its own data: {self.identity()}"

    def identity(self) -> str:
        """What must agree for a checkpoint to belong to this federation; clients come and go."""
        if self.shape is None:
            raise CoterieError("no client has said yet what its data looks like", code="clients-absent")
        what = "classes" if self.shape.kind == "classification" else "targets"
        return f"inputs {tuple(self.shape.input_shape)}, {self.shape.outputs} {what}"

    # ------------------------------------------------------------------------------------------- coming and going

    def register(self, infos: Mapping[int, ClientInfo]) -> dict[int, str]:
        """Register the clients of these nodes; returns the reason for those that are refused."""
        refused = {}
        for node, info in sorted(infos.items(), key=lambda item: item[1].name):
            why = self._unfit(info)
            if why is not None:
                refused[node] = why
                continue
            self.here[self._id_of(info)] = node
        self.write()
        return refused

    def ban(self, name: str, why: str) -> None:
        """Do not ask this client any more."""
        self.banned[name] = why
        self.here = {client: node for client, node in self.here.items() if self.known[client].name != name}
        self.write()

    def set_connected(self, nodes: set[int]) -> None:
        """Only these nodes are connected."""
        self.here = {client: node for client, node in self.here.items() if node in nodes}

    def _id_of(self, info: ClientInfo) -> int:
        member = RegisteredClient(info.name, info.train, info.test, info.evaluations)
        for client, old in enumerate(self.known):
            if old.name == info.name:
                self.known[client] = member
                return client
        self.known.append(member)
        return len(self.known) - 1

    def _unfit(self, info: ClientInfo) -> str | None:
        if self.shape is None:
            return None
        other = self.shape.differs(info)
        if other is not None:
            return f"does not fit: {other}"
        if info.outputs > self.shape.outputs:
            return f"its data has {info.outputs} outputs, this federation's model {self.shape.outputs}"
        return None

    def agree_on_shape(self, infos: Mapping[int, ClientInfo], enough: int, outputs: int | None) -> bool:
        """Find the kind of data that enough of the first clients have in common; returns whether there is one."""
        kinds = _by_kind(infos.values())
        most = max(kinds.values(), key=len, default=[])
        if len({info.name for info in most}) < enough:
            return False
        first, widest = most[0], max(most, key=lambda info: info.outputs)
        if outputs is not None and widest.outputs > outputs:
            raise CoterieError(
                f"network.outputs: {outputs}, but {widest.name} has {widest.outputs}", code="model-shape"
            )
        self.shape = Shape(first.input_shape, first.kind, outputs or widest.outputs, first.features, first.classes)
        return True

    # ------------------------------------------------------------------------------------------------ on the disk

    def write(self) -> None:
        """Write members.json. Ids never change, so they are written before they are used."""
        if self.path is None or self.shape is None or not self.path.is_dir():
            return
        shape = asdict(self.shape) | {"input_shape": list(self.shape.input_shape)}
        tree = {"run": self.run, "shape": shape, "members": [asdict(m) for m in self.known]}
        text = json.dumps(tree | ({"banned": self.banned} if self.banned else {}), indent=1)
        if text != self._written:
            with writing(self.path / FILE, f"make room and go on with --resume {self.path}"):
                write_durably(self.path / FILE, text + "\n")
            self._written = text

    @staticmethod
    def read(path: Path) -> ClientRegistry:
        """The registry of a run, with no client connected."""
        try:
            found = decode(parse_json((path / FILE).read_bytes()), _SavedRegistry)
            return ClientRegistry(found.run, list(found.members), shape=found.shape, banned=found.banned, path=path)
        except FileNotFoundError:
            return ClientRegistry()  # stopped before its first round: nobody has an id yet
        except (OSError, DecodeError) as error:
            raise CoterieError(
                f"{path / FILE}: damaged ({error}); without it nobody knows which client is which", code="run-damaged"
            ) from None
