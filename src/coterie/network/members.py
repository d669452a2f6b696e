"""Who the clients of a real federation are: an id for each name that ever came, and who of them is there now.

A client is known by its name: with keys, the name its key was made for; without, the one it gives. Ids are given in the
order of names to those who are there when training begins, and after that as clients come, and never given twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from coterie.checkpoint import replace_durably
from coterie.data.federation import Kind
from coterie.errors import CoterieError
from coterie.network.errand import About
from coterie.tasks import Roster

FILE = "members.json"


@dataclass(frozen=True)
class Member:
    """A client that came at some time."""

    name: str
    train: int  # samples
    test: int


@dataclass(frozen=True)
class Shape:
    """What every client's data must look like for one model to fit them all."""

    input_shape: tuple[int, ...]
    kind: Kind
    outputs: int
    features: str = ""  # the names of the inputs, where they have names
    classes: str = ""

    def differs(self, about: About) -> str | None:
        """How a client's data is another kind of data, if it is."""
        mine, theirs = self.common, common(about)
        if mine == theirs:
            return None
        i = next(i for i in range(len(mine)) if mine[i] != theirs[i])
        what = ("inputs", "task", "features", "classes")[i]
        return f"its {what}: {theirs[i] or 'no names'}; this federation's: {mine[i] or 'no names'}"

    @property
    def common(self) -> tuple[object, ...]:
        """What all have in common."""
        return self.input_shape, self.kind, self.features, self.classes


def common(about: About) -> tuple[object, ...]:
    """What a client must have in common with the others."""
    return about.input_shape, about.kind, about.features, about.classes


@dataclass
class Members:
    """The clients as the server knows them; the data is theirs."""

    run: str = field(default_factory=lambda: uuid.uuid4().hex)  # what clients keep belongs to this run
    known: list[Member] = field(default_factory=list)  # a client's id is its place
    here: dict[int, int] = field(default_factory=dict)  # the node of each client that is there now
    shape: Shape | None = None
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
        """Those who are there now."""
        ids = torch.tensor(sorted(self.here), dtype=torch.int64)
        found = Roster(ids, self.sizes(ids))
        if not (torch.equal(found.ids, self._roster.ids) and torch.equal(found.n, self._roster.n)):
            self._roster = found
        return self._roster

    def sizes(self, ids: Tensor) -> Tensor:
        """How much these clients train on, there or not."""
        return torch.tensor([self.known[i].train for i in ids.tolist()], dtype=torch.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """By id."""
        return tuple(member.name for member in self.known)

    def describe(self) -> str:
        """One line."""
        many = len(self.here)
        return f"{many} client{'s' if many != 1 else ''} connected, each with its own data: {self.identity()}"

    def identity(self) -> str:
        """What must agree for a checkpoint to belong to this federation; clients come and go."""
        if self.shape is None:
            raise CoterieError("no client has said yet what its data looks like")
        what = "classes" if self.shape.kind == "classification" else "targets"
        return f"inputs {tuple(self.shape.input_shape)}, {self.shape.outputs} {what}"

    # ------------------------------------------------------------------------------------------- coming and going

    def welcome(self, abouts: Mapping[int, About]) -> dict[int, str]:
        """Take in the clients behind these nodes; returns why not, for those that cannot be."""
        refused = {}
        for node, about in sorted(abouts.items(), key=lambda item: item[1].name):
            why = self._unfit(about)
            if why is not None:
                refused[node] = why
                continue
            self.here[self._id_of(about)] = node
        self.write()
        return refused

    def only(self, nodes: set[int]) -> None:
        """These nodes are connected; who was behind another is not there any more."""
        self.here = {client: node for client, node in self.here.items() if node in nodes}

    def _id_of(self, about: About) -> int:
        member = Member(about.name, about.train, about.test)
        for client, old in enumerate(self.known):
            if old.name == about.name:
                self.known[client] = member
                return client
        self.known.append(member)
        return len(self.known) - 1

    def _unfit(self, about: About) -> str | None:
        if self.shape is None:
            return None
        other = self.shape.differs(about)
        if other is not None:
            return f"does not fit: {other}"
        if about.outputs > self.shape.outputs:
            return f"its data has {about.outputs} outputs, this federation's model {self.shape.outputs}"
        return None

    def settle(self, abouts: Mapping[int, About], enough: int, outputs: int | None) -> bool:
        """Find the kind of data that enough of the first clients have in common; whether there is one."""
        kinds: dict[tuple[object, ...], list[About]] = {}
        for about in sorted(abouts.values(), key=lambda about: about.name):
            kinds.setdefault(common(about), []).append(about)
        most = max(kinds.values(), key=len, default=[])
        if len({about.name for about in most}) < enough:
            return False
        first, widest = most[0], max(most, key=lambda about: about.outputs)
        if outputs is not None and widest.outputs > outputs:
            raise CoterieError(f"network.outputs: {outputs}, but {widest.name} has {widest.outputs}")
        self.shape = Shape(first.input_shape, first.kind, outputs or widest.outputs, first.features, first.classes)
        return True

    # ------------------------------------------------------------------------------------------------ on the disk

    def write(self) -> None:
        """Ids are for ever: written down before any of them is used."""
        if self.path is None or self.shape is None or not self.path.is_dir():
            return
        shape = asdict(self.shape) | {"input_shape": list(self.shape.input_shape)}
        text = json.dumps({"run": self.run, "shape": shape, "members": [asdict(m) for m in self.known]}, indent=1)
        if text != self._written:
            part = self.path / f"{FILE}.part"
            part.write_text(text + "\n", encoding="utf-8")
            replace_durably(part, self.path / FILE)
            self._written = text

    @staticmethod
    def read(path: Path) -> Members:
        """The members of a run, none of them there yet."""
        try:
            found = json.loads((path / FILE).read_text(encoding="utf-8"))
            shape = Shape(**found["shape"])
            shape = replace(shape, input_shape=tuple(shape.input_shape))
            return Members(found["run"], [Member(**m) for m in found["members"]], shape=shape, path=path)
        except FileNotFoundError:
            return Members()  # stopped before its first round: nobody has an id yet
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CoterieError(
                f"{path / FILE}: damaged ({error}); without it nobody knows which client is which"
            ) from None
