"""Who gets which samples, and which of them are held out.

First shares are drawn: how much of each stratum (mostly a class) goes to each slot (mostly a client). Then every
stratum is shuffled and cut by them, so that no sample can go to two slots; the same shares cut the training and
the test set, so that both follow the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.core.settings import TestSplit
from coterie.data.dataset import Dataset
from coterie.data.federation import Domain, Federation, Ragged


def latest(owner: NDArray[np.int64], time: NDArray[np.float64], clients: int, share: float) -> NDArray[np.bool_]:
    """Which samples are held out: of each client its latest, as many as `held_out` takes; of equal times the last."""
    order = np.lexsort((np.arange(len(owner)), time, owner))
    own = owner[order]
    n = np.bincount(owner, minlength=clients)
    held = many_held(n, share)
    place = np.arange(len(owner)) - (np.cumsum(n) - n)[own]
    mask = np.zeros(len(owner), dtype=bool)
    mask[order] = place >= (n - held)[own]
    return mask


def many_held(n: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """(clients,) how many samples of each are held out; one always stays."""
    return np.minimum(np.round(share * n).astype(np.int64), np.maximum(n - 1, 0))


Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

HELD_OUT = 0.2  # where a data set has no official test set and nothing else is said
TRIES = 200  # how often what came out too poor is drawn again
PATIENCE = 20  # draws after which a few poor ones may be helped out instead
FEW = 50  # one in so many


# ------------------------------------------------------------------------------------------------ pools and cutting


def keys(data: Dataset) -> Ints:
    """(n,) the label of each sample; 0 where there are none."""
    return np.zeros(len(data.y), dtype=np.int64) if data.kind == "regression" else data.y.numpy()


def held_out(owner: Ints, key: Ints, clients: int, share: float, rng: np.random.Generator) -> Bools:
    """Which samples are held out: of each client round(share * n), spread evenly over its keys; one always stays."""
    order = rng.permutation(len(owner))
    order = order[np.argsort((owner * (int(key.max(initial=0)) + 1) + key)[order], kind="stable")]
    own = owner[order]
    n = np.bincount(owner, minlength=clients)
    held = many_held(n, share)
    place = np.arange(len(owner)) - (np.cumsum(n) - n)[own]
    # Every n/held-th sample in order of the keys, from a random start: exactly `held` of them, in whole numbers.
    start = (rng.random(clients) * n).astype(np.int64)[own]
    chosen = ((place + 1) * held[own] + start) // n[own] > (place * held[own] + start) // n[own]
    mask = np.zeros(len(owner), dtype=bool)
    mask[order] = chosen
    return mask


def short(shares: Floats, sizes: Ints) -> int | None:
    """A stratum with fewer samples than slots that want some of it, if there is one."""
    wanted = (shares > 0).sum(1)
    lacking = np.flatnonzero(wanted > sizes)
    return int(lacking[0]) if len(lacking) else None


def cut(strata: Ints, shares: Floats, rng: np.random.Generator) -> Ints:
    """The slot of each sample, -1 for none: each stratum is shuffled and cut at the sums of its shares."""
    slots = np.full(len(strata), -1, dtype=np.int64)
    for stratum, row in enumerate(shares):
        rows = rng.permutation(np.flatnonzero(strata == stratum))
        many = _counts(row, len(rows), stratum)
        slots[rows[: many.sum()]] = np.repeat(np.arange(len(row)), many)
    return slots


def _counts(shares: Floats, size: int, stratum: int) -> Ints:
    """Shares of a whole number: sums are rounded, so that nothing is lost and nobody is off by more than one.

    Where rounding goes up differs from stratum to stratum, or the same slots would lose the fraction every time.
    """
    ends = np.floor(np.cumsum(shares) * size + (0.5 + stratum * 0.6180339887) % 1).astype(np.int64)
    return np.diff(np.minimum(ends, size), prepend=0)


@dataclass(frozen=True, eq=False)
class Pools:
    """The samples to deal out: training and test set apart, or one set of which each client holds a share out."""

    rows: tuple[Ints, ...]  # the samples of each pool: (training, test), or (all,)
    key: Ints  # (n,) label of each sample of the data set
    share: float  # held out of each client, where there is one pool
    time: Floats | None = None  # (n,) when each sample was, where the latest are held out

    def held_out(self, owner: Ints, rows: Ints, key: Ints, clients: int, rng: np.random.Generator) -> Bools:
        """Which of these samples of the data set, each of an owner, are held out, where there is one pool."""
        if self.time is not None:
            return latest(owner, self.time[rows], clients, self.share)
        return held_out(owner, key, clients, self.share, rng)

    @staticmethod
    def of(data: Dataset, test: TestSplit, rng: np.random.Generator, apart: bool = False) -> Pools:
        """The pools of a data set. apart: samples are dealt out more than once, so test samples must be chosen first
        or one client would train on what another is tested on."""
        everything = np.arange(len(data.y))
        if test == "official" and data.official is None:
            raise CoterieError(
                f"data.partition.test: {data.name} has no official test set; write a share, such as 0.2",
                code="data-split",
            )
        if data.official is not None and test in ("official", "auto"):
            return Pools((everything[~data.official], everything[data.official]), keys(data), 0.0)
        share = test if isinstance(test, float) else HELD_OUT
        if apart and share:
            pool = Pools((everything,), keys(data), share, data.time)
            held = pool.held_out(np.zeros_like(everything), everything, pool.key, 1, rng)
            return Pools((everything[~held], everything[held]), keys(data), 0.0)
        return Pools((everything,), keys(data), share, data.time)

    def sizes(self, pool: int, strata: Ints) -> Ints:
        """(strata,) how many samples of each stratum a pool has; `strata` maps labels, -1 is no stratum."""
        found = strata[self.key[self.rows[pool]]]
        return np.bincount(found[found >= 0], minlength=int(strata.max()) + 1)

    def enough(self, shares: Floats, strata: Ints, least: int) -> Bools:
        """(slots,) who would have `least` samples in all, and at least one to train on and, if apart, one to test."""
        got = [self._got(pool, shares, strata).sum(0) for pool in range(len(self.rows))]
        return np.asarray(np.all([n >= 1 for n in got], axis=0) & (np.sum(got, axis=0) >= least))

    def _got(self, pool: int, shares: Floats, strata: Ints) -> Ints:
        """(strata, slots) samples of a pool."""
        sizes = self.sizes(pool, strata)
        return np.stack([_counts(row, int(n), s) for s, (row, n) in enumerate(zip(shares, sizes, strict=True))])

    def mended(self, shares: Floats, strata: Ints, least: int) -> Floats:
        """The last few slots that have too little get it, of the class they want most, from whoever has most of it."""
        shares = shares.copy()
        every = [self.sizes(pool, strata) for pool in range(len(self.rows))]
        for _ in range(PATIENCE):
            poor = np.flatnonzero(~self.enough(shares, strata, least))
            if not len(poor):
                return shares
            got = [self._got(pool, shares, strata) for pool in range(len(self.rows))]
            for slot in poor.tolist():
                missing = least - sum(int(g[:, slot].sum()) for g in got)
                for pool, g in enumerate(got):
                    need = max(1 - int(g[:, slot].sum()), missing if pool == 0 else 0)
                    sizes = every[pool]
                    stratum = int(np.argmax(shares[:, slot] * sizes))
                    giver = int(np.argmax(g[stratum]))
                    if need <= 0 or g[stratum, giver] <= need + 1:
                        continue
                    # Whole samples: between the two, sums move by a whole number and so nobody else's rounding does.
                    shares[stratum, [slot, giver]] += np.array([need, -need]) / sizes[stratum]
                    g[stratum, [slot, giver]] += np.array([need, -need])
        raise CoterieError(
            f"data.partition: {len(poor)} of {shares.shape[1]} clients, client {poor[0]} first, have too few samples; "
            "use fewer clients or a smaller at_least",
            code="partition-impossible",
        )


# --------------------------------------------------------------------------------------------------- drawing shares


def equal(slots: int) -> Floats:
    """(1, slots): everyone the same."""
    return np.full((1, slots), 1.0 / slots)


def normalised(logs: Floats) -> Floats:
    """(strata, slots) shares from logarithms of weights: each stratum is used up, unless no slot wants it."""
    top = logs.max(1, keepdims=True)
    weights = np.exp(logs - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(1, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def floored(shares: Floats, decimals: int | None) -> Floats:
    """Shares cut (not rounded) to so many decimals; what is cut off goes to nobody. None: as they are."""
    return shares if decimals is None else np.floor(shares * 10**decimals + 1e-9) / 10**decimals


def log_gamma(alpha: float, classes: int, slots: int, rng: np.random.Generator) -> Floats:
    """Logarithms of Gamma(alpha) draws; normalised they are Dirichlet(alpha). In logarithms a tiny alpha does not
    underflow to a draw of zeros."""
    draws = np.log(rng.gamma(alpha + 1, size=(classes, slots)))
    return np.asarray(draws + np.log1p(-rng.random((classes, slots))) / alpha)


def log_choice(n: int, among: Ints, classes: int, slots: int, rng: np.random.Generator) -> Floats:
    """Logarithms of weights 1 for n different classes of `among`, drawn for each slot, and 0 for all others."""
    picked = among[np.argsort(rng.random((slots, len(among))), axis=1)[:, :n]]
    logs = np.full((classes, slots), -np.inf)
    logs[picked, np.arange(slots)[:, None]] = 0.0
    return logs


def drawn(
    draw: Callable[[int], Floats], slots: int, enough: Callable[[Floats], Bools], what: str, remedy: str
) -> Floats:
    """Shares from logarithms of weights; slots that get too little are drawn again, the others stay.

    What comes out follows the distribution, given that everyone has enough. It ends, with shares or with an error. Of
    many slots a few may be left with too little, to be `mended`: what one gains, rounding may take from another.
    """
    logs = draw(slots)
    for tried in range(TRIES):
        shares = normalised(logs)
        poor = ~enough(shares)
        if poor.sum() <= (slots // FEW if tried >= PATIENCE else 0):
            return shares
        logs[:, poor] = draw(int(poor.sum()))
    raise CoterieError(
        f"data.partition: after {TRIES} draws {int(poor.sum())} of {slots} {what} still have too few samples; {remedy}",
        code="partition-impossible",
    )


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
