"""Sketches keep inner products on average, and sums exactly."""

from __future__ import annotations

import torch

from coterie.core.sketch import sketch


def test_short_vectors_are_kept() -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sketch(x, 8), x)
    assert torch.equal(sketch(x, 10), torch.cat([x, torch.zeros(3, 2)], 1))


def test_it_is_linear_and_the_same_for_everyone() -> None:
    x = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sketch(x[0] + 2 * x[1], 64), sketch(x[0], 64) + 2 * sketch(x[1], 64))
    assert torch.equal(sketch(x, 64)[1], sketch(x[1], 64))


def test_inner_products_survive_on_average() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 5000, generator=g), torch.randn(200, 5000, generator=g)
    y = y + x  # <x, y> is about |x|^2 = 5000
    estimate = (sketch(x, 256) * sketch(y, 256)).sum(1)
    exact = (x * y).sum(1)
    assert abs(float((estimate - exact).mean() / exact.mean())) < 0.03
    assert float((estimate - exact).std() / exact.mean()) < 0.2  # about sqrt(3 / 256)
