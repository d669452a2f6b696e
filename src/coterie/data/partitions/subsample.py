"""A part of a data set instead of all of it: small clients, short runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.registry import NO_CODE, PARTITIONS, Catalogue
from coterie.core.settings import STRICT, dataclass
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation
from coterie.data.partitions.allocation import Ints


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
        made: Federation = inner(drawn(data, self.samples, self.test_samples, rng), rng)
        return made


def drawn(data: Dataset, samples: int, test_samples: int | None, rng: np.random.Generator) -> Dataset:
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
