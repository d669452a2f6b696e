"""Clients as they are: samples that have an owner."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from coterie.core.constructors import dataclass
from coterie.core.errors import CoterieError
from coterie.core.types import STRICT, TestSplit
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation
from coterie.data.partitions.allocation import Pools
from coterie.data.ragged import Ragged


@dataclass(frozen=True, config=STRICT)
class Natural:
    """One client per owner: a person, a writer, a hospital (the data set's client column)."""

    paper: ClassVar[str] = "Caldas et al. 2018, arXiv:1812.01097 (LEAF)"

    clients: PositiveInt | None = None  # so many of them, drawn at random; None: all
    at_least: PositiveInt = 2  # owners with fewer samples, training and test together, are left out
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
        notes = []
        if not len(kept):
            most = int((lengths + test.lengths.numpy()).max())
            raise CoterieError(
                f"data.partition.at_least: none of the {everyone} owners in {data.name} has {self.at_least} samples, "
                f"one of them to train on; the most is {most}. Is the client column the right one?",
                code="partition-impossible",
            )
        if len(kept) < everyone:
            notes.append(f"{everyone - len(kept)} owners with too few samples left out")
        if self.clients is not None:
            if self.clients > len(kept):
                raise CoterieError(
                    f"data.partition.clients: {data.name} has {len(kept)} clients, not {self.clients}",
                    code="partition-impossible",
                )
            notes.append(f"{self.clients} of {len(kept)} owners drawn")
            kept = np.sort(rng.choice(kept, self.clients, replace=False))
        made = Federation(
            *((data.domain,), train, test),
            kind=data.kind,
            outputs=data.classes,
            name=data.name,
            names=data.client_names,
            groups=data.groups,
        )
        return made if len(kept) == everyone else made.take(kept, ", ".join(notes))
