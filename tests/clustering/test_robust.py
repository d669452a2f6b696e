"""Robust means: by hand, against byzfl's where it is installed, and what they are for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.clustering import robust
from coterie.layers.robust import SUMS, Robust

ONES = torch.ones(5)
ROWS = torch.tensor([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, -50.0], [100.0, 4.0]])


def test_a_trimmed_mean_by_hand() -> None:
    """Without 0 and 100: (1 + 2 + 3) / 3. Without -50 and 4: (1 + 2 + 3) / 3."""
    assert robust.trimmed_mean(ROWS, 1, ONES).tolist() == [2.0, 2.0]


def test_weights_count_among_those_that_are_left() -> None:
    """(1 * 2 + 2 * 1 + 3 * 1) / 4, and the second coordinate keeps clients 0, 1, 2: (1 * 1 + 2 * 2 + 3 * 1) / 4."""
    assert robust.trimmed_mean(ROWS, 1, torch.tensor([1.0, 2, 1, 1, 9])).tolist() == [1.75, 2.0]


def test_medians_by_hand() -> None:
    assert robust.coordinate_median(ROWS).tolist() == [2.0, 2.0]
    assert robust.coordinate_median(ROWS[:4]).tolist() == [1.5, 1.5]


def test_krum_by_hand() -> None:
    """0, 1, 3, 9 with f = 1: the squares to the two nearest are (1 + 9), (1 + 4), (4 + 9), (36 + 64)."""
    rows = torch.tensor([[0.0], [1.0], [3.0], [9.0]])
    assert (2 * robust.krum_scores(rows, 1)).tolist() == [10.0, 5.0, 13.0, 100.0]
    assert robust.krum(rows, 1).tolist() == [1.0]
    assert robust.multi_krum(rows, 1, torch.tensor([1.0, 1, 2, 7])).tolist() == [(0 + 1 + 6) / 4]


def test_clipping_by_hand() -> None:
    """|[6, 8]| = 10 becomes 5: [3, 4]. The mean with [1, 0] is [2, 2]."""
    rows = torch.tensor([[6.0, 8.0], [1.0, 0.0]])
    assert robust.clipped_mean(rows, torch.ones(2), 5.0).tolist() == [2.0, 2.0]
    assert robust.centered_clipping(rows, torch.ones(2), 5.0).tolist() == [2.0, 2.0]


def test_the_geometric_median_of_points_on_a_line_is_the_middle_one() -> None:
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [1000.0]], dtype=torch.float64)
    assert abs(float(robust.geometric_median(rows, ONES, steps=200)) - 2) < 1e-3


def test_how_far_a_point_is_from_others_by_hand() -> None:
    """0, 1, 3, 9: one other within 1, 1, 2, 6; two others within 3, 2, 3, 8."""
    points = torch.tensor([[0.0], [1.0], [3.0], [9.0]])
    assert robust.isolation(points, 1).tolist() == [1.0, 1.0, 2.0, 6.0]
    assert robust.isolation(points, 2).tolist() == [3.0, 2.0, 3.0, 8.0]
    assert robust.isolation(points[:1], 2).tolist() == [0.0]


def test_always_fewer_than_half_may_be_hostile() -> None:
    counts = [(share, n, robust.hostile_count(share, n)) for share, n in ((0.2, 10), (0.2, 4), (0.5, 4), (0.9, 1))]
    assert counts == [(0.2, 10, 2), (0.2, 4, 0), (0.5, 4, 1), (0.9, 1, 0)]


RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "TrMean": lambda rows, ones: robust.trimmed_mean(rows, 3, ones),
    "Median": lambda rows, ones: robust.coordinate_median(rows),
    "GeometricMedian": lambda rows, ones: robust.geometric_median(rows, ones, steps=4, smoothing=0.1),
    "Krum": lambda rows, ones: robust.krum(rows, 3),
    "MultiKrum": lambda rows, ones: robust.multi_krum(rows, 3, ones),
    "CenteredClipping": lambda rows, ones: robust.centered_clipping(rows, ones, 2.0, steps=3),
}
THEIRS: dict[str, dict[str, Any]] = {
    "TrMean": {"f": 3},
    "Median": {},
    "GeometricMedian": {"nu": 0.1, "T": 4},
    "Krum": {"f": 3},
    "MultiKrum": {"f": 3},
    "CenteredClipping": {"L": 3, "tau": 2.0},
}


def byzfl_rules() -> Any:
    """byzfl's own module of rules; the package's __init__ would import torchvision for its benchmarks."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None:
            pytest.skip("byzfl is not installed (pip install --no-deps byzfl)")
        package = types.ModuleType("byzfl")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.aggregators.aggregators")


@pytest.mark.parametrize("n", [10, 11])
@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_same_values_as_byzfl(rule: str, n: int) -> None:
    theirs = getattr(byzfl_rules(), rule)(**THEIRS[rule])
    rows = torch.randn(n, 7, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    rows[:2] *= 20
    mine = RULES[rule](rows, torch.ones(n))
    torch.testing.assert_close(mine.numpy(), theirs(rows.numpy()), rtol=1e-12, atol=1e-12)


def test_mixing_is_byzfls() -> None:
    byzfl_rules()
    theirs = importlib.import_module("byzfl.aggregators.preaggregators").NNM(3)
    rows = torch.randn(10, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(robust.mixed(rows, 3, torch.ones(10)).numpy(), theirs(rows.numpy()))


def test_each_row_becomes_the_mean_of_those_nearest_to_it() -> None:
    """0, 1, 3 and 10, the three nearest of each; the last weighs twice."""
    points = torch.tensor([[0.0], [1.0], [3.0], [10.0]], dtype=torch.float64)
    found = robust.mixed(points, 1, torch.tensor([1.0, 1.0, 1.0, 2.0]))
    torch.testing.assert_close(found[:, 0], torch.tensor([4 / 3, 4 / 3, 4 / 3, 6.0], dtype=torch.float64))
    assert robust.mixed(points, 0, torch.ones(4)) is points


def test_an_update_that_points_against_all_others_can_be_left_out() -> None:
    """Four of five say 1, 2, 3 and 4, and one says -3. Without it, of so many hostile ones none is left to trim."""
    rows, equal = torch.tensor([[1.0], [2.0], [3.0], [4.0], [-3.0]]), torch.ones(5)
    assert Robust("trimmed-mean", share=0.2).combine(rows, equal, 1.0).tolist() == [2.0]
    assert Robust("trimmed-mean", share=0.2, opposed=False).combine(rows, equal, 1.0).tolist() == [2.5]
    split = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])  # no majority: everyone counts
    assert Robust("median", opposed=False).combine(split, torch.ones(4), 1.0).tolist() == [0.0]


@pytest.mark.parametrize("opposed", [True, False])
@pytest.mark.parametrize("mix", [True, False])
@pytest.mark.parametrize("name", SUMS)
def test_inner_products_give_what_the_steps_give(name: Any, mix: bool, opposed: bool) -> None:
    """Leaving out, mixing and the rule, one after another on the rows."""
    draw = torch.Generator().manual_seed(4)
    rows = torch.randn(11, 40, generator=draw, dtype=torch.float64) + 0.8
    rows[[2, 7]] *= -1
    weights = 1 + torch.rand(11, generator=draw, dtype=torch.float64)

    def alone(some: Tensor, weigh: Tensor) -> Tensor:
        if name == "geometric-median":
            return robust.geometric_median(some, weigh)
        clipping = robust.clipped_mean if name == "norm-clip" else robust.centered_clipping
        return clipping(some, weigh, 4.0, **({} if name == "norm-clip" else {"steps": 8}))

    kept, f = rows, 2  # a fifth of eleven
    if not opposed:
        along = rows @ alone(rows, weights) > 0
        assert along.tolist() == [row not in (2, 7) for row in range(11)]
        kept, f = rows[along], 0
    share = weights if opposed else weights[along]
    wanted = alone(robust.mixed(kept, f, share) if mix else kept, share)
    found = Robust(name, share=0.2, mix=mix, opposed=opposed).combine(rows, weights, 4.0)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_one_opposed_of_three_leaves_two_to_mix() -> None:
    """1, 2, 4, 5 and -9, of which two may be hostile: one is left out, and each of the others is the mean of three."""
    rows, equal = torch.tensor([[1.0], [2.0], [4.0], [5.0], [-9.0]], dtype=torch.float64), torch.ones(5)
    found = Robust("norm-clip", share=0.4, mix=True, opposed=False).combine(rows, equal, 100.0)
    torch.testing.assert_close(found, torch.tensor([(7 / 3 + 7 / 3 + 11 / 3 + 11 / 3) / 4], dtype=torch.float64))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_three_of_ten_cannot_move_a_mean_far(rule: str) -> None:
    rows = torch.randn(10, 50, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.2
    rows[7:] = 1e6
    assert float(RULES[rule](rows, torch.ones(10)).abs().max()) < 1


@pytest.mark.parametrize("rule", sorted(RULES))
def test_many_rows_and_parts_of_columns_give_the_same(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(12, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = RULES[rule](rows, torch.ones(12))
    monkeypatch.setattr(robust, "FEW", 2)
    monkeypatch.setattr(robust, "COLUMNS", 12 * 7)
    torch.testing.assert_close(RULES[rule](rows, torch.ones(12)), plain, rtol=1e-10, atol=1e-10)
