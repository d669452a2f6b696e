"""What a run directory records of its data: enough to predict, admit newcomers and export networks without samples.

Plain JSON. The training data itself is needed only to train on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.decoder import DecodeError, decode
from coterie.core.errors import CoterieError
from coterie.core.settings import Kind
from coterie.core.tables import Roster, crisp, grouped
from coterie.data.columns import InputColumn, TableScale
from coterie.data.federation import Domain, Federation
from coterie.data.membership import ChangedFederation, described_without, forgotten_in, identity_without, masked
from coterie.data.scale import Scale, TargetScale

Json: TypeAlias = dict[str, Any]  # a JSON object, only read and written here
S = TypeVar("S", Scale, TargetScale)


@dataclass(frozen=True, eq=False)
class DataRecord:
    """The clients a run was trained on and the form of their samples; see `clients.Clients`."""

    text: str  # from `Federation.describe`
    checked: str  # from `Federation.identity`
    kind: Kind
    outputs: int
    input_shape: tuple[int, ...]
    train: Tensor  # (N,) training samples of each client
    scales: tuple[Scale | None, ...]
    scale_of: Tensor | None = None  # (N,) which of the scales is a client's; None where there is one for all
    truth: NDArray[np.int64] | None = None
    mixture: NDArray[np.float64] | None = None
    names: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    targets: tuple[TargetScale | None, ...] = (None,)  # how targets of a regression were standardised
    target_of: Tensor | None = None  # (N,) which of these is a client's; None where there is one for all
    groups: tuple[str | None, ...] | None = None  # that the user has given
    source: Callable[..., Federation] | None = field(default=None, repr=False)  # reads the training data again

    @staticmethod
    def of(data: Federation) -> DataRecord:
        """What is recorded of a federation."""
        targets = targets_of(data)
        record = DataRecord(
            *(data.describe(), data.identity(), data.kind, data.outputs, data.input_shape),
            *(data.train.lengths, data.scales),
            scale_of=_which(data, data.scales, lambda domain: domain.scale),
            truth=data.truth,
            mixture=data.mixture,
            names=data.names,
            features=data.features,
            class_names=data.class_names,
            targets=targets,
            target_of=_which(data, targets, lambda domain: domain.target),
            groups=data.groups,
        )
        return record.without(data.gone) if isinstance(data, ChangedFederation) and data.gone else record

    def without(self, gone: Sequence[int]) -> DataRecord:
        """The same without what is known of these clients; their ids stay."""
        if not gone:
            return self
        name, train = self.text.partition(":")[0], self.train.clone()
        train[torch.tensor(gone)] = 0
        scales, scale_of = _used(self.scales, self.scale_of, gone)
        targets, target_of = _used(self.targets, self.target_of, gone)
        return replace(
            self,
            text=described_without(name, train, gone),
            checked=identity_without(self.checked, gone),
            train=train,
            scales=scales,
            scale_of=scale_of,
            targets=targets,
            target_of=target_of,
            truth=None if self.truth is None else np.asarray(masked(self.truth.tolist(), gone, -1), dtype=np.int64),
            mixture=None if self.mixture is None else _zeroed(self.mixture, gone),
            names=None if self.names is None else masked(self.names, gone),
            groups=None if self.groups is None else tuple(None if i in gone else g for i, g in enumerate(self.groups)),
        )

    def first(self, clients: int, identity: str) -> DataRecord:
        """The record of before the last clients were added."""
        if clients >= len(self):
            return self
        part = slice(clients)
        return replace(
            self,
            text=described_without(self.text.partition(":")[0], self.train[part], forgotten_in(identity)),
            checked=identity,
            train=self.train[part],
            scale_of=None if self.scale_of is None else self.scale_of[part],
            target_of=None if self.target_of is None else self.target_of[part],
            truth=None if self.truth is None else self.truth[part],
            mixture=None if self.mixture is None else self.mixture[part],
            names=None if self.names is None else self.names[part],
            groups=None if self.groups is None else self.groups[part],
        )

    # ------------------------------------------------------------------------------- what a server knows of clients

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def roster(self) -> Roster:
        """Everyone."""
        groups, truth = grouped(self.groups), crisp(self.truth, self.mixture)
        return Roster(torch.arange(len(self)), self.train, groups, truth)

    def sizes(self, ids: Tensor) -> Tensor:
        """How many training samples these clients have."""
        return self.train[ids]

    def describe(self) -> str:
        """One line."""
        return self.text

    def identity(self) -> str:
        """Identifies this data in a checkpoint."""
        return self.checked

    def scale(self, client: int) -> Scale | None:
        """How this client's stored numbers become inputs."""
        return self.scales[0 if self.scale_of is None else int(self.scale_of[client])]

    @property
    def target(self) -> TargetScale | None:
        """How targets were standardised; None where they were not. One for all clients, unless joined."""
        return self.targets[0]

    def target_scale(self, client: int) -> TargetScale | None:
        """How this client's targets were standardised."""
        return self.targets[0 if self.target_of is None else int(self.target_of[client])]

    def federation(self) -> Federation:
        """The training data, read again; it must still be what the run was trained on."""
        if self.source is None:
            raise CoterieError(
                "the training data is not here; give it: coterie.load(dir, federation=...)", code="data-needed"
            )
        found = self.source()
        if found.identity() != self.checked:
            raise CoterieError(
                f"the training data has changed since: it was {self.checked}, it is {found.identity()}",
                code="data-changed",
            )
        return found

    # ------------------------------------------------------------------------------------------------------- as JSON

    def to_json(self) -> Json:
        """As a JSON object."""
        return {
            "describe": self.text,
            "identity": self.checked,
            "kind": self.kind,
            "outputs": self.outputs,
            "input_shape": list(self.input_shape),
            "train": self.train.tolist(),
            "scales": [_scale_to_json(scale) for scale in self.scales],
            "scale_of": None if self.scale_of is None else self.scale_of.tolist(),
            "truth": None if self.truth is None else self.truth.tolist(),
            "mixture": None if self.mixture is None else self.mixture.tolist(),
            "names": self.names,
            "features": self.features,
            "class_names": self.class_names,
            "targets": [None if t is None else [t.mean.tolist(), t.std.tolist()] for t in self.targets],
            "target_of": None if self.target_of is None else self.target_of.tolist(),
        } | ({} if self.groups is None else {"groups": self.groups})

    @staticmethod
    def from_json(json: object, source: Callable[[], Federation] | None = None) -> DataRecord:
        """From a JSON object; DecodeError, TypeError or ValueError if it is not such a record."""
        found = decode(json, _Recorded)
        train = torch.tensor(found.train, dtype=torch.int64)
        scales = tuple(map(_scale_from_json, found.scales))
        targets = tuple(_target_from_json(target, found.outputs) for target in found.targets)
        for key in ("truth", "mixture", "names", "groups"):
            if getattr(found, key) is not None and len(getattr(found, key)) != len(train):
                raise DecodeError(f"{key}: {len(getattr(found, key))} entries for {len(train)} clients")
        return DataRecord(
            *(found.describe, found.identity, found.kind, found.outputs, found.input_shape, train, scales),
            scale_of=_choices("scale_of", found.scale_of, len(train), len(scales)),
            truth=None if found.truth is None else np.asarray(found.truth, dtype=np.int64),
            mixture=None if found.mixture is None else np.asarray(found.mixture, dtype=np.float64),
            names=found.names,
            features=found.features,
            class_names=found.class_names,
            targets=targets,
            target_of=_choices("target_of", found.target_of, len(train), len(targets)),
            groups=found.groups,
            source=source,
        )


@dataclass(frozen=True)
class _RecordedColumn:
    name: str
    values: tuple[str, ...] | None
    fill: float | None
    indicator: bool
    fills: bool
    words: int = 0  # written where it is text only


@dataclass(frozen=True)
class _RecordedScale:
    divisor: float
    mean: Any  # a number, or nested lists of numbers
    std: Any
    columns: tuple[_RecordedColumn, ...] | None = None  # of a table with categories or missing values


@dataclass(frozen=True)
class _Recorded:
    """The JSON object."""

    describe: str
    identity: str
    kind: Kind
    outputs: int
    input_shape: tuple[int, ...]
    train: tuple[int, ...]
    scales: tuple[_RecordedScale | None, ...]
    scale_of: tuple[int, ...] | None
    truth: tuple[int, ...] | None
    mixture: tuple[tuple[float, ...], ...] | None
    names: tuple[str, ...] | None
    features: tuple[str, ...] | None
    class_names: tuple[str, ...] | None
    targets: tuple[tuple[tuple[float, ...], tuple[float, ...]] | None, ...]  # mean and deviation
    target_of: tuple[int, ...] | None
    groups: tuple[str | None, ...] | None = None


Described: TypeAlias = Federation | DataRecord  # clients of whose data the form is known here


def scale_of(known: Described, client: int) -> Scale | None:
    """How the stored numbers of a client become inputs; None: they are inputs as they are."""
    return known.scale(client) if isinstance(known, DataRecord) else known.domain_of(client).scale


def target_of(known: Described, client: int) -> TargetScale | None:
    """How the targets of a client were standardised; None: they were not."""
    return known.target_scale(client) if isinstance(known, DataRecord) else known.domain_of(client).target


def targets_of(known: Described) -> tuple[TargetScale | None, ...]:
    """The different ways in which targets were standardised."""
    if isinstance(known, DataRecord):
        return known.targets
    return tuple({_key(domain.target): domain.target for domain in known.domains}.values())


def _target_from_json(found: Any, targets: int) -> TargetScale | None:
    if found is None:
        return None
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in found)
    if mean.shape != (targets,) or std.shape != (targets,) or not bool((std > 0).all()):
        raise DecodeError(f"targets: expected {targets} means and as many deviations above 0")
    return TargetScale(mean, std)


def _key(scale: Scale | TargetScale | None) -> bytes:
    return b"" if scale is None else scale.bytes()


def _used(
    known: tuple[S | None, ...], which: Tensor | None, gone: Sequence[int]
) -> tuple[tuple[S | None, ...], Tensor | None]:
    """The scales that clients other than these have, and which of them is a client's."""
    if which is None:
        return known, None
    here = torch.ones(len(which), dtype=torch.bool)
    here[torch.tensor(gone)] = False
    rows = which[here].unique()
    place = torch.zeros(len(known), dtype=torch.int64).index_put_((rows,), torch.arange(len(rows)))
    kept = tuple(known[row] for row in rows.tolist())
    return kept, place[which] if len(kept) > 1 else None


def _zeroed(mixture: NDArray[np.float64], gone: Sequence[int]) -> NDArray[np.float64]:
    out = mixture.copy()
    out[list(gone)] = 0
    return out


def _which(
    data: Federation,
    known: Sequence[Scale | TargetScale | None],
    of: Callable[[Domain], Scale | TargetScale | None],
) -> Tensor | None:
    """(N,) which of these is a client's; None where there is only one."""
    places = {_key(scale): i for i, scale in enumerate(known)}
    if len(places) == 1:
        return None
    return torch.tensor([places[_key(of(data.domain_of(client)))] for client in range(len(data))])


def _choices(key: str, found: tuple[int, ...] | None, clients: int, many: int) -> Tensor | None:
    if not many or (found is None and many > 1):
        raise DecodeError(f"{key}: missing, though there are {many} scales")
    if found is None:
        return None
    if len(found) != clients or not all(0 <= i < many for i in found):
        raise DecodeError(f"{key}: expected {clients} numbers from 0 to {many - 1}")
    return torch.tensor(found, dtype=torch.int64)


def _scale_to_json(scale: Scale | None) -> Json | None:
    if scale is None:
        return None
    parts = {"divisor": scale.divisor, "mean": scale.mean, "std": scale.std}
    out = {name: part.tolist() if isinstance(part, Tensor) else part for name, part in parts.items()}
    if isinstance(scale, TableScale):
        keys = [key.name for key in fields(_RecordedColumn)]
        shown = [{key: getattr(column, key) for key in keys} for column in scale.columns]
        out["columns"] = [{k: v for k, v in column.items() if k != "words" or v} for column in shown]
    return out


def _scale_from_json(found: _RecordedScale | None) -> Scale | None:
    if found is None:
        return None
    mean, std = (torch.tensor(v) if isinstance(v, list) else float(v) for v in (found.mean, found.std))
    if found.columns is None:
        return Scale(float(found.divisor), mean, std)
    columns = tuple(InputColumn(c.name, c.values, c.fill, c.indicator, c.fills, words=c.words) for c in found.columns)
    scale = TableScale(float(found.divisor), mean, std, None, columns)
    if any(torch.as_tensor(part).shape != (len(scale.inputs),) for part in (mean, std)):
        raise DecodeError(f"scales: expected {len(scale.inputs)} means and deviations, one for each input")
    return scale
