"""An request with everything in it, and ways to spoil it on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coterie.client.contract import Moment
from coterie.core.tables import ByClient
from coterie.core.tasks import (
    All,
    Best,
    Describe,
    Estimated,
    Evaluate,
    Fit,
    Local,
    Mix,
    Own,
    Pick,
    Posterior,
    Row,
    Score,
)
from coterie.network.messages import PROTOCOL, ModelSpec, VisitRequest

CENTERS = torch.arange(12.0).reshape(3, 4)


def request() -> VisitRequest:
    """One with everything in it."""
    theta = CENTERS[1]
    posterior = Posterior(CENTERS, 1, Own("pi", Estimated(CENTERS, "posterior")), torch.ones(3, 2) / 2)
    tasks = (
        Fit(Row(theta, 1), Local(steps=3, batch="full"), anchor=All(theta), mu=0.5, weights=posterior, save="x"),
        None,
        Score(CENTERS, "posterior", given=Best(CENTERS, All(theta), "accuracy"), prior=All(torch.ones(3) / 3)),
        Score(CENTERS, "classes", class_shares=torch.ones(3, 2) / 2),
        Evaluate((Mix(CENTERS, Estimated(CENTERS, "votes")), Row(theta, 1)), belongs=Estimated(CENTERS, "votes")),
        Fit(
            Pick(CENTERS, ByClient(torch.tensor([3]), torch.tensor([2]))), Local(), mu=3, optimizer_slot="o", keep=False
        ),
        Describe("moments", 3, Row(theta, 1), classes=2),
    )
    plan = ModelSpec("mlp", '{"hidden": [4]}', (2, 2), 2, "cross_entropy", 4)
    return VisitRequest(PROTOCOL, "run-1", 3, tasks, Moment(1 << 90, 2, 3), True, None, 0, plan)


def set_at(*path: Any, to: Any) -> Callable[[Any], object]:
    """A change of an outline at one place."""

    def change(outline: Any) -> None:
        for step in path[:-1]:
            outline = outline[step]
        outline[path[-1]] = to

    return change
