"""How good a prediction is, and how well found clusters agree with the hidden ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.tasks import Evaluated

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def by_client(truth: Ints, predicted: Ints, lengths: Ints) -> tuple[Floats, Floats]:
    """Accuracy and macro-F1 of many clients with concatenated samples; NaN for a client without samples.

    Macro-F1 is averaged over the labels present in the client's labels or predictions.
    """
    labels = int(max(truth.max(initial=0), predicted.max(initial=0))) + 1
    owner = np.repeat(np.arange(len(lengths)), lengths) * labels
    size = len(lengths) * labels
    right = truth == predicted
    hit = np.bincount((owner + truth)[right], minlength=size).reshape(-1, labels)
    total = np.bincount(owner + truth, minlength=size) + np.bincount(owner + predicted, minlength=size)
    total = total.reshape(-1, labels)
    with np.errstate(invalid="ignore"):
        accuracy = hit.sum(1) / lengths
        macro_f1 = np.divide(2 * hit, total, out=np.zeros(hit.shape), where=total > 0).sum(1) / (total > 0).sum(1)
    return accuracy, macro_f1


@dataclass(frozen=True, eq=False)
class Errors:
    """Of many clients' predictions of targets, one number each, in the targets' own units; NaN where there are none."""

    mse: Floats
    mae: Floats
    constant: Floats  # the squared error of always predicting the mean of the client's training targets
    variance: Floats  # of its test targets: the squared error of predicting their mean
    level: Floats  # (clients, targets) the mean of its test targets


def errors_by_client(predicted: Tensor, y: Tensor, target_means: Tensor, lengths: Ints) -> Errors:
    """predicted and y (n, targets): clients' samples end to end; target_means (clients, targets): of training."""
    owner = np.repeat(np.arange(len(lengths)), lengths)

    def mean(values: Floats) -> Floats:  # (n, targets) -> (clients,)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.bincount(owner, values.mean(1), minlength=len(lengths)) / lengths)

    truth, found = (t.double().reshape(len(owner), -1).numpy() for t in (y, predicted))
    # From the client's first target on: the mean of targets that are all the same is then exactly this one.
    level = np.zeros((len(lengths), truth.shape[1]))
    some = lengths > 0
    level[some] = truth[(np.cumsum(lengths) - lengths)[some]]
    beyond = np.zeros_like(level)
    np.add.at(beyond, owner, truth - level[owner])
    level += beyond / np.maximum(lengths, 1)[:, None]
    off = found - truth
    return Errors(
        mse=mean(off**2),
        mae=mean(np.abs(off)),
        constant=mean((truth - target_means.double().numpy()[owner]) ** 2),
        variance=mean((truth - level[owner]) ** 2),
        level=level,
    )


@dataclass(frozen=True)
class Agreement:
    """Adjusted Rand index and normalised mutual information of two labellings."""

    ari: float
    nmi: float


def agreement(truth: Ints, found: Ints) -> Agreement:
    """How well the found clusters match the hidden ones: 1 is perfect, the numbering of clusters does not matter."""
    table = _contingency(truth, found)
    return Agreement(_adjusted_rand(table), _normalised_information(table))


def _contingency(truth: Ints, found: Ints) -> Ints:
    """How many clients are in hidden cluster i and in found cluster j. By hand: scikit-learn is slow to load."""
    rows, columns = (np.unique(labels, return_inverse=True)[1].reshape(-1) for labels in (truth, found))
    shape = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    table = np.zeros(shape, np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


def _adjusted_rand(table: Ints) -> float:
    """From ordered pairs of clients: together in both, in one only, in none (whole numbers, of any size)."""
    n = int(table.sum())
    both = sum(int(v) ** 2 for v in table.flat) - n
    of_truth, of_found = (sum(int(v) ** 2 for v in table.sum(axis)) - n - both for axis in (1, 0))
    none = n * (n - 1) - both - of_truth - of_found
    if not of_truth and not of_found:
        return 1.0
    by_chance = (both + of_truth) * (of_truth + none) + (both + of_found) * (of_found + none)
    return 2 * (both * none - of_truth * of_found) / by_chance


def _normalised_information(table: Ints) -> float:
    """Mutual information over the mean of the two entropies; 1 where neither labelling says anything."""
    if max(table.shape) <= 1:
        return 1.0
    share = table / table.sum()
    first, second = share.sum(1), share.sum(0)
    used = share > 0
    mutual = float((share[used] * np.log(share[used] / np.outer(first, second)[used])).sum())
    entropy = -float((first * np.log(first)).sum() + (second * np.log(second)).sum()) / 2
    return min(max(mutual / entropy, 0.0), 1.0)


def mixture_error(truth: Floats, found: Floats) -> float:
    """How far clients' found mixtures (n, K) are from the true ones (n, S): the mean total variation, 0 is perfect.

    Components are matched to distributions in the best way; unmatched ones count as errors.
    """
    from scipy.optimize import linear_sum_assignment

    agreed = np.minimum(truth[:, :, None], found[:, None, :]).sum(0)  # (S, K)
    rows, columns = linear_sum_assignment(agreed, maximize=True)
    return float(1.0 - agreed[rows, columns].sum() / len(truth))


@dataclass(frozen=True)
class Summary:
    """One evaluation over many clients. accuracy and macro_f1 are None for regression; ari and nmi without true
    clusters, mixture_error if clients are not mixtures.

    rmse, mae, r2, constant are of regressions, whose loss is the mean squared error, all in the targets' own units.
    constant: the squared error of predicting, for every client, the mean of its own training targets. r2: the share of
    the variance of all test targets that is explained, 1 - loss / variance.
    worst_decile: the mean accuracy of the worst tenth of clients, each counted once; their loss for regression.
    """

    loss: float
    accuracy: float | None
    macro_f1: float | None
    clusters: int
    sizes: tuple[int, ...]  # clients per cluster in use, by ascending cluster number
    ari: float | None
    nmi: float | None
    mixture_error: float | None = None
    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None
    constant: float | None = None
    worst_decile: float | None = None
    scores: Mapping[str, float | None] | None = None  # of an objective of one's own, by name


def _weights(reply: Evaluated, found: Ints) -> Floats:
    """(n, K) how much of each cluster a client was found to be; all of one, for hard methods."""
    if reply.shares is not None:
        return np.asarray(reply.shares.double().numpy())
    names, column = np.unique(found, return_inverse=True)
    return np.eye(len(names))[column]


def _between(reply: Evaluated, share: Floats) -> Tensor:
    """(n,) how far the mean of each client's targets is from the mean of all: what varies between clients."""
    assert reply.level is not None
    known = torch.where(torch.from_numpy(share)[:, None] > 0, reply.level, 0.0)
    return (reply.level - torch.from_numpy(share) @ known).square().mean(1)


def summarise(reply: Evaluated, weights: Tensor, truth: Ints | None, mixture: Floats | None = None) -> Summary:
    """The weighted mean over clients, and the clusters they used."""
    share = (weights.double() / weights.sum()).numpy()
    found = reply.choice.numpy() if reply.choice is not None else np.zeros(len(reply.ids), dtype=np.int64)
    sizes = np.unique(found, return_counts=True)[1]
    match = agreement(truth, found) if truth is not None else None

    def total(values: Tensor) -> float:
        return float(share @ np.where(share > 0, values.double().numpy(), 0.0))  # weight zero: may have no score

    def mean(values: Tensor) -> float | None:
        out = total(values)
        return None if np.isnan(out) else out

    loss = total(reply.loss)
    mae, constant = (None if column is None else mean(column) for column in (reply.mae, reply.constant))
    variance = None if reply.variance is None or reply.level is None else mean(reply.variance + _between(reply, share))
    return Summary(
        loss=loss,
        accuracy=mean(reply.accuracy),
        macro_f1=mean(reply.macro_f1),
        clusters=len(sizes),
        sizes=tuple(int(s) for s in sizes),
        ari=match.ari if match else None,
        nmi=match.nmi if match else None,
        mixture_error=None if mixture is None else mixture_error(mixture, _weights(reply, found)),
        rmse=None if mae is None else math.sqrt(loss),
        mae=mae,
        r2=1 - loss / variance if variance else None,
        constant=constant,
        worst_decile=_worst_decile(reply),
        scores=None if reply.scores is None else {name: mean(column) for name, column in reply.scores.items()},
    )


def _worst_decile(reply: Evaluated) -> float | None:
    """By accuracy or, where no client has one, by loss; a client without samples has neither."""
    accuracy, loss = (np.where(reply.n > 0, column.double(), np.nan) for column in (reply.accuracy, reply.loss))
    if np.isnan(accuracy).all():
        return worst_decile(loss, higher_is_better=False)
    return worst_decile(accuracy)


DECILE = 10  # one in so many clients


def worst_decile(scores: ArrayLike, higher_is_better: bool = True) -> float | None:
    """The mean score of the worst tenth of clients, of at least one; None where no client has a score.

    A tenth is rounded up: the worst 2 of 11 to 20 clients. A client without a score (NaN) does not count.
    """
    values: NDArray[np.float64] = np.asarray(scores, dtype=np.float64).ravel()
    values = np.sort(values[~np.isnan(values)])
    many = math.ceil(len(values) / DECILE)
    if not many:
        return None
    return float((values[:many] if higher_is_better else values[-many:]).mean())


@dataclass(frozen=True)
class AgainstLocal:
    """A run beside one in which every client trained alone, client by client."""

    gain: float  # the mean over clients of how much better they fare: in accuracy, or by how much the loss is lower
    worse: float  # the share of the clients that fare worse than alone; equal is not worse
    clients: int  # that both runs have a score of


def against_local(
    scores: Mapping[int, float], alone: Mapping[int, float], higher_is_better: bool = True
) -> AgainstLocal | None:
    """Compare by client id; None where no client has a score in both."""
    shared = [client for client in scores if client in alone]
    apart = np.array([scores[client] - alone[client] for client in shared], dtype=np.float64)
    apart = apart[~np.isnan(apart)] * (1 if higher_is_better else -1)
    if not len(apart):
        return None
    return AgainstLocal(float(apart.mean()), float((apart < 0).mean()), len(apart))
