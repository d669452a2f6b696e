"""Training on one of two halves of a client's samples, and sending a sketch of the update instead of the model."""

from __future__ import annotations

import pytest
import torch

from conftest import Data, linear, vector
from coterie.client.contract import FitAnswer, Moment
from coterie.client.visit import ClientVisit, Networks
from coterie.core.sketch import sketch
from coterie.core.tasks import All, Evaluate, Fit, Local

GRADIENT = Local(epochs=1, batch="full", lr=1.0, clip="off")


def visit(n: int, round: int = 0, client: int = 3) -> ClientVisit:
    x = torch.arange(1.0, n + 1)[:, None]
    samples = x, 2 * x
    return ClientVisit(Networks(linear(1, 1, loss="mse")), client, Data(samples, samples), {}, Moment(0, round, 0))


def test_the_halves_are_all_samples_once() -> None:
    one = visit(7)
    first, second = one.half(0, 7), one.half(1, 7)
    assert (len(first), len(second)) == (4, 3)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(7))
    assert torch.equal(first, one.half(0, 7))


def test_they_are_drawn_by_client_and_stay_the_same() -> None:
    assert visit(20).half(0, 20).tolist() == visit(20, round=1).half(0, 20).tolist()
    assert visit(20).half(0, 20).tolist() != visit(20, client=4).half(0, 20).tolist()


def test_a_single_sample_is_both_halves() -> None:
    assert visit(1).half(0, 1).tolist() == visit(1).half(1, 1).tolist() == [0]


def test_an_evaluation_can_be_about_one_half() -> None:
    """With w = 0 and y = 2x the squared error is 4 mean(x^2) over the half's samples."""
    one = visit(7)
    for half in (0, 1):
        answer = one.evaluate(Evaluate((All(vector(0.0)),), split="train", half=half))
        x = one.data.train[0][one.half(half, 7), 0]
        assert answer.n == len(x)
        assert answer.loss == pytest.approx(4 * float(x.square().mean()))


def fit(one: ClientVisit, half: int | None, number: int = 0, send: bool = True) -> FitAnswer:
    task = Fit(All(vector(0.0)), local=GRADIENT, half=half, sketch=4, send=send, keep=False)  # type: ignore[arg-type]
    return one.fit(task, number)


def test_a_half_is_what_is_trained_on() -> None:
    """From w = 0, y = 2x: the gradient of the mean of (wx - 2x)^2 is -4 mean(x^2) over the half's samples."""
    one = visit(6)
    for half in (0, 1):
        answer = fit(one, half)
        x = one.data.train[0][one.half(half, 6), 0]
        assert answer.theta is not None
        assert torch.allclose(answer.theta, 4 * x.square().mean()[None])
        assert answer.n == 6  # a client's size, not the half's


def test_the_sketch_is_of_the_update() -> None:
    start = vector(1.0, 2.0, 3.0, 4.0)
    samples = torch.eye(4)[:, :2].repeat(2, 1), torch.arange(8) % 2
    one = ClientVisit(Networks(linear(2, 2)), 0, Data(samples, samples), {}, Moment(0, 0, 0))
    whole = one.fit(Fit(All(start), local=GRADIENT), 0)
    told = one.fit(Fit(All(start), local=GRADIENT, sketch=3, send=False), 0)
    assert whole.theta is not None
    assert told.theta is None
    assert told.sketch is not None
    torch.testing.assert_close(told.sketch, sketch(whole.theta - start, 3))
    assert whole.sketch is None
