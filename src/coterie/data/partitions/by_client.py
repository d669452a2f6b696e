"""Clients that differ one by one, without hidden clusters: by chance, by owner, or in a part of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.registry import NO_CODE, PARTITIONS, Catalogue
from coterie.core.settings import STRICT, TestSplit, dataclass
from coterie.core.text import client_name, counted
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation, Ragged
from coterie.data.partitions.dealing import (
    Bools,
    Deal,
    Floats,
    Ints,
    Pools,
    drawn,
    equal,
    floored,
    log_choice,
    log_gamma,
    short,
    spread,
    whole,
)
from coterie.data.transforms import want_labels

FEWER = "use fewer clients, a larger alpha, or a smaller at_least"


@dataclass(frozen=True, config=STRICT)
class IID:
    """Everyone alike: samples shuffled and dealt evenly."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"

    clients: PositiveInt = 40
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal."""
        deal = Deal(whole(data.classes), equal(self.clients), self.clients)
        return spread(data, Pools.of(data, self.test, rng), deal, rng, "iid")


@dataclass(frozen=True, config=STRICT)
class Quantity:
    """Quantity skew: everyone's labels alike, sizes drawn from Dirichlet(alpha)."""

    paper: ClassVar[str] = "Li et al. 2022, arXiv:2102.02079 (section 4, quantity skew)"

    clients: PositiveInt = 40
    alpha: PositiveFloat = 0.5  # the smaller, the more sizes differ
    at_least: PositiveInt = 10  # samples of a client, training and test together
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Draw sizes, then deal."""
        pools, strata = Pools.of(data, self.test, rng), whole(data.classes)
        shares = drawn(
            lambda slots: log_gamma(self.alpha, 1, slots, rng),
            self.clients,
            lambda shares: pools.enough(shares, strata, self.at_least),
            *("clients", FEWER),
        )
        shares = pools.mended(shares, strata, self.at_least)
        return spread(data, pools, Deal(strata, shares, self.clients), rng, f"sizes Dirichlet({self.alpha:g})")


@dataclass(frozen=True, config=STRICT)
class Dirichlet:
    """Client-wise label skew: each class is shared among clients as Dirichlet(alpha) says."""

    paper: ClassVar[str] = "Hsu et al. 2019, arXiv:1909.06335; Ma et al. 2022, arXiv:2202.06187 (client-wise)"

    clients: PositiveInt = 40
    alpha: PositiveFloat = 0.1  # the smaller, the more clients differ
    at_least: PositiveInt = 10  # samples of a client, training and test together
    poor: Literal["redraw", "drop", "duplicate"] = "redraw"  # those below it (duplicate, as WeCFL's code: by copies)
    decimals: PositiveInt | None = None  # cut shares to so many, what is left is unused (2: WeCFL's later code)
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Draw shares, then cut each class by them."""
        want_labels(data, "class")
        pools, strata = Pools.of(data, self.test, rng), np.arange(data.classes)

        def enough(shares: Floats) -> Bools:
            return pools.enough(floored(shares, self.decimals), strata, self.at_least)

        shares = drawn(
            lambda slots: log_gamma(self.alpha, data.classes, slots, rng),
            self.clients,
            enough if self.poor == "redraw" else lambda shares: np.ones(shares.shape[1], dtype=bool),
            *("clients", FEWER),
        )
        shares = floored(shares, self.decimals)
        if self.poor == "redraw":
            shares = pools.mended(shares, strata, self.at_least)
        name = f"Dirichlet({self.alpha:g})"
        kept = np.arange(self.clients)
        while len(kept) and not (good := enough(shares[:, kept])).all():
            kept = kept[good]  # without the others what is left is rounded anew
        if len(kept) == self.clients:
            return spread(data, pools, Deal(strata, shares, self.clients), rng, name)
        if not len(kept):
            raise CoterieError(
                f"data.partition: no client would have {self.at_least} samples; {FEWER}", code="partition-impossible"
            )
        made = spread(data, pools, Deal(strata, shares[:, kept], len(kept)), rng, name)
        gone = self.clients - len(kept)
        if self.poor == "drop":
            return made.take(np.arange(len(kept)), f"{gone} clients with fewer than {self.at_least} samples left out")
        copies = rng.choice(len(kept), gone)
        return made.take(np.concatenate([np.arange(len(kept)), copies]), f"{gone} clients are copies of others")


@dataclass(frozen=True, config=STRICT)
class Classes:
    """n-class: each client has n classes, drawn at random; a class is shared equally by those who have it."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629; Ma et al. 2022, arXiv:2202.06187 (client-wise)"

    clients: PositiveInt = 40
    n: PositiveInt = 2  # classes of a client
    at_least: PositiveInt = 2  # samples of a client, training and test together
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Draw classes, then cut each by who has it."""
        want_labels(data, "class")
        if self.n > data.classes:
            raise CoterieError(
                f"data.partition.n: {data.name} has {data.classes} classes, not {self.n}", code="partition-impossible"
            )
        pools, strata = Pools.of(data, self.test, rng), np.arange(data.classes)
        shares = drawn(
            lambda slots: log_choice(self.n, strata, data.classes, slots, rng),
            self.clients,
            lambda shares: pools.enough(shares, strata, self.at_least),
            *("clients", "use fewer clients or a smaller at_least"),
        )
        shares = pools.mended(shares, strata, self.at_least)
        if (scarce := short(shares, pools.sizes(0, strata))) is not None:
            raise CoterieError(
                f"data.partition.n: class {scarce} has fewer samples than clients that want it; use fewer clients",
                code="partition-impossible",
            )
        return spread(data, pools, Deal(strata, shares, self.clients), rng, f"{self.n} classes per client")


@dataclass(frozen=True, config=STRICT)
class PowerLaw:
    """FedProx's: client i has classes i, i+1, ... (modulo), a few of each and then sizes by a lognormal."""

    paper: ClassVar[str] = "Li et al. 2020, arXiv:1812.06127 (MNIST: 1,000 clients, 2 classes each)"

    clients: PositiveInt = 40
    n: PositiveInt = 2  # classes of a client
    first: PositiveInt = 5  # samples of each of its classes that everyone has
    sigma: PositiveFloat = 2.0  # of the lognormal that shares out the rest
    test: TestSplit = 0.1  # of all samples, as FedProx does: the official test set is not kept apart

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Everyone's first samples, then the rest of each class by lognormal shares, cut to whole numbers."""
        want_labels(data, "class")
        if self.n > data.classes:
            raise CoterieError(
                f"data.partition.n: {data.name} has {data.classes} classes, not {self.n}", code="partition-impossible"
            )
        pools = Pools.of(data, self.test, rng)
        sizes = pools.sizes(0, np.arange(data.classes))
        client, turn = (a.ravel() for a in np.indices((self.clients, self.n)))
        label = (client + turn) % data.classes
        weight = rng.lognormal(0.0, self.sigma, len(label))
        rest = sizes - self.first * np.bincount(label, minlength=data.classes)
        if rest.min() < 0:
            c = int(rest.argmin())
            raise CoterieError(
                f"data.partition.first: class {c} has {sizes[c]} samples, too few for {self.first} to each of "
                f"{int((sizes[c] - rest[c]) // self.first)} clients; use fewer clients or a smaller first",
                code="partition-impossible",
            )
        total = np.bincount(label, weight, minlength=data.classes)
        counts = self.first + np.floor(weight / total[label] * rest[label])
        shares = np.zeros((data.classes, self.clients))
        shares[label, client] = counts / sizes[label]
        deal = Deal(np.arange(data.classes), shares, self.clients)
        return spread(data, pools, deal, rng, f"power law, {self.n} classes per client")


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


@dataclass(frozen=True, config=STRICT)
class Subsample:
    """Some samples, drawn at random, spread over clients by another partition."""

    paper: ClassVar[str] = "this library"
    components: ClassVar[Mapping[str, Catalogue]] = {"partition": PARTITIONS}

    partition: str | dict[str, Any] | Callable[..., Any] = "iid"  # of what was drawn: its name, or {name: ..., ...}
    samples: PositiveInt = 1000  # of the training set; of all samples, where there is no official test set
    test_samples: PositiveInt | None = None  # of the official test set; None: all of it

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Draw, then spread."""
        inner = PARTITIONS.named(self.partition, NO_CODE)
        made: Federation = inner(sampled(data, self.samples, self.test_samples, rng), rng)
        return made


def sampled(data: Dataset, samples: int, test_samples: int | None, rng: np.random.Generator) -> Dataset:
    """The data set with so many of its training samples and of its official test samples, in their order."""
    if data.official is None:
        if test_samples is not None:
            raise CoterieError(
                f"data.partition.test_samples: {data.name} has no official test set; "
                "leave it out, and give the partition a test share",
                code="data-split",
            )
        kept = _some(np.arange(len(data.y)), samples, "samples", data.name, rng)
    else:
        train = _some(np.flatnonzero(~data.official), samples, "samples", data.name, rng)
        test = np.flatnonzero(data.official)
        if test_samples is not None:
            test = _some(test, test_samples, "test_samples", data.name, rng)
        kept = np.sort(np.concatenate([train, test]))
    return data.take(kept)


def _some(rows: Ints, many: int, key: str, name: str, rng: np.random.Generator) -> Ints:
    if many > len(rows):
        raise CoterieError(
            f"data.partition.{key}: {many:,} samples are wanted, {name} has {len(rows):,}", code="partition-impossible"
        )
    return np.sort(rng.choice(rows, many, replace=False))
