"""Hidden clusters: clients of a cluster are alike, clusters differ. Client i is in cluster i * clusters // clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.registry import DATASETS, NO_CODE, Catalogue
from coterie.core.settings import STRICT, TestSplit, dataclass
from coterie.data.dataset import Dataset
from coterie.data.federation import Domain, Federation
from coterie.data.partitions.by_client import IID
from coterie.data.partitions.dealing import (
    Bools,
    Deal,
    Floats,
    Ints,
    Pools,
    clusters_of,
    drawn,
    floored,
    log_choice,
    log_gamma,
    members,
    short,
    spread,
    whole,
)
from coterie.data.transforms import Corruption, Severity, check_classes, corrupted, relabelled, turned, want_labels

Groups = Annotated[tuple[tuple[NonNegativeInt, ...], ...], Field(min_length=1)]
GROUPS = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
SMALLEST = 0.3  # of the mean size: smaller clusters are drawn again (WeCFL's code)
REMEDY = "use fewer clients or clusters, milder parameters, or a smaller at_least"


# ---------------------------------------------------------------------------------------- by labels, in two levels


def _two_levels(
    data: Dataset, pools: Pools, truth: Ints, at_least: int, between: Any, within: Any, decimals: int | None = None
) -> Floats:
    """(classes, clients) shares: of each class for the clusters, times of each cluster's for its clients.

    between(clusters) and within(clients, shares of the cluster) draw logarithms of weights. decimals: of either level.
    """
    strata, clusters = np.arange(data.classes), int(truth.max()) + 1

    def large(shares: Floats) -> Bools:
        sizes = shares.T @ pools.sizes(0, strata)
        return np.asarray(sizes > SMALLEST * len(pools.rows[0]) / clusters)

    outer = floored(drawn(between, clusters, large, "clusters", REMEDY), decimals)
    shares = np.zeros((data.classes, len(truth)))
    for cluster in range(clusters):
        mine = np.flatnonzero(truth == cluster)
        theirs = outer[:, cluster, None]

        def enough(inner: Floats, theirs: Floats = theirs) -> Bools:
            return pools.enough(floored(inner, decimals) * theirs, strata, at_least)

        def draw(slots: int, theirs: Floats = theirs) -> Floats:
            return np.asarray(within(slots, theirs[:, 0]))

        inner = drawn(draw, len(mine), enough, f"clients of cluster {cluster}", REMEDY)
        shares[:, mine] = floored(inner, decimals) * theirs
    return pools.mended(shares, strata, at_least)


@dataclass(frozen=True, config=STRICT)
class ClusterDirichlet:
    """Clusters by label: classes are shared by Dirichlet(between) among clusters, then (within) among clients."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (cluster-wise, (0.1, 10): 200 clients, 10 clusters)"

    clients: PositiveInt = 40
    clusters: PositiveInt = 10
    between: PositiveFloat = 0.1  # clusters: the smaller, the more they differ
    within: PositiveFloat = 10.0  # clients of a cluster: the larger, the more they are alike
    at_least: PositiveInt = 10  # samples of a client, training and test together
    decimals: PositiveInt | None = None  # cut shares to so many, what is left is unused (2: WeCFL's later code)
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Draw both levels, then cut each class by the product."""
        want_labels(data, "class")
        pools, truth = Pools.of(data, self.test, rng), clusters_of(self.clients, self.clusters)
        shares = _two_levels(
            *(data, pools, truth, self.at_least),
            lambda slots: log_gamma(self.between, data.classes, slots, rng),
            lambda slots, _: log_gamma(self.within, data.classes, slots, rng),
            self.decimals,
        )
        name = f"clusters Dirichlet({self.between:g}, {self.within:g})"
        return spread(data, pools, Deal(np.arange(data.classes), shares, self.clients), rng, name, truth=truth)


@dataclass(frozen=True, config=STRICT)
class ClusterClasses:
    """Clusters by label: a cluster has `between` classes, each of its clients `within` of them."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (cluster-wise, (3, 2)-class: 200 clients, 10 clusters)"

    clients: PositiveInt = 40
    clusters: PositiveInt = 10
    between: PositiveInt = 3
    within: PositiveInt = 2
    at_least: PositiveInt = 2  # samples of a client, training and test together
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Draw the clusters' classes, then the clients', then cut each class by who has it."""
        want_labels(data, "class")
        if not self.within <= self.between <= data.classes:
            raise CoterieError(
                f"data.partition: within <= between <= {data.classes} (the classes of {data.name}), "
                f"not {self.within} and {self.between}",
                code="partition-impossible",
            )
        pools, truth = Pools.of(data, self.test, rng), clusters_of(self.clients, self.clusters)
        every = np.arange(data.classes)
        shares = _two_levels(
            *(data, pools, truth, self.at_least),
            lambda slots: log_choice(self.between, every, data.classes, slots, rng),
            lambda slots, theirs: log_choice(self.within, np.flatnonzero(theirs), data.classes, slots, rng),
        )
        if (scarce := short(shares, pools.sizes(0, every))) is not None:
            raise CoterieError(
                f"data.partition: class {scarce} has fewer samples than clients that want it; use fewer clients",
                code="partition-impossible",
            )
        name = f"clusters of {self.between} classes, {self.within} per client"
        return spread(data, pools, Deal(every, shares, self.clients), rng, name, truth=truth)


@dataclass(frozen=True, config=STRICT)
class Pathological:
    """Clusters by label: each cluster has its own group of classes, its clients are alike."""

    paper: ClassVar[str] = "Zeng et al. 2023, arXiv:2303.00897 (label distribution skew)"

    clients: PositiveInt = 40
    groups: Groups = GROUPS  # the classes of each cluster
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal the samples of each group evenly."""
        truth = clusters_of(self.clients, len(self.groups), "groups")
        shares = _in_own_stratum(truth)
        deal = Deal(strata_of(data, self.groups), shares, self.clients)
        name = "classes " + " | ".join(" ".join(map(str, group)) for group in self.groups)
        return spread(data, Pools.of(data, self.test, rng), deal, rng, name, truth=truth)


def strata_of(data: Dataset, groups: Sequence[Sequence[int]]) -> Ints:
    """The group of each class."""
    want_labels(data, "class")
    strata = np.full(data.classes, -1, dtype=np.int64)
    for number, group in enumerate(groups):
        check_classes("groups", group, data)
        if np.any(strata[list(group)] >= 0) or len(set(group)) < len(group) or not group:
            raise CoterieError(
                f"data.partition.groups: a class belongs to one group, and a group has classes: {groups}",
                code="partition-impossible",
            )
        strata[list(group)] = number
    return strata


def _in_own_stratum(truth: Ints) -> Floats:
    """(clusters, clients): each cluster's stratum is shared equally by its clients."""
    shares = np.zeros((int(truth.max()) + 1, len(truth)))
    shares[truth, np.arange(len(truth))] = 1.0 / members(truth)
    return shares


# --------------------------------------------------------------------------------------------------- by what is seen


def seen(
    data: Dataset,
    views: Sequence[Domain],
    clients: int,
    reuse: bool,
    test: TestSplit,
    rng: np.random.Generator,
    key: str,
    name: str,
) -> Federation:
    """Samples dealt evenly; cluster k sees its own through view k."""
    truth = clusters_of(clients, len(views), key)
    shares = (1.0 / members(truth) if reuse else np.full(clients, 1.0 / clients))[None]
    deal = Deal(whole(data.classes), shares, clients, view=truth, reuse=reuse)
    pools = Pools.of(data, test, rng, apart=reuse)
    return spread(data, pools, deal, rng, name, views=views, truth=truth)


@dataclass(frozen=True, config=STRICT)
class Rotated:
    """Hidden clusters by rotation: client i sees its images turned by the angle of its cluster."""

    paper: ClassVar[str] = "Ghosh et al. 2020, arXiv:2006.04088 (section 6, rotated MNIST)"

    clients: PositiveInt = 40
    angles: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0, 90.0, 180.0, 270.0)  # degrees, one per cluster
    reuse: bool = False  # every cluster has all images, as in IFCA's and StoCFL's papers; otherwise each image once
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal evenly, then turn."""
        views = [turned(data, angle) for angle in self.angles]
        name = f"rotated by {', '.join(f'{a:g}' for a in self.angles)} degrees"
        return seen(data, views, self.clients, self.reuse, self.test, rng, "angles", name)


@dataclass(frozen=True, config=STRICT)
class Shifted:
    """Hidden clusters by label shift: cluster k calls label y (y + shift_k) modulo the number of classes."""

    paper: ClassVar[str] = "Zeng et al. 2023, arXiv:2303.00897 (label concept skew); Sattler et al. 2020"

    clients: PositiveInt = 40
    shifts: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 3, 6, 9)  # one per cluster
    reuse: bool = False  # every cluster has all samples, as in StoCFL's paper; otherwise each sample once
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal evenly, then relabel."""
        want_labels(data, "label")
        views = [relabelled(data, [(c + s) % data.classes for c in range(data.classes)]) for s in self.shifts]
        name = f"labels shifted by {', '.join(map(str, self.shifts))}"
        return seen(data, views, self.clients, self.reuse, self.test, rng, "shifts", name)


@dataclass(frozen=True, config=STRICT)
class Swapped:
    """Hidden clusters by label swap: cluster k calls each of a pair of labels by the other's name."""

    paper: ClassVar[str] = "Sattler et al. 2020, arXiv:1910.01991 (label swaps)"

    clients: PositiveInt = 40
    pairs: Annotated[tuple[tuple[NonNegativeInt, NonNegativeInt], ...], Field(min_length=1)] = (
        *((0, 1), (2, 3)),
        *((4, 5), (6, 7)),
    )  # one per cluster
    reuse: bool = False  # every cluster has all samples
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal evenly, then relabel."""
        want_labels(data, "label")
        views = []
        for a, b in self.pairs:
            check_classes("pairs", (a, b), data)
            labels = list(range(data.classes))
            labels[a], labels[b] = b, a
            views.append(relabelled(data, labels))
        name = f"labels swapped {', '.join(f'{a}-{b}' for a, b in self.pairs)}"
        return seen(data, views, self.clients, self.reuse, self.test, rng, "pairs", name)


@dataclass(frozen=True, config=STRICT)
class RotatedClasses:
    """Hidden clusters by rotation and classes: every angle with every group of classes."""

    paper: ClassVar[str] = "Zeng et al. 2023, arXiv:2303.00897 (Figure 7: 400 clients, 2 x 4 clusters)"

    clients: PositiveInt = 40
    angles: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0, 180.0)
    groups: Groups = GROUPS
    reuse: bool = False  # every angle has all images, as in the paper; otherwise each image once
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal each group's samples to its clients of all angles, then turn. Clusters are in order of the angles."""
        views = [turned(data, angle) for angle in self.angles]
        truth = clusters_of(self.clients, len(self.angles) * len(self.groups), "groups")
        group, view = truth % len(self.groups), truth // len(self.groups)
        shares = np.zeros((len(self.groups), self.clients))
        shares[group, np.arange(self.clients)] = 1.0 / members(truth if self.reuse else group)
        deal = Deal(strata_of(data, self.groups), shares, self.clients, view=view, reuse=self.reuse)
        name = f"rotated by {', '.join(f'{a:g}' for a in self.angles)} degrees x {len(self.groups)} groups of classes"
        pools = Pools.of(data, self.test, rng, apart=self.reuse)
        return spread(data, pools, deal, rng, name, views=views, truth=truth)


@dataclass(frozen=True, config=STRICT | {"arbitrary_types_allowed": True})
class Hybrid:
    """Hidden clusters by data set: one half of the clients has this one, the other half another (same labels)."""

    paper: ClassVar[str] = "Zeng et al. 2023, arXiv:2303.00897 (feature concept skew: MNIST and Fashion-MNIST)"
    components: ClassVar[Mapping[str, Catalogue]] = {"other": DATASETS}

    clients: PositiveInt = 40
    other: str | dict[str, Any] | Dataset | Callable[..., Any] = "fashion-mnist"  # a data set, or {name: ..., ...}
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal each evenly to its half."""
        other = DATASETS.named(self.other, NO_CODE)
        other = other if isinstance(other, Dataset) else other()
        if not isinstance(other, Dataset):
            raise CoterieError(
                f"data.partition.other: {self.other!r} has clients of its own and cannot be mixed in",
                code="partition-not-applicable",
            )
        if data.plan is not None or other.plan is not None:
            raise CoterieError(
                "data.partition: a table with categories or missing values cannot be mixed with another data set; use "
                "another partition, or missing: drop and categories: none",
                code="partition-not-applicable",
            )
        if data.x.shape[1:] != other.x.shape[1:] or data.kind != other.kind:
            raise CoterieError(
                f"data.partition.other: {data.name} has samples of shape {tuple(data.x.shape[1:])}, "
                f"{other.name} of {tuple(other.x.shape[1:])}; both must be alike",
                code="data-shape",
            )
        second = int(clusters_of(self.clients, 2, "clients").sum())
        halves = [
            IID(clients=clients, test=self.test)(part, rng)
            for part, clients in ((data, self.clients - second), (other, second))
        ]
        return Federation.join(halves, f"{data.name} and {other.name}")


@dataclass(frozen=True, config=STRICT)
class Corrupted:
    """Hidden clusters by corruption: the images of each cluster are noisy, blurred, pale, ... or as they are."""

    paper: ClassVar[str] = "Hendrycks and Dietterich 2019, arXiv:1903.12261 (kinds of corruption; strengths are ours)"

    clients: PositiveInt = 40
    kinds: Annotated[tuple[Corruption, ...], Field(min_length=1)] = ("none", "noise", "blur", "contrast")  # per cluster
    severity: Severity | tuple[Severity, ...] = 3  # 1 to 5, for all or one per cluster
    reuse: bool = False  # every cluster has all images; otherwise each image once
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Corrupt, then deal evenly."""
        levels = self.severity if isinstance(self.severity, tuple) else (self.severity,) * len(self.kinds)
        if len(levels) != len(self.kinds):
            raise CoterieError(
                f"data.partition.severity: {len(levels)} for {len(self.kinds)} kinds; write one, or one per kind",
                code="config-invalid-value",
            )
        views = [corrupted(data, k, s, int(rng.integers(2**31))) for k, s in zip(self.kinds, levels, strict=True)]
        said = ", ".join(k if k == "none" else f"{k} {s}" for k, s in zip(self.kinds, levels, strict=True))
        return seen(data, views, self.clients, self.reuse, self.test, rng, "kinds", f"corrupted: {said}")


@dataclass(frozen=True, config=STRICT)
class RotatedByLabel:
    """Hidden clusters by P(x|y): cluster k sees the images of label y turned by angle number y + k."""

    paper: ClassVar[str] = "this library (P(x|y) alone differs: every cluster sees every angle, but of other labels)"

    clients: PositiveInt = 40
    angles: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0, 90.0, 180.0, 270.0)  # degrees; as many clusters
    reuse: bool = False  # every cluster has all images; otherwise each image once
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Turn by label, then deal evenly."""
        want_labels(data, "label")
        every = [turned(data, angle) for angle in self.angles]
        looks = [torch.rot90(view.x, view.turns, (-2, -1)) for view in every]
        views = [self._view(data, looks, cluster) for cluster in range(len(looks))]
        name = f"each label turned by one of {', '.join(f'{a:g}' for a in self.angles)} degrees"
        return seen(data, views, self.clients, self.reuse, self.test, rng, "angles", name)

    def _view(self, data: Dataset, looks: list[torch.Tensor], cluster: int) -> Domain:
        x, which = data.x.clone(), (data.y + cluster) % len(looks)
        for number, look in enumerate(looks):
            x[which == number] = look[which == number]
        return Domain(x, data.y, data.scale)
