"""Scores of predictions, for one client or for many with concatenated samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.client.answers import EvaluateAnswer
from coterie.core.errors import DivergedError, not_finite
from coterie.core.metrics import by_client, errors_by_client
from coterie.core.model import Loss, sample_losses
from coterie.data.targets import TargetScale

MANY_TARGETS = 256  # of a regression; with more, the mean of each is not sent to the server


def classification_answers(
    predicted: Tensor, y: Tensor, lengths: Sequence[int], loss: Loss, choice: int | None, shares: Tensor | None = None
) -> list[EvaluateAnswer | DivergedError]:
    """An answer per client. predicted: logits (n, outputs); lengths: the samples of each client."""
    losses = sample_losses(predicted, y, loss).cpu().split(list(lengths))
    scores = by_client(y.cpu().numpy(), predicted.argmax(1).cpu().numpy(), np.array(lengths))
    answers: list[EvaluateAnswer | DivergedError] = []
    for n, own, accuracy, macro_f1 in zip(lengths, losses, *scores, strict=True):
        mean = float(own.mean()) if n else 0.0
        if not n:
            answers.append(EvaluateAnswer(0, 0.0, 0.0, 0.0, choice, shares))
        elif not math.isfinite(mean):
            answers.append(_diverged())
        else:
            answers.append(EvaluateAnswer(n, mean, float(accuracy), float(macro_f1), choice, shares))
    return answers


def regression_answers(
    predicted: Tensor,
    y: Tensor,
    lengths: Sequence[int],
    scales: Sequence[TargetScale | None],
    target_means: Tensor,
    choice: int | None,
    shares: Tensor | None = None,
) -> list[EvaluateAnswer | DivergedError]:
    """An answer per client, in original units. scales: how each client's targets are standardised; target_means
    (clients, targets): the means of their training targets."""
    found, truth = (_in_units(part.cpu(), lengths, scales) for part in (predicted, y))
    errors = errors_by_client(found, truth, target_means, np.array(lengths))
    answers: list[EvaluateAnswer | DivergedError] = []
    for i, n in enumerate(lengths):
        if not n:
            answers.append(EvaluateAnswer(0, 0.0, 0.0, 0.0, choice, shares))
        elif not math.isfinite(errors.mse[i]):
            answers.append(_diverged())
        else:
            mse, mae, constant, variance = (
                float(c[i]) for c in (errors.mse, errors.mae, errors.constant, errors.variance)
            )
            level = tuple(errors.level[i].tolist()) if errors.level.shape[1] <= MANY_TARGETS else ()
            answers.append(EvaluateAnswer(n, mse, math.nan, math.nan, choice, shares, mae, constant, variance, level))
    return answers


def _in_units(y: Tensor, lengths: Sequence[int], scales: Sequence[TargetScale | None]) -> Tensor:
    """Targets, or predictions of them, in original units."""
    parts = zip(y.split(list(lengths)), scales, strict=True)
    return torch.cat([part.double() if scale is None else scale.undo(part) for part, scale in parts])


def _diverged() -> DivergedError:
    return not_finite("its model gives a loss on its data")
