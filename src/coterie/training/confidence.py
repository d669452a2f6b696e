"""How sure a newcomer's cluster is: on each of its samples, the loss of that cluster's model against every other's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr
from torch import Tensor

from coterie.client.contract import ClientData
from coterie.client.visit import TaskRunner
from coterie.core.objective import sample_losses
from coterie.core.references import All, OneRow, Ref, personal_of, substitute, vectors_of, walk
from coterie.core.tasks import Evaluate


def confidence(runner: TaskRunner, task: Evaluate, client: int, data: ClientData, cluster: int) -> float:
    """The probability, by a paired t-test over the client's samples, that no other cluster's model serves it better.

    1 where there is one cluster only; NaN where clients share in several clusters, or have none.
    """
    many = rows_of(task)
    if cluster < 0 or not many or task.mixture is not None or task.belongs is not None:
        return math.nan
    x, y = data.train
    losses = []
    for row in range(many):
        predicted = runner.predict(of_cluster(task, row, many), client, data, {}, x)
        losses.append(sample_losses(predicted, y, runner.networks.loss).double().numpy())
    return min((_better(losses[row] - losses[cluster]) for row in range(many) if row != cluster), default=1.0)


def rows_of(task: Evaluate) -> int:
    """How many clusters have a model in this prediction."""
    return max((len(rows) for rows in map(_rows, walk(task)) if rows is not None), default=0)


def _rows(node: object) -> Tensor | None:
    return vectors_of(node) if isinstance(node, OneRow) else None


def of_cluster(task: Evaluate, row: int, many: int) -> Evaluate:
    """The same prediction by the models of one cluster, whatever cluster a client is in."""

    def swap(ref: Ref) -> Any:
        rows = _rows(ref)
        return All(rows[row], personal_of(ref)) if rows is not None and len(rows) == many else substitute(ref, swap)

    return substitute(task, swap)


def _better(differences: NDArray[np.float64]) -> float:
    """The probability that the mean of these is above 0."""
    n, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    if error == 0:
        return 0.5 if mean == 0 else float(mean > 0)
    return float(stdtr(max(n - 1, 1), mean / error))
