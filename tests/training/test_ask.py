"""`ask` tells of a visit that nobody answers, and the round loop then changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import coterie
from conftest import raises
from coterie import All, Evaluate, FedAvg, Fit, Local, Score
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit
from coterie.engines.sequential import Sequential
from coterie.training.ask import RoundAsk

FEDERATION = coterie.Federation.of([(torch.randn(6, 2).numpy(), [0, 1] * 3) for _ in range(4)])
MODEL = coterie.Model(lambda: torch.nn.Linear(2, 2))
W = torch.zeros(6)
LOCAL = Local(steps=1)


class Silent(Sequential):
    """Some clients never answer."""

    silent: tuple[int, ...] = (0, 1)

    def visit(self, visit: Visit) -> Outcome:
        """As always, without them."""
        gone = torch.isin(visit.ids, torch.tensor(self.silent))
        if gone.all():
            return Outcome(ReplyBuilder(visit).replies(), tuple(Missing(int(c), "away") for c in visit.ids))
        return super().visit(visit)


def ask(*ids: int) -> Any:
    return RoundAsk(Silent(MODEL, FEDERATION), torch.tensor(ids), 0, 0)


@pytest.mark.parametrize("task", [Fit(All(W), LOCAL), Score(W[None]), [Fit(All(W), LOCAL), Score(W[None])]])
def test_nobody_answers(task: Any) -> None:
    with raises("no-answer"):
        ask(0, 1)(task)


def test_one_answer_to_one_of_the_tasks_is_enough() -> None:
    first, second = ask(0, 2)([Fit(All(W), LOCAL, on=torch.tensor([], dtype=torch.int64)), Fit(All(W), LOCAL)])
    assert first.ids.tolist() == []
    assert second.ids.tolist() == [0, 2]


def test_whoever_evaluates_finds_nobody_scored() -> None:
    assert ask(0, 1)(Evaluate((All(W),))).ids.tolist() == []


def test_the_loop_leaves_the_state_as_it_was() -> None:
    class Forgetful(FedAvg):
        """Changes its state before it asks; the round does not count."""

        def round(self, w: Tensor, cohort: Any, ask: Any) -> Tensor:
            return super().round(w + 1, cohort, ask)

    class Nobody(Silent):
        silent = (0, 1, 2, 3)

        def visit(self, visit: Visit) -> Outcome:
            return super().visit(visit) if visit.keep else Sequential.visit(self, visit)

    result = coterie.run(
        Forgetful(local=LOCAL), FEDERATION, MODEL, rounds=2, quorum=0, engine=Nobody(MODEL, FEDERATION)
    )
    begun = coterie.run(FedAvg(local=LOCAL), FEDERATION, MODEL, rounds=2, quorum=0, engine=Nobody(MODEL, FEDERATION))
    assert [event.answered for event in result.history] == [0, 0]
    assert torch.equal(result.state, begun.state)
