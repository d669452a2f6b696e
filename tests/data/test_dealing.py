"""Dealing: who is held out, how strata are cut, how shares are drawn, drawn again and mended."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.core.settings import TestSplit
from coterie.data.dataset import Dataset
from coterie.data.partitions.dealing import (
    FEW,
    HELD_OUT,
    PATIENCE,
    TRIES,
    Floats,
    Ints,
    Pools,
    cut,
    drawn,
    equal,
    held_out,
    keys,
    log_choice,
    log_gamma,
    normalised,
)

SHARES = [0.0, 0.1, 0.2, 1 / 3, 0.5, 0.9, 0.99]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ints(values: object) -> Ints:
    return np.asarray(values, dtype=np.int64)


def one_pool(*sizes: int) -> Pools:
    """So many samples of class 0, 1, ...; nothing apart."""
    key = np.repeat(np.arange(len(sizes)), sizes)
    return Pools((np.arange(len(key)),), key, 0.2)


def two_pools(train: list[int], test: list[int]) -> Pools:
    key = np.concatenate([np.repeat(np.arange(len(train)), train), np.repeat(np.arange(len(test)), test)])
    rows = np.arange(len(key))
    return Pools((rows[: sum(train)], rows[sum(train) :]), key, 0.0)


def dealt(pools: Pools, shares: Floats, pool: int = 0) -> Ints:
    """(strata, slots) how many samples of each class of a pool a slot gets, counted after cutting."""
    key = pools.key[pools.rows[pool]]
    slots = cut(key, shares, rng())
    found = np.zeros(shares.shape, dtype=np.int64)
    np.add.at(found, (key[slots >= 0], slots[slots >= 0]), 1)
    return found


# ------------------------------------------------------------------------------------------------------ held out


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=60), st.sampled_from(SHARES), st.integers(0))
def test_of_each_client_the_share_is_held_out_but_one_sample_stays(
    samples: list[tuple[int, int]], share: float, seed: int
) -> None:
    """Exactly min(round(share n), n - 1) of n, whoever has how many; a client without samples has nothing to give."""
    owner, key = ints([o for o, _ in samples]), ints([k for _, k in samples])
    held = held_out(owner, key, 7, share, rng(seed))
    for client in range(7):
        n = int((owner == client).sum())
        assert int(held[owner == client].sum()) == max(min(round(share * n), n - 1), 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=60), st.sampled_from(SHARES), st.integers(0))
def test_what_is_held_out_is_spread_evenly_over_the_keys(
    samples: list[tuple[int, int]], share: float, seed: int
) -> None:
    """Of m samples of a key, of a client that gives h of its n: m h / n, rounded up or down."""
    owner, key = ints([o for o, _ in samples]), ints([k for _, k in samples])
    held = held_out(owner, key, 3, share, rng(seed))
    for client in range(3):
        mine = owner == client
        for k in range(4):
            these = mine & (key == k)
            expected = Fraction(int(these.sum()) * int(held[mine].sum()), max(int(mine.sum()), 1))
            assert abs(int(held[these].sum()) - expected) < 1


def test_every_sample_is_as_likely_to_be_held_out() -> None:
    """Of 10 samples 3, over 2,000 seeds: each in 600 of them, give or take 5 standard deviations of 20.5."""
    times = np.zeros(10)
    for seed in range(2000):
        times += held_out(ints([0] * 10), ints([0, 0, 1, 1, 1, 1, 2, 2, 2, 2]), 1, 0.3, rng(seed))
    assert times.sum() == 6000
    assert np.abs(times - 600).max() < 5 * 20.5


# ------------------------------------------------------------------------------------------------------- cutting


@st.composite
def strata_and_shares(draw: st.DrawFn) -> tuple[Ints, Floats]:
    """Samples in up to four strata (-1: none), in any order, and shares that add up to at most one."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    slots = draw(st.integers(1, 8))
    generator = rng(draw(st.integers(0, 10**6)))
    strata = generator.permutation(np.repeat(np.arange(-1, len(sizes)), [draw(st.integers(0, 5)), *sizes]))
    weights = generator.random((len(sizes), slots)) ** draw(st.sampled_from([0.0, 1.0, 10.0]))
    return strata, weights / weights.sum(1, keepdims=True) * draw(st.sampled_from([0.5, 1.0]))


@given(strata_and_shares(), st.integers(0))
def test_a_cut_is_off_by_less_than_one_sample(case: tuple[Ints, Floats], seed: int) -> None:
    """A slot gets its share of a stratum, rounded up or down; of a stratum with shares of 1 in all nothing stays."""
    strata, shares = case
    slots = cut(strata, shares, rng(seed))
    assert len(slots) == len(strata)
    assert np.all(slots[strata < 0] == -1)
    for stratum, row in enumerate(shares):
        mine = slots[strata == stratum]
        found = np.bincount(mine[mine >= 0], minlength=len(row))
        assert np.all(np.abs(found - row * len(mine)) < 1 + 1e-9)
        assert abs(found.sum() - row.sum() * len(mine)) < 1
        if row.sum() > 0.99:
            assert found.sum() == len(mine)


def test_whole_numbers_are_cut_exactly() -> None:
    """1,000 slots of 0 to 20 samples each, asked for as fractions of their total: nobody is off by even one."""
    wanted = rng(3).integers(0, 21, 1000)
    size = int(wanted.sum())
    slots = cut(np.zeros(size, dtype=np.int64), wanted[None] / size, rng())
    assert np.array_equal(np.bincount(slots, minlength=1000), wanted)


def test_which_samples_a_slot_gets_is_drawn_anew() -> None:
    """Four slots of 25: two seeds agree on a sample about once in four times (25 of 100), not always."""
    one, same, other = (cut(np.zeros(100, dtype=np.int64), equal(4), rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert 5 < (one == other).sum() < 50
    assert len(np.unique(one[:25])) > 1  # not in the order of the samples


# --------------------------------------------------------------------------------------------------------- pools


def data(official: NDArray[np.bool_] | None = None) -> Dataset:
    return Dataset("toy", torch.zeros(20, 1), torch.arange(20) % 2, 2, official=official)


def test_without_a_word_the_official_test_set_is_kept_apart_else_a_fifth_is_held_out() -> None:
    official = np.arange(20) >= 15
    tests: list[TestSplit] = ["auto", "official"]
    for test in tests:
        pools = Pools.of(data(official), test, rng())
        assert [rows.tolist() for rows in pools.rows] == [list(range(15)), list(range(15, 20))]
    assert [rows.tolist() for rows in Pools.of(data(official), 0.3, rng()).rows] == [list(range(20))]
    assert Pools.of(data(official), 0.3, rng()).share == 0.3
    assert Pools.of(data(), "auto", rng()).share == HELD_OUT == 0.2
    with raises("data-split", match=r"data\.partition\.test: toy has no official test set; write a share"):
        Pools.of(data(), "official", rng())


def test_samples_that_are_dealt_more_than_once_are_split_first() -> None:
    """round(0.3 * 20) = 6 test samples, three of each of the two labels; without a share there is nothing to split."""
    train, test = Pools.of(data(), 0.3, rng(), apart=True).rows
    assert sorted([*train, *test]) == list(range(20))
    assert np.bincount(test % 2).tolist() == [3, 3]
    assert len(Pools.of(data(), 0.0, rng(), apart=True).rows) == 1


def test_targets_have_no_labels() -> None:
    assert keys(Dataset("toy", torch.zeros(3, 1), torch.ones(3, 2), 2)).tolist() == [0, 0, 0]


def test_enough_counts_what_would_be_dealt() -> None:
    """Class 0 has 6 samples, shared 1/2, 1/2, 0; class 1 has 4, shared 0, 1/4, 3/4: slots get 3, 3 + 1 and 3."""
    shares = np.array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    assert one_pool(6, 4).enough(shares, np.arange(2), 4).tolist() == [False, True, False]
    assert one_pool(6, 4).enough(shares, np.arange(2), 3).tolist() == [True, True, True]


def test_where_tests_are_apart_everyone_needs_one_to_train_on_and_one_to_test_on() -> None:
    """The third has only of class 1, which has no test samples; the first only of class 0, without training samples."""
    shares = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert two_pools([0, 8], [8, 0]).enough(shares, np.arange(2), 1).tolist() == [False, True, False]


# ------------------------------------------------------------------------------------------------ drawing shares


@pytest.mark.parametrize("alpha", [1e-4, 0.05, 1.0, 1e4])
def test_shares_of_a_class_add_up_to_one_however_small_alpha_is(alpha: float) -> None:
    shares = normalised(log_gamma(alpha, 50, 30, rng()))
    assert np.isfinite(shares).all()
    assert shares.sum(1) == pytest.approx(np.ones(50))
    if alpha < 0.01:  # in the limit a class goes to one slot whole
        assert np.median(shares.max(1)) > 0.999


def test_a_class_that_nobody_wants_goes_to_nobody() -> None:
    assert normalised(np.array([[-np.inf, -np.inf], [-2000.0, -2000.0]])).tolist() == [[0, 0], [0.5, 0.5]]


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_normalised_draws_are_dirichlet(alpha: float) -> None:
    """Of Dirichlet(alpha) over k = 10 a share has mean 1 / k and variance (1 / k) (1 - 1 / k) / (k alpha + 1)."""
    shares = normalised(log_gamma(alpha, 20_000, 10, rng()))
    assert shares.mean(0) == pytest.approx(np.full(10, 0.1), abs=0.012)
    assert shares.var() == pytest.approx(0.09 / (10 * alpha + 1), rel=0.04)


def test_choices_are_different_classes_and_every_class_is_as_likely() -> None:
    """Each slot has 2 of the classes 1, 2, 4: 1 / 3 of 3,000 for each of the three pairs, 5 x 26 at most away."""
    logs = log_choice(2, ints([1, 2, 4]), 5, 3000, rng())
    assert set(np.unique(logs)) == {-np.inf, 0.0}
    chosen = logs == 0.0
    assert chosen.sum(0).tolist() == [2] * 3000
    assert not chosen[[0, 3]].any()
    assert np.abs((~chosen[[1, 2, 4]]).sum(1) - 1000).max() < 5 * 26


def test_only_slots_with_too_little_are_drawn_again() -> None:
    """The first draw gives weights 1, 2, 3, 4; slots 0 and 2 are refused once and drawn as 8 and 8: of 22 in all."""
    draws = [np.log([[1.0, 2.0, 3.0, 4.0]]), np.log([[8.0, 8.0]])]
    asked = []

    def draw(slots: int) -> Floats:
        asked.append(slots)
        return draws.pop(0)

    verdicts = [np.array([False, True, False, True]), np.array([True] * 4)]
    shares = drawn(draw, 4, lambda _: verdicts.pop(0), "clients", "give up")
    assert asked == [4, 2]
    assert shares[0] * 22 == pytest.approx([8, 2, 8, 4])


def test_drawing_ends_with_an_error_that_says_what_to_do() -> None:
    tries = []

    def never(shares: Floats) -> NDArray[np.bool_]:
        tries.append(1)
        return np.arange(shares.shape[1]) < 2

    with raises("partition-impossible", match=rf"after {TRIES} draws 3 of 5 clients .*give up"):
        drawn(lambda slots: np.zeros((1, slots)), 5, never, "clients", "give up")
    assert len(tries) == TRIES


def test_of_many_slots_a_few_are_left_to_be_mended_but_not_at_once() -> None:
    """One in 50 may be left poor: of 100 slots 2, once the draws that everyone gets are over; of 49 slots none."""
    tries = []

    def all_but(poor: int, slots: int) -> Floats:
        def enough(shares: Floats) -> NDArray[np.bool_]:
            tries.append(1)
            return np.arange(slots) >= poor

        return drawn(lambda n: np.zeros((1, n)), slots, enough, "clients", "give up")

    assert FEW == 50
    all_but(2, 100)
    assert len(tries) == PATIENCE + 1
    with raises("partition-impossible", match="3 of 100"):
        all_but(3, 100)
    with raises("partition-impossible", match="1 of 49"):
        all_but(1, 49)


# ------------------------------------------------------------------------------------------------------- mending


def test_mending_takes_from_whoever_has_most_of_the_class_that_is_wanted_most() -> None:
    """Slot 0 has 1 of class 1 and wants 4: it gets 3 of class 1 from slot 2, who has 12; slots 1 and 3 keep theirs."""
    pools = one_pool(20, 20)
    shares = np.array([[0, 10, 5, 5], [1, 5, 12, 2]]) / 20
    after = dealt(pools, pools.mended(shares, np.arange(2), 4))
    assert after.tolist() == [[0, 10, 5, 5], [4, 5, 9, 2]]


@given(st.lists(st.integers(3, 60), min_size=1, max_size=4), st.integers(2, 9), st.booleans(), st.integers(0, 10**6))
def test_mending_gives_to_the_poor_and_changes_no_third_party(
    sizes: list[int], slots: int, choice: bool, seed: int
) -> None:
    """Where it can be done: everyone has enough, nobody who had enough gains, and no class gains or loses samples.

    Whoever loses had most of that class: no more of a class goes than its poor get.
    """
    pools, strata, generator = one_pool(*sizes), np.arange(len(sizes)), rng(seed)
    if choice:
        logs = log_choice(max(1, len(sizes) - 1), strata, len(sizes), slots, generator)
    else:
        logs = log_gamma(0.5, len(sizes), slots, generator)
    shares = normalised(logs)
    kept = shares.copy()
    poor = ~pools.enough(shares, strata, 3)
    before = dealt(pools, shares)
    mended, said = None, ""
    try:
        mended = pools.mended(shares, strata, 3)
    except CoterieError as error:
        said = str(error)
    assert np.array_equal(shares, kept)  # what was given is not changed
    if mended is None:
        assert said.endswith("too few samples; use fewer clients or a smaller at_least")
        return
    after = dealt(pools, mended)
    assert after.sum(0).min() >= 3
    change = after - before
    assert change.sum(1).tolist() == [0] * len(sizes)
    assert np.all(change[:, ~poor] <= 0)
    assert np.all(change[:, poor].sum(0) == 3 - before[:, poor].sum(0))
    assert mended[:, ~(change != 0).any(0)] == pytest.approx(kept[:, ~(change != 0).any(0)])


def test_mending_gives_samples_to_test_on_too() -> None:
    """Class 0: 40 to train on and 4 to test on. Slot 0's 1/40 is no test sample (0.1): it gets one of slot 1's four."""
    pools = two_pools([40], [4])
    shares = np.array([[1, 39]]) / 40
    mended = pools.mended(shares, np.arange(1), 1)
    assert dealt(pools, mended, 1).tolist() == [[1, 3]]
    assert pools.enough(mended, np.arange(1), 1).all()


def test_mending_that_cannot_be_done_names_a_client() -> None:
    with raises("partition-impossible", match="2 of 3 clients, client 0 first"):
        one_pool(4).mended(np.array([[0.0, 0.0, 1.0]]), np.arange(1), 3)
