"""Scores of predictions, for one client or for many with concatenated samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.client.answers import EvaluateAnswer
from coterie.core.errors import DivergedError, not_finite
from coterie.core.metrics import by_client, errors_by_client
from coterie.core.objective import AnyLoss, Loss, Objective, sample_losses, sample_scores
from coterie.data.scale import TargetScale

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


def objective_answers(
    predicted: Tensor,
    y: Tensor,
    lengths: Sequence[int],
    scales: Sequence[TargetScale | None],
    objective: Objective,
    choice: int | None,
    shares: Tensor | None = None,
) -> list[EvaluateAnswer | DivergedError]:
    """An answer per client by an objective of one's own; where targets are standardised, in original units."""
    if any(scale is not None for scale in scales):
        predicted, y = _in_units(predicted, lengths, scales), _in_units(y, lengths, scales)
    losses = sample_losses(predicted, y, objective).split(list(lengths))
    scores = {name: values.split(list(lengths)) for name, values in sample_scores(predicted, y, objective).items()}
    answers: list[EvaluateAnswer | DivergedError] = []
    for i, n in enumerate(lengths):
        mean = float(losses[i].double().mean()) if n else 0.0
        if not math.isfinite(mean):
            answers.append(_diverged())
            continue
        own = tuple((name, float(parts[i].double().mean()) if n else 0.0) for name, parts in scores.items())
        score = math.nan if n else 0.0
        answers.append(EvaluateAnswer(n, mean, score, score, choice, shares, scores=own))
    return answers


def answers_of(
    loss: AnyLoss,
    predicted: Tensor,
    y: Tensor,
    lengths: Sequence[int],
    scales: Callable[[], Sequence[TargetScale | None]],
    target_means: Callable[[], Tensor],
    choice: int | None,
    shares: Tensor | None = None,
) -> list[EvaluateAnswer | DivergedError]:
    """An answer per client, by what the loss is about."""
    if loss == "cross_entropy":
        return classification_answers(predicted, y, lengths, loss, choice, shares)
    if loss == "mse":
        return regression_answers(predicted, y, lengths, scales(), target_means(), choice, shares)
    assert not isinstance(loss, str)
    return objective_answers(predicted, y, lengths, scales(), loss, choice, shares)


def _in_units(y: Tensor, lengths: Sequence[int], scales: Sequence[TargetScale | None]) -> Tensor:
    """Targets, or predictions of them, in original units."""
    parts = zip(y.split(list(lengths)), scales, strict=True)
    return torch.cat([part.double() if scale is None else scale.undo(part) for part, scale in parts])


def _diverged() -> DivergedError:
    return not_finite("its model gives a loss on its data")
