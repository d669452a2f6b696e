"""Samples to choose by: each client's own validation set, so that its test set is looked at once, at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.seeds import Purpose, generator
from coterie.core.text import client_name
from coterie.data.federation import Federation
from coterie.data.partitions.allocation import held_out
from coterie.data.ragged import Ragged
from coterie.data.split_by_time import latest


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
