"""Clients as mixtures of a few distributions (FedSoft's setting)."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from pydantic import Field, PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, TestSplit, dataclass
from coterie.data.dataset import Dataset
from coterie.data.federation import Domain, Federation
from coterie.data.partitions.by_cluster import Groups, strata_of
from coterie.data.partitions.dealing import Deal, Floats, Ints, Pools, clusters_of, spread, whole
from coterie.data.transforms import Style, relabelled, styled, turned, want_labels

# "10:90": the first half of the clients has 10 % of distribution 0 and 90 % of distribution 1, the others the reverse.
# linear: client k of N has (k + 0.5) / N of distribution 0. random: uniform over all mixtures, of any number.
Pattern: TypeAlias = Annotated[str, Field(pattern=r"^(\d{1,2}:\d{1,2}|linear|random)$")]


def weights(pattern: str, clients: int, distributions: int, rng: np.random.Generator) -> Floats:
    """(clients, distributions) how much of each distribution a client has."""
    if pattern == "random":
        return rng.dirichlet(np.ones(distributions), clients)
    if distributions != 2:
        raise CoterieError(
            f"data: '{pattern}' mixes two distributions, not {distributions}; write random", code="config-invalid-value"
        )
    if pattern == "linear":
        first = (np.arange(clients) + 0.5) / clients
    else:
        a, b = map(int, pattern.split(":"))
        if a + b != 100:
            raise CoterieError(f"data: '{pattern}' should add up to 100, as 10:90 does", code="config-invalid-value")
        first = np.where(halves(pattern, clients) == 0, a, b) / 100
    return np.stack([first, 1 - first], axis=1)


def halves(pattern: str, clients: int) -> Ints | None:
    """(clients,) which half, for the patterns that have two."""
    return clusters_of(clients, min(2, clients)) if re.match(r"\d", pattern) else None


def parts(sizes: Ints, mixture: Floats) -> Ints:
    """(clients, distributions) whole samples: rounded down, the rest from the last distribution."""
    counts = np.floor(sizes[:, None] * mixture + 1e-9).astype(np.int64)
    counts[:, -1] = sizes - counts[:, :-1].sum(1)
    return counts


@dataclass(frozen=True, config=STRICT)
class Mixture:
    """Every client is a mixture of distributions: a data set turned by angles, in styles, or its groups of classes."""

    paper: ClassVar[str] = "Ruan and Joe-Wong 2022, arXiv:2112.06053 (section 5: 10:90, 30:70, linear, random)"

    clients: PositiveInt = 40
    pattern: Pattern = "10:90"  # or 30:70 or any a:b, linear, random
    angles: Annotated[tuple[float, ...], Field(min_length=2)] = (0.0, 90.0)  # one distribution each
    groups: Groups | None = None  # instead of angles: classes, equally many each, every group's called 0, 1, 2, ...
    styles: Annotated[tuple[Style, ...], Field(min_length=2)] | None = (
        None  # instead: plain, thick, slanted, for letters
    )
    samples: tuple[PositiveInt, PositiveInt] | None = None  # of a client (official test samples not counted); None: all
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Draw mixtures and sizes, then deal (client, distribution) by (client, distribution)."""
        views, strata = self._distributions(data)
        many, pools = len(views), Pools.of(data, self.test, rng)
        mixture = weights(self.pattern, self.clients, many, rng)
        available = pools.sizes(0, strata)
        counts = parts(self._sizes(available, mixture, rng), mixture)
        slot_client, slot_view = (a.ravel() for a in np.indices((self.clients, many)))
        stratum = slot_view if self.groups else np.zeros_like(slot_view)
        wanted = np.bincount(stratum, counts.ravel(), minlength=len(available))
        if np.any(wanted > available):
            raise CoterieError(
                f"data.partition.samples: {int(wanted.max()):,} samples are wanted of {int(available.min()):,}; "
                "use fewer clients or samples",
                code="partition-impossible",
            )
        shares = np.zeros((len(available), len(stratum)))
        shares[stratum, np.arange(len(stratum))] = counts.ravel() / np.maximum(available, 1)[stratum]
        deal = Deal(strata, shares, self.clients, client=slot_client, view=slot_view)
        return spread(
            *(data, pools, deal, rng, f"mixtures {self.pattern} of {many}"),
            views=views,
            truth=halves(self.pattern, self.clients),
            mixture=mixture,
            outputs=len(self.groups[0]) if self.groups else data.classes,
        )

    def _distributions(self, data: Dataset) -> tuple[list[Domain], Ints]:
        if self.groups is not None and self.styles is not None:
            raise CoterieError("data.partition: groups or styles, not both", code="config-invalid-value")
        if self.styles is not None:
            return [styled(data, style) for style in self.styles], whole(data.classes)
        if self.groups is None:
            return [turned(data, angle) for angle in self.angles], whole(data.classes)
        want_labels(data, "class")
        if len({len(group) for group in self.groups}) != 1 or len(self.groups) < 2:
            raise CoterieError(
                "data.partition.groups: two or more groups with equally many classes each", code="partition-impossible"
            )
        strata, views = strata_of(data, self.groups), []
        for group in self.groups:
            names = np.zeros(data.classes, dtype=np.int64)
            names[list(group)] = np.arange(len(group))
            views.append(relabelled(data, names.tolist()))
        return views, strata

    def _sizes(self, available: Ints, mixture: Floats, rng: np.random.Generator) -> Ints:
        if self.samples is not None:
            low, high = min(self.samples), max(self.samples)
            return rng.integers(low, high + 1, self.clients)
        # All there is, evenly; of groups, as much as the scarcest allows.
        want = mixture.sum(0) if self.groups else np.array([float(self.clients)])
        size = int(np.min(available / want))
        while self.groups and np.any(parts(np.full(self.clients, size), mixture).sum(0) > available):
            size -= 1  # rounding gives the last group more than its share
        return np.full(self.clients, size)
