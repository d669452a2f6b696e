"""From shares to a Federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.domain import Domain
from coterie.data.federation import Federation
from coterie.data.partitions.allocation import Floats, Ints, Pools, cut
from coterie.data.ragged import Ragged


def clusters_of(clients: int, clusters: int, key: str = "clusters") -> Ints:
    """(clients,) clusters of equal size, one after the other."""
    if clusters > clients:
        raise CoterieError(
            f"data.partition.{key}: {clusters} clusters need at least as many clients, not {clients}",
            code="partition-impossible",
        )
    return np.arange(clients) * clusters // clients


def members(truth: Ints) -> Ints:
    """(clients,) how many clients the cluster of each client has."""
    return np.bincount(truth)[truth]


@dataclass(frozen=True, eq=False)
class Deal:
    """How much of each stratum goes to each slot, and whose a slot is."""

    strata: Ints  # (classes,) the stratum of a label; -1: its samples are left over
    shares: Floats  # (strata, slots)
    clients: int
    client: Ints | None = None  # (slots,) whose slot; None: slot i is client i's
    view: Ints | None = None  # (slots,) through which domain its samples are seen; None: the first
    reuse: bool = False  # every view deals out all samples, so that a sample may be seen once through each


def whole(classes: int) -> Ints:
    """All labels in one stratum: labels play no part."""
    return np.zeros(max(classes, 1), dtype=np.int64)


def spread(
    data: Dataset,
    pools: Pools,
    deal: Deal,
    rng: np.random.Generator,
    name: str,
    *,
    views: Sequence[Domain] = (),
    truth: Ints | None = None,
    mixture: Floats | None = None,
    outputs: int | None = None,
) -> Federation:
    """Cut the pools by the deal's shares."""
    splits = [_cut(data, pools, rows, deal, rng) for rows in pools.rows]
    left = len(data.y) - sum(len(owner) for owner, _ in splits)
    if len(splits) == 1:
        owner, numbers = splits[0]
        # A sample's key here: its label and the view it is seen through, so that both halves have as much of each.
        key = pools.key[numbers % len(data.y)] + (numbers // len(data.y)) * (int(pools.key.max(initial=0)) + 1)
        test = pools.held_out(owner, numbers % len(data.y), key, deal.clients, rng)
        splits = [(owner[~test], numbers[~test]), (owner[test], numbers[test])]
    made = Federation(
        tuple(views) or (data.domain,),
        train=Ragged.by(*splits[0], deal.clients),
        test=Ragged.by(*splits[1], deal.clients),
        kind=data.kind,
        outputs=outputs or data.classes,
        truth=truth,
        mixture=mixture,
        name=f"{data.name}, {name}",
        marked=data.per_domain(data.validation, len(views) or 1),
        time=data.per_domain(data.time, len(views) or 1),
        note=f"{left:,} samples left over" if left > 0 and not deal.reuse else "",
    )
    poor = np.flatnonzero(made.train.lengths.numpy() == 0)
    if len(poor):
        raise CoterieError(
            f"data.partition: {len(data.y)} samples cannot be dealt to {deal.clients} clients: {len(poor)} of them, "
            f"client {poor[0]} first, would have nothing to train on; use fewer clients",
            code="partition-impossible",
        )
    return made


def _cut(data: Dataset, pools: Pools, rows: Ints, deal: Deal, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """The client and the number of every sample of a pool that is dealt out."""
    client = np.arange(deal.shares.shape[1]) if deal.client is None else deal.client
    view = np.zeros_like(client) if deal.view is None else deal.view
    together = [np.flatnonzero(view == v) for v in np.unique(view)] if deal.reuse else [np.arange(len(view))]
    strata = deal.strata[pools.key[rows]]
    owners, numbers = [], []
    for slots in together:
        slot = cut(strata, deal.shares[:, slots], rng)
        got = slot >= 0
        mine = slots[slot[got]]
        owners.append(client[mine])
        numbers.append(rows[got] + view[mine] * len(data.y))
    return np.concatenate(owners), np.concatenate(numbers)
