"""Checks for mistakes that can be found before a run starts."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.model import Model, loss_of
from coterie.core.objective import check_objective
from coterie.core.text import client_name
from coterie.data.federation import Federation
from coterie.training.sampling import split_newcomers
from coterie.training.settings import Settings

SPLITS: tuple[Literal["train"], Literal["test"]] = ("train", "test")


def check(model: Model, federation: Federation, settings: Settings) -> None:
    """Check everything that can be checked before a run starts."""
    federation.check()
    trained = len(federation) - settings.newcomer_count(len(federation))
    settings.per_round(trained)
    settings.evaluated(trained)
    if settings.uses_validation and federation.val is None:
        raise CoterieError("stop_after: needs validation samples to stop by; write validation=0.2", code="data-split")
    if not len(federation.test.numbers):
        raise CoterieError(
            "data: no client has test samples to evaluate on; hold some out (test > 0)", code="data-split"
        )
    for who, roster in zip(("clients that train", "newcomers"), split_newcomers(federation, settings), strict=True):
        if len(roster.ids) and not int(federation.test.lengths[roster.ids].sum()):
            raise CoterieError(
                f"newcomers: none of the {who} has test samples; hold some out (test > 0)", code="data-split"
            )
    check_fit(model, federation)


def _some_samples(federation: Federation) -> tuple[Tensor, Tensor]:
    why = ""
    for client in range(len(federation)):
        try:
            return federation.samples(client, "train")
        except Exception as error:  # a client that cannot be read is left out later, and named
            if isinstance(error, CoterieError) and error.code == "model-shape":
                raise
            why = str(error)
    raise CoterieError(f"data: no client can be read; the last one: {why}", code="data-unreadable")


def check_fit(model: Model, federation: Federation) -> None:
    """Run two samples through the network, so that a wrong shape is reported before anything starts."""
    x, y = (t[:1].repeat(2, *([1] * (t.ndim - 1))) for t in _some_samples(federation))
    replica = model.replica()
    replica.theta.zero_()
    try:
        logits = replica.logits(x)
    except CoterieError:
        raise
    except Exception as error:
        raise CoterieError(
            f"model: samples of shape {tuple(x.shape[1:])} do not fit the network: {' '.join(str(error).split())}",
            code="model-shape",
        ) from None
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise CoterieError(
            f"model: the network gave a {kind}, expected a tensor (n, outputs): return the logits alone",
            code="model-invalid",
        )
    if not isinstance(model.loss, str):
        check_objective(model.loss, logits, y)
        return
    if model.loss != loss_of(federation):
        has = "classes" if federation.kind == "classification" else "numbers to predict"
        raise CoterieError(
            f"model: the loss '{model.loss}' does not fit data with {has}; leave it out, then it is "
            f"'{loss_of(federation)}'",
            code="model-invalid",
        )
    if logits.ndim != 2 or len(logits) != 2:
        raise CoterieError(
            f"model: for 2 samples the network gave {tuple(logits.shape)}, expected (2, outputs)", code="model-shape"
        )
    wanted = federation.outputs
    if federation.kind == "regression" and logits.shape[1] != wanted:
        raise CoterieError(
            f"model: the network has {logits.shape[1]} outputs, the data {wanted} targets", code="model-shape"
        )
    if federation.kind == "classification" and logits.shape[1] < wanted:
        _blame_label(federation, logits.shape[1])
    sums_to_one = bool((logits >= 0).all()) and bool(torch.isclose(logits.sum(1), torch.ones(2)).all())
    if federation.kind == "classification" and sums_to_one:
        warnings.warn(
            "model: the network's outputs are probabilities that sum to 1 (a softmax at its end?); the loss takes "
            "logits and applies the softmax itself: leave it out",
            CoterieWarning,
            stacklevel=2,
        )


def _blame_label(federation: Federation, head: int) -> None:
    for client in range(len(federation)):
        for split in SPLITS:
            y = federation.samples(client, split)[1]
            if len(y) and int(y.max()) >= head:
                from_one = (
                    ". Do your labels start at 1? Subtract 1" if int(y.max()) == head and not _zeros(federation) else ""
                )
                raise CoterieError(
                    f"model: {client_name(federation.names, client)} has label {int(y.max())}, "
                    f"but the network has only {head} outputs (0..{head - 1}){from_one}",
                    code="model-shape",
                )


def _zeros(federation: Federation) -> bool:
    return any(0 in federation.labels(split) for split in (federation.train, federation.test))
