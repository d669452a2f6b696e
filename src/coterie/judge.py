"""Evaluation of many clients at once, where the server says who uses which model: as cheap as its forward passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.client import Call, EvaluateAnswer, HasClients, Workbench
from coterie.data.federation import Federation
from coterie.errors import CoterieError
from coterie.metrics import by_client
from coterie.model import sample_losses
from coterie.tasks import All, Evaluate, Pick
from coterie.together import combined

SAMPLES = 4096  # in one pass


def judge_together(
    bench: Workbench, calls: Sequence[Call], source: HasClients
) -> list[EvaluateAnswer | Exception] | None:
    """The answers, if nothing but an evaluation of models that the server names is asked; otherwise None."""
    task = calls[0].tasks[0] if calls and len(calls[0].tasks) == 1 else None
    # A federation that is more than one may have its own ways with a client's samples.
    if not isinstance(task, Evaluate) or type(source) is not Federation or task.mixture or task.belongs:
        return None
    if bench.frozen.mixes:
        return None
    if any(call.tasks[0] is not task for call in calls) or not all(isinstance(m, All | Pick) for m in task.models):
        return None
    ids = torch.tensor([call.client for call in calls])
    try:
        rows = torch.stack([m.labels.at(ids) if isinstance(m, Pick) else torch.zeros_like(ids) for m in task.models], 1)
        found: list[EvaluateAnswer | Exception] = [CoterieError("not evaluated")] * len(calls)
        for combination in rows.unique(dim=0):
            thetas = [_theta(m, int(row)) for m, row in zip(task.models, combination, strict=True)]
            choice = next((int(r) for m, r in zip(task.models, combination, strict=True) if isinstance(m, Pick)), None)
            mine = torch.nonzero((rows == combination).all(1))[:, 0]
            for some in _portions(mine, source, ids, task):
                answers = _judge(bench, task, thetas, choice, source, ids[some])
                for place, answer in zip(some.tolist(), answers, strict=True):
                    found[place] = answer
    except (CoterieError, RuntimeError, IndexError, ValueError):  # someone's affair: one by one, it is told whose
        return None
    return found


def _theta(model: object, row: int) -> Tensor:
    if isinstance(model, All):
        return model.theta
    assert isinstance(model, Pick)
    if not 0 <= row < len(model.centers):
        raise CoterieError(f"the server picked row {row} of {len(model.centers)}")
    return model.centers[row]


def _portions(mine: Tensor, source: Federation, ids: Tensor, task: Evaluate) -> Iterator[Tensor]:
    lengths = (source.test if task.split == "test" else source.train).lengths[ids[mine]]
    part = (lengths.cumsum(0) - lengths) // SAMPLES
    for number in part.unique():
        yield mine[part == number]


def _judge(
    bench: Workbench, task: Evaluate, thetas: Sequence[Tensor], choice: int | None, source: Federation, ids: Tensor
) -> list[EvaluateAnswer | Exception]:
    x, y, lengths = source.together(ids, task.split)
    logits = torch.stack([bench.frozen.load(theta).logits(x).clone() for theta in thetas])
    said = combined(logits, None, task.average, bench.loss)
    n = lengths.numpy()
    owner = np.repeat(np.arange(len(n)), n)
    losses = np.bincount(owner, sample_losses(said, y, bench.loss).double().numpy(), minlength=len(n))
    loss = losses / np.maximum(n, 1)
    if bench.loss == "mse":
        accuracy = macro_f1 = np.full(len(n), np.nan)
    else:
        accuracy, macro_f1 = by_client(y.numpy(), said.argmax(1).numpy(), n)
    answers: list[EvaluateAnswer | Exception] = []
    for i, many in enumerate(n.tolist()):
        if not many:
            answers.append(EvaluateAnswer(0, 0.0, 0.0, 0.0, choice))
        elif not np.isfinite(loss[i]):
            answers.append(CoterieError("its model gives a loss that is not finite (NaN or Inf) on its data"))
        else:
            answers.append(EvaluateAnswer(many, float(loss[i]), float(accuracy[i]), float(macro_f1[i]), choice))
    return answers
