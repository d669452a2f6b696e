"""One step of local training by hand: what is clipped, and where weight decay and the proximal term come in."""

from __future__ import annotations

import pytest
import torch

from coterie.client.training import Proximal, UpdateRule
from coterie.core.tasks import Local

ANCHOR = torch.zeros(2)


def step(rule: UpdateRule, mu: float) -> list[float]:
    """A step from (3, 4) without a gradient of the loss, pulled to the origin."""
    theta = torch.tensor([3.0, 4.0])
    rule.step(theta, torch.zeros(2), torch.zeros(0), Proximal(ANCHOR, mu))
    return theta.tolist()


def test_the_pull_is_part_of_the_gradient_and_is_not_clipped_with_it() -> None:
    """The pull is 1 * (3, 4): a step of 0.1 along it, whatever the bound on the gradient of the loss is."""
    assert step(UpdateRule(Local(), 0.1, clip=1.0), mu=1.0) == pytest.approx([2.7, 3.6])
    assert step(UpdateRule(Local(), 0.1, clip=None), mu=1.0) == pytest.approx([2.7, 3.6])


def test_weight_decay_is_not_clipped() -> None:
    """As in torch.optim, which is given a clipped gradient: 0.1 * ((3, 4) + 0.5 * (3, 4)) = (0.45, 0.6)."""
    assert step(UpdateRule(Local(weight_decay=0.5), 0.1, clip=1.0), mu=1.0) == pytest.approx([2.55, 3.4])


@pytest.mark.parametrize("mu", [9.9, 10.1])
def test_a_model_rests_where_its_pull_balances_the_clipped_gradient(mu: float) -> None:
    """Where lr * mu passes 1 the pull becomes implicit, and must not move the point of rest: |v - w| = clip / mu.

    A gradient of (30, 40), clipped to norm 1, is (0.6, 0.8).
    """
    rule, theta = UpdateRule(Local(), 0.1, clip=1.0), torch.zeros(2)
    for _ in range(300):
        rule.step(theta, torch.tensor([30.0, 40.0]), torch.zeros(0), Proximal(ANCHOR, mu))
    assert theta.tolist() == pytest.approx([-0.6 / mu, -0.8 / mu], abs=1e-4)


def test_a_strong_pull_is_applied_after_the_step() -> None:
    """lr * mu = 4 > 1: (3, 4) / (1 + 4), which clipping does not change."""
    assert step(UpdateRule(Local(), 0.1, clip=1.0), mu=40.0) == pytest.approx([0.6, 0.8])
