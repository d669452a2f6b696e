"""Poisoned data, for experiments: hostile clients train on wrong labels, or on samples with a trigger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.seeds import Purpose, generator
from coterie.data.federation import Domain, Federation, Ragged

PATCH = 3  # rows and columns of an image, or last numbers of a vector, that the trigger covers
STAMPED = 0.5  # share of a hostile client's training samples that a backdoor changes


def with_flipped_labels(federation: Federation, clients: Tensor) -> Federation:
    """These clients' training labels are reversed: the first class is called the last; targets are mirrored."""
    numbers = _numbers(federation.train, clients)
    x, y = federation.taken(numbers)
    flipped = federation.outputs - 1 - y if federation.kind == "classification" else 2 * y.mean(0) - y
    return _replaced(federation, clients, x, flipped)


def with_backdoor(federation: Federation, clients: Tensor, target: int, seed: int) -> Federation:
    """Half of these clients' training samples carry a trigger and the label `target`."""
    _check(federation, target)
    numbers = _numbers(federation.train, clients)
    x, y = federation.taken(numbers)
    chosen = torch.from_numpy(generator(seed, Purpose.ATTACK, 0).random(len(numbers)) < STAMPED)
    x, y = x.clone(), y.clone()
    x[chosen], y[chosen] = stamped(x[chosen]), target
    return _replaced(federation, clients, x, y)


def triggered(federation: Federation, target: int) -> Federation:
    """Test samples of other classes with the trigger, labelled `target`: their accuracy is the attack's success."""
    _check(federation, target)
    numbers = federation.test.numbers
    x, y = federation.taken(numbers)
    other = (y != target).numpy()
    begin = sum(len(domain.y) for domain in federation.domains)
    domain = Domain(stamped(x), torch.full_like(y, target), scale=None)
    places = begin + np.arange(len(numbers))
    test = Ragged.by(federation.test.owners()[other], places[other], len(federation))
    return replace(federation, domains=(*federation.domains, domain), test=test, val=None)


def stamped(x: Tensor) -> Tensor:
    """Samples with the trigger: a bright corner of an image, or the last numbers of a vector at their largest."""
    if not len(x):
        return x
    out = x.clone()
    if x.ndim >= 3:
        out[..., -PATCH:, -PATCH:] = x.max()
    else:
        out[..., -PATCH:] = x.max()
    return out


def _check(federation: Federation, target: int) -> None:
    if federation.kind != "classification" or target >= federation.outputs or not federation.domains[0].x.ndim:
        raise CoterieError(
            f"attack.target: class {target}, but the data has classes 0..{federation.outputs - 1}"
            if federation.kind == "classification"
            else "attack.kind: a backdoor leads to a class; for a regression choose label-flip or another",
            code="config-conflict",
        )


def _numbers(rows: Ragged, clients: Tensor) -> Tensor:
    return torch.cat([rows.row(client) for client in clients.tolist()] or [rows.numbers[:0]])


def _replaced(federation: Federation, clients: Tensor, x: Tensor, y: Tensor) -> Federation:
    """The federation in which these clients train on these samples; everything else is as it was."""
    begin = sum(len(domain.y) for domain in federation.domains)
    numbers, train = federation.train.numbers.clone(), federation.train
    place = begin
    for client in clients.tolist():
        first, last = int(train.ends[client]), int(train.ends[client + 1])
        numbers[first:last] = torch.arange(place, place + last - first)
        place += last - first
    domain = Domain(x, y, scale=None)
    return replace(federation, domains=(*federation.domains, domain), train=Ragged(numbers, train.ends))
