"""Evaluation of many clients at once, if the server says who uses which model: one forward pass per model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from coterie.client.answers import ClientTasks, EvaluateAnswer
from coterie.client.data import ClientDataSource
from coterie.client.evaluation import answers_of
from coterie.client.visit import Networks
from coterie.core.errors import CoterieError
from coterie.core.model import combined
from coterie.core.references import All, Pick, rows_of
from coterie.core.tasks import Evaluate
from coterie.data.federation import Federation

SAMPLES = 4096  # in one pass

LogitsOf: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def evaluate_together(
    networks: Networks, calls: Sequence[ClientTasks], source: ClientDataSource, logits_of: LogitsOf
) -> list[EvaluateAnswer | Exception] | None:
    """The answers, if clients are asked for nothing but an evaluation of models that the server names; else None.

    logits_of: the logits (G, n, outputs) of models (G, P) for samples.
    """
    task = _only_task(calls)
    # A subclass of Federation may prepare a client's samples in its own way.
    if task is None or type(source) is not Federation or networks.frozen.mixes:
        return None
    ids = torch.tensor([call.client for call in calls])
    models = [found for model in task.models if (found := rows_of(model, ids)) is not None]
    if len(models) < len(task.models):  # a client without a label: evaluated one by one, so that the reply names it
        return None
    picked = [isinstance(model, Pick) for model in task.models]
    try:
        rows = torch.stack([row for _, row in models], 1)
        answers: list[EvaluateAnswer | Exception] = [CoterieError("not evaluated", code="client-unable")] * len(calls)
        for combination in rows.unique(dim=0):
            thetas = [_row(centers, int(row)) for (centers, _), row in zip(models, combination, strict=True)]
            choice = next((int(row) for row, is_pick in zip(combination, picked, strict=True) if is_pick), None)
            same = torch.nonzero((rows == combination).all(1))[:, 0]
            for some in _portions(same, source, ids, task):
                scored = _evaluate(networks, task, logits_of, torch.stack(thetas), choice, source, ids[some])
                for place, answer in zip(some.tolist(), scored, strict=True):
                    answers[place] = answer
    except (CoterieError, RuntimeError, IndexError, ValueError):  # one by one, so that it is named
        return None
    return answers


def _only_task(calls: Sequence[ClientTasks]) -> Evaluate | None:
    """The evaluation of the server's models that all these clients are asked for."""
    task = calls[0].tasks[0] if calls and len(calls[0].tasks) == 1 else None
    if not isinstance(task, Evaluate) or task.mixture or task.belongs or task.half is not None:
        return None
    same = all(call.tasks[0] is task for call in calls)
    shared = (isinstance(model, All | Pick) and model.personal is None for model in task.models)
    return task if same and all(shared) else None


def _row(centers: Tensor, row: int) -> Tensor:
    if not 0 <= row < len(centers):
        raise CoterieError(f"the server picked row {row} of {len(centers)}", code="task-invalid")
    return centers[row]


def _portions(places: Tensor, source: Federation, ids: Tensor, task: Evaluate) -> Iterator[Tensor]:
    """Clients whose samples make up one pass."""
    lengths = source.rows(task.split).lengths[ids[places]]
    part = (lengths.cumsum(0) - lengths) // SAMPLES
    for number in part.unique():
        yield places[part == number]


def _evaluate(
    networks: Networks,
    task: Evaluate,
    logits_of: LogitsOf,
    thetas: Tensor,
    choice: int | None,
    source: Federation,
    ids: Tensor,
) -> Sequence[EvaluateAnswer | Exception]:
    x, y, lengths = networks.placement.together(source, ids, task.split)
    predicted, n = combined(logits_of(thetas, x), None, task.average, networks.loss), lengths.tolist()
    return answers_of(
        *(networks.loss, predicted, y, n),
        *(lambda: [source.client(client).target for client in ids.tolist()], lambda: source.target_means[ids]),
        choice,
    )
