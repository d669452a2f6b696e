"""Whether a client's data has changed, by its two halves then and now: by hand, and how often noise alone says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.clustering.halves import has_changed, moved_by, noise_of


def test_by_hand() -> None:
    """a' - a = (3, 1), b' - b = (2, -1): 5. Apart: |(0, 2)|^2 = 4 then, |(1, 4)|^2 = 17 now; (4 + 17) / 8."""
    then, now = torch.tensor([[[1.0, 2.0], [1.0, 0.0]]]), torch.tensor([[[4.0, 3.0], [3.0, -1.0]]])
    assert moved_by(then, now).tolist() == [5.0]
    assert noise_of(then, now).tolist() == [2.625]
    assert has_changed(then, now).tolist() == [True]


def test_halves_that_do_not_agree_on_where_it_went_say_nothing() -> None:
    """One half has gone far, the other not at all or to the opposite side: that is noise, not a change."""
    then = torch.zeros(2, 2, 2)
    now = torch.tensor([[[9.0, 0.0], [0.0, 0.0]], [[9.0, 0.0], [-9.0, 0.0]]])
    assert moved_by(then, now).tolist() == [0.0, -81.0]
    assert has_changed(then, now).tolist() == [False, False]


def test_the_same_looks_say_no_change() -> None:
    looks = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(0))
    assert not has_changed(looks, looks).any()
    assert not has_changed(torch.zeros(3, 2, 4), torch.zeros(3, 2, 4)).any()  # nor where nothing was ever learnt


def noise(many: int, m: int, seed: int) -> Tensor:
    return torch.randn(many, 2, m, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("m", "rate"), [(4, 0.32), (10, 0.24), (20, 0.16), (50, 0.06), (100, 0.01)])
def test_the_rate_of_false_alarms(m: int, rate: float) -> None:
    """Fresh samples of the same distribution, with the same noise in m directions: as the module says."""
    found = float(has_changed(noise(20_000, m, 1), noise(20_000, m, 2)).double().mean())
    assert found == pytest.approx(rate, abs=0.01)


def test_the_estimate_is_without_bias() -> None:
    """u' - u = (3, 4, 0, ...): 25 on average, whatever the noise; else 0. The noise of the mean is m / 2."""
    step = torch.zeros(20)
    step[:2] = torch.tensor([3.0, 4.0])
    then, now = noise(20_000, 20, 3), noise(20_000, 20, 4)
    assert float(moved_by(then, now + step).mean()) == pytest.approx(25.0, abs=0.4)
    assert float(moved_by(then, now).mean()) == pytest.approx(0.0, abs=0.2)
    assert float(noise_of(then, now + step).mean()) == pytest.approx(10.0, abs=0.1)
    assert float(has_changed(then, now + step).double().mean()) > 0.8
