"""How good a prediction is, and how well found clusters agree with the hidden ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.tasks import Evaluated

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def accuracy_and_macro_f1(truth: Tensor, predicted: Tensor) -> tuple[float, float]:
    """Share of correct predictions, and F1 averaged over the labels present in truth or predictions."""
    t, p = truth.numpy(), predicted.numpy()
    labels = int(max(t.max(), p.max())) + 1
    hit = np.bincount(t[t == p], minlength=labels)
    total = np.bincount(t, minlength=labels) + np.bincount(p, minlength=labels)
    present = total > 0
    return float(hit.sum() / len(t)), float(np.mean(2 * hit[present] / total[present]))


def by_client(truth: Ints, predicted: Ints, lengths: Ints) -> tuple[Floats, Floats]:
    """`accuracy_and_macro_f1` of many clients at once, whose samples lie end to end; NaN where there are none."""
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


@dataclass(frozen=True)
class Agreement:
    """Adjusted Rand index and normalised mutual information of two labellings."""

    ari: float
    nmi: float


def agreement(truth: Ints, found: Ints) -> Agreement:
    """How well the found clusters match the hidden ones: 1 is perfect, names of labels do not matter."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    return Agreement(
        float(adjusted_rand_score(truth, found)),
        float(normalized_mutual_info_score(truth, found)),
    )


def mixture_error(truth: Floats, found: Floats) -> float:
    """How far clients' found mixtures (n, K) are from the true ones (n, S): the mean total variation, 0 is perfect.

    Which found component stands for which distribution is chosen as well as possible; what is left over is wrong.
    """
    from scipy.optimize import linear_sum_assignment

    agreed = np.minimum(truth[:, :, None], found[:, None, :]).sum(0)  # (S, K)
    rows, columns = linear_sum_assignment(agreed, maximize=True)
    return float(1.0 - agreed[rows, columns].sum() / len(truth))


@dataclass(frozen=True)
class Summary:
    """One evaluation over many clients. accuracy and macro_f1 are None for regression; ari and nmi without true
    clusters, mixture_error where clients are no mixtures."""

    loss: float
    accuracy: float | None
    macro_f1: float | None
    clusters: int
    sizes: tuple[int, ...]  # clients per cluster in use, by ascending cluster number
    ari: float | None
    nmi: float | None
    mixture_error: float | None = None


def _weights(reply: Evaluated, found: Ints) -> Floats:
    """(n, K) how much of each cluster a client was found to be; all of one, for hard methods."""
    if reply.shares is not None:
        return np.asarray(reply.shares.double().numpy())
    names, column = np.unique(found, return_inverse=True)
    return np.eye(len(names))[column]


def summarise(reply: Evaluated, weights: Tensor, truth: Ints | None, mixture: Floats | None = None) -> Summary:
    """The weighted mean over clients, and the clusters they used."""
    share = (weights.double() / weights.sum()).numpy()
    found = reply.choice.numpy() if reply.choice is not None else np.zeros(len(reply.ids), dtype=np.int64)
    sizes = np.unique(found, return_counts=True)[1]
    match = agreement(truth, found) if truth is not None else None

    def total(values: Tensor) -> float:
        return float(share @ np.where(share > 0, values.double().numpy(), 0.0))  # who does not count has no score

    def mean(values: Tensor) -> float | None:
        out = total(values)
        return None if np.isnan(out) else out

    return Summary(
        loss=total(reply.loss),
        accuracy=mean(reply.accuracy),
        macro_f1=mean(reply.macro_f1),
        clusters=len(sizes),
        sizes=tuple(int(s) for s in sizes),
        ari=match.ari if match else None,
        nmi=match.nmi if match else None,
        mixture_error=None if mixture is None else mixture_error(mixture, _weights(reply, found)),
    )
