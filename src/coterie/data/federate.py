"""From a data set and a partition to a Federation, and each client's own validation samples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError, suggest
from coterie.core.registry import ANY_CODE, DATASETS, PARTITIONS
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import explained_call
from coterie.core.text import client_name
from coterie.data.dataset import Dataset
from coterie.data.drift import Drift
from coterie.data.federation import Federation, Ragged
from coterie.data.partitions.by_client import Natural
from coterie.data.partitions.dealing import held_out, latest


@runtime_checkable
class Partition(Protocol):
    """A way to spread a data set over clients."""

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Spread; the same generator, the same clients."""
        ...


def makes_clients(source: Any) -> bool:
    """Whether a data source (a class of the catalogue, a user's function) makes its own clients, from `rng`."""
    if not isinstance(source, type):
        return True
    return "rng" in inspect.signature(source.__call__).parameters


@explained_call
def federate(
    data: str | Dataset | Federation | Callable[..., Any],
    partition: str | Partition | None = None,
    *,
    drift: str | Drift | None = None,
    seed: int = 0,
) -> Federation:
    """A federation of a data set, spread over clients.

    data: a name (`coterie list data`), an object such as coterie.data.MNIST(), or a Dataset (coterie.data.from_torch).
    partition: a name (`coterie list partitions`) or an object such as coterie.data.Rotated(clients=400). None: one
    client per owner, where the data says whose its samples are; generated data has clients of its own.
    drift: how the clients' data changes in the course of a run: coterie.data.Drift(kind="sudden", at=5), or its kind.
    """
    made = _federated(data, partition, seed)
    if drift is None:
        return made
    drifting = (Drift(kind=drift) if isinstance(drift, str) else drift)(made, seed)  # type: ignore[arg-type]
    return drifting.measured()  # other rows may be for testing now


def _federated(
    data: str | Dataset | Federation | Callable[..., Any], partition: str | Partition | None, seed: int
) -> Federation:
    """A data set spread over clients that stay as they are."""
    source: Any = DATASETS.build(data, {}, ANY_CODE) if isinstance(data, str) else data
    rng = generator(seed, Purpose.PARTITION)
    name = data if isinstance(data, str) else getattr(source, "name", type(source).__name__)
    found = _read(source, rng)
    if isinstance(found, Federation):
        if partition is not None:
            raise CoterieError(
                f"data.partition: '{name}' has clients of its own; leave the partition out",
                code="partition-not-applicable",
            )
        return found
    if not isinstance(found, Dataset):
        raise CoterieError(
            f"data.name: '{name}' gave a {type(found).__name__}; expected a Federation, "
            "for example from coterie.Federation.from_arrays, or a Dataset",
            code="component-invalid",
        )
    if partition is None and found.client is None:
        raise CoterieError(
            f"data.partition: '{found.name}' must be spread over clients; name the column that says whose a sample is "
            f"(data.client=COLUMN, for a table), or a partition: data.partition.name=iid."
            f"{suggest('', PARTITIONS.places)}",
            code="partition-missing",
        )
    return _spread(found, partition, rng)


def _read(source: Any, rng: np.random.Generator) -> object:
    """What a data source gives: a Dataset, a Federation, or something that is neither."""
    if isinstance(source, Dataset | Federation) or not callable(source):
        return source
    if isinstance(source, type):
        raise CoterieError(
            f"data: {source.__name__} is a class; write {source.__name__}(...)", code="component-invalid"
        )
    return source(rng) if "rng" in inspect.signature(source).parameters else source()


def _spread(data: Dataset, partition: str | Partition | None, rng: np.random.Generator) -> Federation:
    """A data set spread over clients by a partition."""
    spread: Any = PARTITIONS.build(partition, {}, ANY_CODE) if isinstance(partition, str) else partition or Natural()
    if isinstance(spread, type) or not callable(spread):
        hint = f"write {spread.__name__}(...)" if isinstance(spread, type) else "give a name or coterie.data.IID(...)"
        raise CoterieError(f"data.partition: {spread!r} is not a partition; {hint}", code="component-invalid")
    made = spread(data, rng)
    if not isinstance(made, Federation):
        raise CoterieError(
            f"data.partition.name: the partition gave a {type(made).__name__}; expected a Federation",
            code="component-invalid",
        )
    if data.groups is not None and made.groups is None:
        raise CoterieError(
            "data.group: names the groups of a table's own clients (data.client), and this partition makes others; "
            "leave data.partition out, or data.group",
            code="config-conflict",
        )
    relabelled = any(domain.relabel is not None for domain in made.domains)
    names = None if relabelled else data.class_names
    return replace(
        made,
        features=made.features or data.features,
        left_out=made.left_out or data.left_out,
        remarks=made.remarks or data.remarks,
        class_names=made.class_names or names,
        marked=_of_samples(made.marked, data, data.validation, made),
        time=_of_samples(made.time, data, data.time, made),
    ).prepared(inputs=data.standardise_x, targets=data.standardise_y, plan=data.plan)


def _of_samples(
    found: NDArray[Any] | None, data: Dataset, known: NDArray[Any] | None, made: Federation
) -> NDArray[Any] | None:
    """What the partition says of each sample; where it says nothing, what the data set does, if all are its samples."""
    every = all(len(domain.y) == len(data.y) for domain in made.domains)
    return data.per_domain(known, len(made.domains)) if found is None and every else found


def with_validation(federation: Federation, share: float, seed: int) -> Federation:
    """The federation with validation samples taken from its clients' training samples; as it is where share is 0.

    Where the data marks samples for validation (a split column with val), these; else this share of each client's
    training samples, spread evenly over its labels, or its latest ones where it is tested on the latest. One sample
    always stays to train on.
    """
    if not share or federation.val is not None:
        return federation
    if federation.course is not None:
        held = federation.course.with_pool(lambda pool: with_validation(pool, share, seed)).federation()
        return replace(held, note=federation.note)
    owner, numbers = federation.train.owners(), federation.train.numbers.numpy()
    if federation.marked is not None:
        chosen = federation.marked[numbers]
    elif federation.time is not None:
        chosen = latest(owner, federation.time[numbers], len(federation), share)
    else:
        classes = federation.kind == "classification"
        key = federation.labels(federation.train) if classes else np.zeros(len(owner), dtype=np.int64)
        rng = generator(seed, Purpose.VALIDATION)
        chosen = held_out(owner, key, len(federation), share, rng)
    if not chosen.any():
        raise CoterieError(
            f"validation: {share:g} of the clients' training samples leaves none to validate on", code="data-split"
        )
    bare = np.flatnonzero(np.bincount(owner[~chosen], minlength=len(federation)) == 0)
    if len(bare):
        raise CoterieError(
            f"validation: all training samples of {client_name(federation.names, int(bare[0]))} are marked for "
            "validation; none is left to train on",
            code="data-split",
        )
    return replace(
        federation,
        train=Ragged.by(owner[~chosen], numbers[~chosen], len(federation)),
        val=Ragged.by(owner[chosen], numbers[chosen], len(federation)),
    )
