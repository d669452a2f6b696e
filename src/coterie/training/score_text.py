"""The numbers of a finished run as people read them: scores of clusters, shares, errors of a regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.metrics import Summary
from coterie.core.tasks import Evaluated

# The scores of a regression, by their names in a Summary; `constant` is the MSE of the constant predictor.
ERRORS = {"MSE": "loss", "RMSE": "rmse", "MAE": "mae", "R2": "r2", "constant": "constant"}
WORST = "worst 10 %"  # the mean accuracy (loss, for regression) of the worst tenth of clients


def errors(summary: Summary) -> list[str]:
    """The numbers of a regression, as `ERRORS` names them."""
    return [_shown(key, getattr(summary, key)) for key in ERRORS.values()]


def own_scores(summaries: Sequence[Summary]) -> tuple[str, ...] | None:
    """The names of the scores of an objective of one's own, the loss first; None where these runs have no such one."""
    if not any(summary.scores or _only_a_loss(summary) for summary in summaries):
        return None
    return ("loss", *dict.fromkeys(name for summary in summaries for name in summary.scores or {}))


def _only_a_loss(summary: Summary) -> bool:
    """Whether clients were evaluated by a loss function alone: neither by classes nor by squared errors."""
    return summary.accuracy is None and summary.rmse is None and summary.mae is None


def own_values(summary: Summary, names: Sequence[str]) -> list[str]:
    """The scores of these names."""
    return [_shown(name, {**(summary.scores or {}), "loss": summary.loss}.get(name)) for name in names]


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "r2":  # far below 0 the exact value means nothing, and would take up the space of the run's name
        return f"{value:.3f}" if value > -100 else "< -100"
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


@dataclass(frozen=True)
class ClusterScore:
    """The scores of a cluster's clients, weighted by test samples, and with each client counted once.

    None without any test samples; accuracies for a regression, too."""

    cluster: int
    clients: int
    accuracy: float | None
    loss: float | None
    client_accuracy: float | None
    client_loss: float | None


def cluster_scores(reply: Evaluated) -> list[ClusterScore]:
    """One per cluster in use, by ascending number; none for methods without clusters."""
    if reply.choice is None:
        return []
    found, weight = reply.choice.numpy(), reply.n.double().numpy()

    def mean(values: Any, here: Any, by: Any) -> float | None:
        counted = here & (weight > 0)
        score = float(np.average(values[counted], weights=by[counted])) if counted.any() else math.nan
        return score if math.isfinite(score) else None

    accuracy, loss = reply.accuracy.double().numpy(), reply.loss.double().numpy()
    return [
        ClusterScore(
            *(int(k), int((found == k).sum())),
            *(mean(values, found == k, by) for by in (weight, np.ones_like(weight)) for values in (accuracy, loss)),
        )
        for k in np.unique(found)
    ]


def worst(summary: Summary) -> str:
    """How the worst tenth of clients fares: accuracy, or loss for regression."""
    value = summary.worst_decile
    return _shown("loss", value) if summary.accuracy is None else percent(value)


def percent(value: float | None) -> str:
    """A share as people read it."""
    return "-" if value is None else f"{100 * value:.1f} %"
