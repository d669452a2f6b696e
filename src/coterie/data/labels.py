"""Whether numbers are labels or amounts: what cannot be known is said, with both readings, and what is plainly meant
otherwise is refused with what to write instead."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.settings import Kind

MANY = 20  # different whole numbers: up to here they are taken for classes without a word
PER_CLASS = 50  # samples; fewer of each of many classes are hard to learn, and usual for amounts


def warn_of_amounts(y: Tensor, where: str, remedy: str) -> None:
    """Whole numbers that look like amounts (scores, counts, years) are read as classes, but not in silence."""
    found = y.unique()
    many, low, high = len(found), int(found[0]), int(found[-1])
    sparse = many > MANY and len(y) < PER_CLASS * many
    gaps = many > MANY // 2 and high + 1 > 2 * many
    if sparse or gaps:
        warnings.warn(
            f"data: {where}: {many} different whole numbers from {low} to {high} are taken for {high + 1} classes "
            f"(accuracy). {remedy}",
            CoterieWarning,
            stacklevel=2,
        )


def warn_of_no_zero(y: Tensor, where: str, remedy: str) -> None:
    """Labels 1..C, all of them there, are C + 1 classes of which nobody has the first."""
    found = y.unique()
    if len(found) > 1 and int(found[0]) == 1 and int(found[-1]) == len(found):
        warnings.warn(
            f"data: {where}: the labels go from 1 to {len(found)} and are taken for {len(found) + 1} classes, of which "
            f"class 0 has no samples. Do yours start at 1? Subtract 1. {remedy}",
            CoterieWarning,
            stacklevel=2,
        )


def refuse_vectors(y: Tensor, where: str, task: Kind | None) -> None:
    """One-hot labels and probabilities are labels in a form that is not taken."""
    if task == "regression" or y.ndim != 2 or y.shape[1] < 2 or not len(y):
        return
    values = y.double()
    if not bool((values >= 0).all()) or not bool(torch.isclose(values.sum(1), values.new_ones(1), atol=1e-3).all()):
        return
    one_hot = bool(((values == 0) | (values == 1)).all())
    what = "one-hot labels" if one_hot else "probabilities of classes (outputs of a softmax)"
    raise CoterieError(
        f"data: {where}: these are {what}; give one label per sample, y.argmax(1), or write task='regression' if each "
        "column is a target of its own",
        code="data-labels",
    )


def as_task(y: Tensor, task: Kind | None, where: str) -> Tensor:
    """The targets in the form that the task needs."""
    if task == "regression" and not y.is_floating_point():
        return y.to(torch.get_default_dtype())
    if task == "classification" and y.is_floating_point():
        odd = torch.nonzero((y % 1 != 0).reshape(len(y), -1).any(1))
        if len(odd):
            value = float(y[int(odd[0])].reshape(-1)[0])
            raise CoterieError(
                f"data: {where}: {value:g} is not a class; write whole numbers, or task='regression'",
                code="data-labels",
            )
        return y.long()
    return y
