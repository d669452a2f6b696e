"""Clients that joined a federation, or were forgotten, after a run began. Ids stay: those who join get the next ones.

The identity of such data is what checkpoints belong to. Of data with forgotten clients it is a hash of the whole and
the ids that are gone, so that it can be derived without the data, and tells nothing of those clients.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.tables import Roster, crisp, grouped
from coterie.data.federation import ClientData, Federation, Ragged, unchanging

_FORM = re.compile(r"data ([0-9a-f]{16}) without clients ([0-9, ]+)")
Value = TypeVar("Value")


def key_of(identity: str) -> str:
    """What the identity of data and that of the same data with forgotten clients have in common."""
    found = _FORM.fullmatch(identity)
    return hashlib.sha256(identity.encode()).hexdigest()[:16] if found is None else found[1]


def forgotten_in(identity: str) -> tuple[int, ...]:
    """The clients that are gone from data of this identity."""
    found = _FORM.fullmatch(identity)
    return () if found is None else tuple(int(client) for client in found[2].split(","))


def identity_without(identity: str, clients: Iterable[int]) -> str:
    """The identity of this data when these clients are gone, besides those that are."""
    gone = sorted({*clients, *forgotten_in(identity)})
    return f"data {key_of(identity)} without clients {', '.join(map(str, gone))}" if gone else identity


def placeholder(client: int) -> str:
    """What stands for the name of a forgotten client."""
    return f"(forgotten {client})"


def masked(values: Sequence[Value], gone: Iterable[int], by: Value | None = None) -> tuple[Any, ...]:
    """The values without those of these clients: a placeholder, or `by`, is in their place."""
    out = set(gone)
    return tuple(placeholder(i) if i in out and by is None else by if i in out else v for i, v in enumerate(values))


@dataclass(frozen=True, eq=False)
class ChangedFederation(Federation):
    """A federation whose clients changed since the run began: `founders` were there first, `gone` are forgotten."""

    founders: int = 0
    gone: tuple[int, ...] = ()

    @cached_property
    def roster(self) -> Roster:
        """Everyone who is still there."""
        ids, truth = torch.arange(len(self)), crisp(self.truth, self.mixture)
        everyone = Roster(ids, self.train.lengths, grouped(self.groups), truth, self.founders)
        return everyone.only(~torch.isin(ids, torch.tensor(self.gone, dtype=torch.int64)))

    def sizes(self, ids: Tensor) -> Tensor:
        """How many training samples these clients have."""
        return self.train.lengths[ids]

    def identity(self) -> str:
        """What must agree for a checkpoint to be of this data."""
        return identity_without(f"{Federation.describe(self)}, checksum {self.checksum():08x}", self.gone)

    def describe(self) -> str:
        """One line; nothing in it depends on forgotten clients."""
        if not self.gone:
            return Federation.describe(self)
        return described_without(self.name, self.train.lengths, self.gone)

    def client(self, client: int) -> ClientData:
        """The data of one client."""
        if client in self.gone:
            raise CoterieError(f"client {client} was forgotten; its data is not used", code="client-unknown")
        return ClientData(self, client)

    def take(self, clients: ArrayLike, note: str = "") -> Federation:
        """A federation of these clients, numbered anew."""
        plain = {field.name: getattr(self, field.name) for field in fields(Federation)}
        return Federation(**plain).take(clients, note)


def described_without(name: str, lengths: Tensor, gone: Sequence[int]) -> str:
    """One line about data with forgotten clients."""
    here = torch.ones(len(lengths), dtype=torch.bool)
    here[torch.tensor(gone, dtype=torch.int64)] = False
    many = f"{int(here.sum()):,} clients, {int(lengths[here].sum()):,} training samples"
    return f"{name}: {many}, {len(gone)} forgotten"


def changed(data: Federation, founders: int, gone: Sequence[int] = ()) -> ChangedFederation:
    """The same data, of which `founders` clients were there first and these are forgotten."""
    unchanging(data, "adding and forgetting clients")
    values = {field.name: getattr(data, field.name) for field in fields(Federation)}
    if gone and data.names is not None:
        values["names"] = masked(data.names, gone)
    return ChangedFederation(**values, founders=founders, gone=tuple(sorted(gone)))


def extended(data: Federation, new: Federation) -> ChangedFederation:
    """The clients of `data`, with their ids, and after them those of `new`, which is in the same form.

    Clients without a name are called by their numbers if others have one. True clusters are kept if both know them.
    """
    unchanging(data, "adding clients")
    unchanging(new, "adding clients")
    if new.kind != data.kind:
        raise CoterieError(f"the new clients' data is a {new.kind}, the run's a {data.kind}", code="data-labels")
    if new.input_shape != data.input_shape:
        raise CoterieError(
            f"the new clients' inputs have the shape {new.input_shape}, the run's {data.input_shape}", code="data-shape"
        )
    founders, gone = (data.founders, data.gone) if isinstance(data, ChangedFederation) else (len(data), ())
    starts = [0, sum(len(domain.y) for domain in data.domains)]
    val = None
    if data.val is not None or new.val is not None:
        val = Ragged.join([data.rows("val"), new.rows("val")], starts)
    joined = replace(
        changed(data, founders, gone),
        domains=(*data.domains, *new.domains),
        train=Ragged.join([data.train, new.train], starts),
        test=Ragged.join([data.test, new.test], starts),
        val=val,
        truth=_stacked(data.truth, new.truth),
        mixture=_stacked(data.mixture, new.mixture),
        names=_names(data, new),
        groups=_groups(data, new),
        marked=None,  # of no use any more: validation samples are held out in each part
        time=None,
        preparation=None,  # who joins changes nothing of how the data is seen
    )
    joined.check()
    return joined


def _stacked(ours: NDArray[Any] | None, theirs: NDArray[Any] | None) -> NDArray[Any] | None:
    if ours is None or theirs is None or ours.shape[1:] != theirs.shape[1:]:
        return None
    return np.concatenate([ours, theirs])


def _names(data: Federation, new: Federation) -> tuple[str, ...] | None:
    if data.names is None and new.names is None:
        return None
    ours = data.names or tuple(map(str, range(len(data))))
    theirs = new.names or tuple(map(str, range(len(data), len(data) + len(new))))
    if twice := sorted(set(ours) & set(theirs)):
        raise CoterieError(
            f"'{twice[0]}' is a client of the run already ({len(twice)} of {len(theirs)} new clients are); "
            "give only clients that are new",
            code="client-exists",
        )
    return (*ours, *theirs)


def _groups(data: Federation, new: Federation) -> tuple[str | None, ...] | None:
    if data.groups is None and new.groups is None:
        return None
    return (*(data.groups or [None] * len(data)), *(new.groups or [None] * len(new)))
