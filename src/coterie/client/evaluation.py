"""What a client reports: scores of a model on its samples, and what its data looks like in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.client.contract import EvaluateAnswer
from coterie.core.errors import DivergedError, not_finite
from coterie.core.metrics import by_client, errors_by_client
from coterie.core.objective import AnyLoss, Loss, Objective, sample_losses, sample_scores
from coterie.core.sketch import sketch
from coterie.core.tasks import Describe
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


WIDEST = 3.0  # targets of a regression are in bins from -3 to 3 (they are standardised, where they are scaled at all)
RANK = 1e-6  # of the largest singular value: a direction below has no data


def described(task: Describe, features: Tensor, y: Tensor) -> Tensor:
    """A row of `task.length` numbers. features (n, ...): of a model, or the raw inputs. y is read only if need be."""
    features, y = features.cpu(), y.cpu()  # double precision is not on every device, and this is small work
    if task.kind == "labels":
        return torch.bincount(numbered(y, task.size).flatten(), minlength=task.size) / max(1, y.numel())
    points = sketch(features.reshape(len(features), -1).double(), task.size)
    measure = MEASURES[task.kind]
    parts = [measure(points, task.rank)] if task.kind != "subspace" or not task.classes else []
    if task.classes:
        labels = numbered(y, task.classes)[:, 0]
        parts += [measure(points[labels == label], task.rank) for label in range(task.classes)]
    return torch.cat(parts)


def numbered(y: Tensor, classes: int) -> Tensor:
    """The labels (n, m) as numbers below `classes`: classes modulo it, targets of a regression in bins."""
    columns = y.reshape(len(y), -1)
    if not y.is_floating_point():
        return columns.long() % classes
    bins = ((columns.double() + WIDEST) * classes / (2 * WIDEST)).floor()
    return bins.nan_to_num(0).clamp(0, classes - 1).long()


def moments(points: Tensor, _: int) -> Tensor:
    """Mean and standard deviation of each column."""
    if not len(points):
        return points.new_zeros(2 * points.shape[1])
    return torch.cat([points.mean(0), points.std(0, correction=0)])


def average(points: Tensor, _: int) -> Tensor:
    """The mean of each column."""
    return points.mean(0) if len(points) else points.new_zeros(points.shape[1])


def subspace(points: Tensor, rank: int) -> Tensor:
    """The first left singular vectors of the samples as columns, one after another; zeros where there is no more data.

    Of the two signs a vector can have, the one whose entry of largest size is positive.
    """
    found = points.new_zeros(rank, points.shape[1])
    if len(points):
        _, values, rows = torch.linalg.svd(points, full_matrices=False)
        rows = rows[:rank][values[:rank] > RANK * float(values[0])]
        largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
        found[: len(rows)] = rows * largest.sign()
    return found.flatten()


MEASURES: dict[str, Callable[[Tensor, int], Tensor]] = {"moments": moments, "sketch": average, "subspace": subspace}
