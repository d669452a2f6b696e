"""Clients as they are: samples that have an owner."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, TestSplit, dataclass
from coterie.core.text import client_name, counted
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation
from coterie.data.partitions.allocation import Pools
from coterie.data.ragged import Ragged

TOO_FEW = "clients left out, for they have fewer than"  # of a remark, by which `explain` knows them
SHOWN = 100  # of them, by name


@dataclass(frozen=True, config=STRICT)
class Natural:
    """One client per owner: a person, a writer, a hospital (the data set's client column)."""

    paper: ClassVar[str] = "Caldas et al. 2018, arXiv:1812.01097 (LEAF)"

    clients: PositiveInt | None = None  # so many of them, drawn at random; None: all
    at_least: PositiveInt = 2  # clients with fewer samples, training and test together, are left out
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Group by owner."""
        if data.client is None:
            raise CoterieError(
                f"data.partition: {data.name} does not say whose its samples are; name a client column, "
                "or use another partition, such as data.partition.name=iid",
                code="partition-not-applicable",
            )
        pools = Pools.of(data, self.test, rng)
        owner, everyone = data.client, int(data.client.max()) + 1
        if len(pools.rows) == 1:
            rows = np.arange(len(owner))
            mask = pools.held_out(owner, rows, pools.key, everyone, rng)
            splits = [rows[~mask], rows[mask]]
        else:
            splits = list(pools.rows)
        train, test = (Ragged.by(owner[rows], rows, everyone) for rows in splits)
        lengths = train.lengths.numpy()
        kept = np.flatnonzero((lengths >= 1) & (lengths + test.lengths.numpy() >= self.at_least))
        notes, small = [], np.setdiff1d(np.arange(everyone), kept)
        if not len(kept):
            most = int((lengths + test.lengths.numpy()).max())
            raise CoterieError(
                f"data.partition.at_least: none of the {everyone} clients in {data.name} has {self.at_least} samples, "
                f"one of them to train on; the most is {most}. Is the client column the right one?",
                code="partition-impossible",
            )
        if len(kept) < everyone:
            notes.append(f"{counted(everyone - len(kept), 'client')} with too few samples left out")
        if self.clients is not None:
            if self.clients > len(kept):
                raise CoterieError(
                    f"data.partition.clients: {data.name} has {len(kept)} clients, not {self.clients}",
                    code="partition-impossible",
                )
            notes.append(f"{self.clients} of {counted(len(kept), 'client')} drawn")
            kept = np.sort(rng.choice(kept, self.clients, replace=False))
        made = Federation(
            *((data.domain,), train, test),
            kind=data.kind,
            outputs=data.classes,
            name=data.name,
            names=data.client_names,
            groups=data.groups,
            marked=data.validation,
            time=data.time,
        )
        if len(kept) == everyone:
            return made
        said = [*data.remarks, *([self._left_out(data, small)] if len(small) else [])]
        return replace(made.take(kept, ", ".join(notes)), remarks=tuple(said))

    def _left_out(self, data: Dataset, small: NDArray[np.int64]) -> str:
        shown = ", ".join(client_name(data.client_names, client) for client in small[:SHOWN].tolist())
        more = f" and {len(small) - SHOWN} more" if len(small) > SHOWN else ""
        return f"{TOO_FEW} {self.at_least} samples, one of them to train on: {shown}{more}"
