"""Server optimizers by hand: single steps, moments that follow their models, and what a checkpoint keeps of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.server_optimizers import Adam, Momentum
from coterie.core.tasks import Fitted
from coterie.layers.server_optimizer import Optimized, OptimizedMean, fingerprint, kept


def reply(*models: list[float]) -> Fitted:
    n = len(models)
    return Fitted(
        torch.arange(n), torch.ones(n, dtype=torch.int64), torch.zeros(n), torch.tensor(models, dtype=torch.float32)
    )


def close(found: Tensor, expected: list[float] | list[list[float]], within: float = 1e-6) -> None:
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=within)


def test_momentum_by_hand() -> None:
    """D = (2, -4): v = D, x = D / 2. The mean is then (2, -1): D = (1, 1), v = (1, -2) + (1, 1) = (2, -1)."""
    rule = Momentum(beta=0.5, eta=0.5)
    x = torch.zeros(2)
    x, moments = rule.step(x, torch.tensor([2.0, -4.0]), rule.begin(x))
    close(x, [1.0, -2.0])
    x, moments = rule.step(x, torch.tensor([2.0, -1.0]), moments)
    close(moments, [[2.0, -1.0]])
    close(x, [2.0, -2.5])


def test_adam_by_hand() -> None:
    """D = 2: m = 0.5 * 2 = 1, v = 0.75 * 1 + 0.25 * 4 = 1.75 (from tau^2 = 1), x = 3 / (sqrt(1.75) + 1)."""
    rule = Adam(eta=3.0, beta1=0.5, beta2=0.75, tau=1.0)
    x = torch.zeros(1)
    x, moments = rule.step(x, torch.tensor([2.0]), rule.begin(x))
    close(moments, [[1.0], [1.75]])
    close(x, [3 / (1.75**0.5 + 1)])
    _, moments = rule.step(x, x, moments)  # D = 0
    close(moments, [[0.5], [0.75 * 1.75]])


def test_adam_without_memory_moves_by_eta_and_with_a_large_tau_in_proportion() -> None:
    x, mean = torch.tensor([1.0, 1.0]), torch.tensor([3.0, 0.9])
    signs = Adam(eta=0.25, beta1=0, beta2=0, tau=1e-9)
    close(signs.step(x, mean, signs.begin(x))[0], [1.25, 0.75])
    large = Adam(eta=0.5e6, beta1=0, beta2=0, tau=1e6)
    close(large.step(x, mean, large.begin(x))[0], [1 + 2 / 2, 1 - 0.1 / 2], within=1e-5)


def test_no_momentum_is_the_mean_to_the_bit() -> None:
    x, mean = torch.rand(1000) * 1e-3, torch.rand(1000) * 1e3
    rule = Momentum(beta=0.0)
    assert torch.equal(rule.step(x, mean, torch.rand(1, 1000))[0], mean)


CENTERS = torch.tensor([[0.0, 0.0, 5.0], [10.0, 10.0, 5.0]])  # two parameters and a statistic


def test_each_cluster_has_moments_that_follow_its_model_and_statistics_are_averaged() -> None:
    moments: dict[bytes, Tensor] = {}
    first = OptimizedMean(Momentum(beta=0.5), moments, trained=2)
    one = mean_by(torch.tensor([0, 1]), with_aggregator(reply([1, 0, 7], [10, 14, 9]), first), torch.ones(2), CENTERS)
    close(one, [[1.0, 0.0, 7.0], [10.0, 14.0, 9.0]])  # v = D
    moments = dict(kept(moments, [one]))
    close(moments[fingerprint(one[0])], [[1.0, 0.0]])
    close(moments[fingerprint(one[1])], [[0.0, 4.0]])
    # The clusters change their numbers; only that of the second model has a client. v = 0.5 * 4 + 1.
    before, swapped = moments, one[[1, 0]]
    second = OptimizedMean(Momentum(beta=0.5), moments := dict(before), trained=2)
    two = mean_by(torch.tensor([0]), with_aggregator(reply([10, 15, 3]), second), torch.ones(1), swapped)
    close(two, [[10.0, 17.0, 3.0], [1.0, 0.0, 7.0]])
    found = kept(moments, [two])
    assert len(found) == 2  # the one that nobody answered for keeps its model and its moments; the old one is dropped
    close(found[fingerprint(two[1])], [[1.0, 0.0]])
    close(found[fingerprint(two[0])], [[0.0, 3.0]])
    # If the method did not go on with the new models, the moments of the old ones are there.
    assert set(kept(moments, [swapped])) == set(before)


def with_aggregator(found: Fitted, aggregator: OptimizedMean) -> Fitted:
    return Fitted(found.ids, found.n, found.loss, found.sent, aggregator=aggregator)


def test_two_clusters_that_were_one_go_on_with_its_moments() -> None:
    before = torch.tensor([1.0, 2.0])
    mean = OptimizedMean(Momentum(beta=0.5), {fingerprint(before): torch.tensor([[4.0, 0.0]])}, trained=2)
    both = before.repeat(2, 1)
    new = mean_by(torch.tensor([0, 1]), with_aggregator(reply([2, 2], [1, 3]), mean), torch.ones(2), both)
    close(new, [[1 + 2 + 1, 2.0], [1 + 2.0, 3.0]])


def test_it_goes_around_another_aggregator() -> None:
    def largest(labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        assert reply.aggregator is largest
        return reply.models.max(0).values[None]

    mean = OptimizedMean(Momentum(beta=0.5, eta=2.0), {}, trained=2, inner=largest)
    new = mean_by(torch.zeros(2).long(), with_aggregator(reply([1, 0], [0, 3]), mean), torch.ones(2), torch.zeros(1, 2))
    close(new, [[2.0, 6.0]])
    assert not mean.also_of_nobody


@pytest.mark.parametrize("many", [0, 1, 3])
def test_moments_are_packed_and_unpacked(many: int) -> None:
    moments = {fingerprint(torch.full((4,), float(i))): torch.rand(2, 4) for i in range(many)}
    layer, again = Optimized(Adam()), Optimized(Adam())
    layer.moments = moments
    again.unpack(layer.pack(), ())
    assert again.moments.keys() == moments.keys()
    assert all(torch.equal(again.moments[key], moments[key]) for key in moments)
