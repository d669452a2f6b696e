"""Clients that are mixtures of distributions (FedSoft's setting), and clients as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_partitions import (
    Ints,
    assert_follows_the_seed,
    assert_leaves_the_data_as_it_was,
    assert_nothing_lost_or_doubled,
    assert_official_split_is_kept,
    counts,
    labelled,
    left_over,
    rng,
    totals,
)

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation, Ragged
from coterie.data.partitions.by_client import Natural
from coterie.data.partitions.mixture import Mixture, parts, weights

Floats = NDArray[np.float64]


def mixture(made: Federation) -> Floats:
    assert made.mixture is not None
    return made.mixture


def views(made: Federation, split: Ragged) -> Ints:
    """(clients, domains) how many samples a client sees through each."""
    found = np.zeros((len(made), len(made.domains)), dtype=np.int64)
    np.add.at(found, (split.owners(), split.numbers.numpy() // len(made.domains[0].y)), 1)
    return found


# ----------------------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("pattern", "clients", "first"),
    [
        ("10:90", 4, [0.1, 0.1, 0.9, 0.9]),
        ("30:70", 4, [0.3, 0.3, 0.7, 0.7]),
        ("10:90", 5, [0.1, 0.1, 0.1, 0.9, 0.9]),
        ("90:10", 2, [0.9, 0.1]),
        ("50:50", 2, [0.5, 0.5]),
        ("10:90", 1, [0.1]),
        ("linear", 4, [0.125, 0.375, 0.625, 0.875]),
        ("linear", 1, [0.5]),
    ],
)
def test_patterns_by_hand(pattern: str, clients: int, first: list[float]) -> None:
    """papers.md 4.3: the first half has 0.1 (0.3) of distribution 0 and the rest of 1, the second half the reverse;
    linear: (k + 0.5) / N of distribution 0."""
    found = weights(pattern, clients, 2, rng())
    assert found[:, 0] == pytest.approx(first)
    assert found.sum(1) == pytest.approx(np.ones(clients))


def test_random_mixtures_are_uniform_over_all() -> None:
    """Gaps of sorted uniform numbers, that is Dirichlet(1, ..., 1): of S = 4 each has mean 1/4 and variance
    (1/4)(3/4) / 5 = 0.0375; of S = 2 the first is uniform, so a tenth lies below 0.1."""
    four = weights("random", 20_000, 4, rng())
    assert four.sum(1) == pytest.approx(np.ones(20_000))
    assert four.mean(0) == pytest.approx(np.full(4, 0.25), abs=0.006)
    assert four.var(0) == pytest.approx(np.full(4, 0.0375), rel=0.05)
    assert (weights("random", 20_000, 2, rng())[:, 0] < 0.1).mean() == pytest.approx(0.1, abs=0.012)


@given(st.integers(1, 4), st.lists(st.integers(0, 500), min_size=1, max_size=8), st.integers(0, 1000))
def test_parts_are_rounded_down_and_the_rest_is_of_the_last(many: int, sizes: list[int], seed: int) -> None:
    wanted = weights("random", len(sizes), many, rng(seed))
    found = parts(np.array(sizes), wanted)
    assert found.sum(1).tolist() == sizes
    exact = np.array(sizes)[:, None] * wanted
    assert np.all((exact[:, :-1] - found[:, :-1] < 1) & (found[:, :-1] <= exact[:, :-1] + 1e-6))
    assert np.all(found[:, -1] >= exact[:, -1] - 1e-6)


def test_whole_parts_are_not_rounded_down() -> None:
    """0.3 * 10, 0.7 * 10 and 0.1 * 90 are whole, whatever floating point makes of them."""
    for a, size in ((0.3, 10), (0.7, 10), (0.1, 90), (0.29, 100), (0.57, 100)):
        assert parts(np.array([size]), np.array([[a, 1 - a]]))[0, 0] == round(a * size)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"pattern": "10:80"}, "'10:80' should add up to 100"),
        ({"pattern": "10:90", "angles": (0.0, 90.0, 180.0)}, "'10:90' mixes two distributions, not 3; write random"),
        ({"pattern": "linear", "groups": ((0,), (1,), (2,))}, "'linear' mixes two distributions, not 3; write random"),
        ({"groups": ((0, 1), (2,))}, "two or more groups with equally many classes each"),
        ({"groups": ((0, 1),)}, "two or more groups with equally many classes each"),
        ({"groups": ((0, 1), (1, 2))}, "a class belongs to one group"),
        ({"groups": ((0, 0), (1, 2))}, "a class belongs to one group"),
        ({"groups": ((0, 1), (2, 7))}, r"toy has classes 0\.\.3, not 7"),
        ({"samples": (100, 100)}, "4,000 samples are wanted of 400; use fewer clients or samples"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Mixture(**params)(labelled([100] * 4, side=2), rng())


def test_only_images_turn_and_only_labels_have_groups() -> None:
    flat = Dataset("flat", torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64), 1)
    with raises("partition-not-applicable"):
        Mixture()(flat, rng())
    targets = Dataset("houses", torch.zeros(40, 1, 2, 2), torch.zeros(40, 1), 1)
    with raises("partition-not-applicable"):
        Mixture(groups=((0,), (1,)))(targets, rng())
    made = Mixture(clients=4)(targets, rng())
    assert (made.kind, len(made.train.numbers) + len(made.test.numbers)) == ("regression", 40)


# ------------------------------------------------------------------------------------------------ mixtures of angles

IMAGES = labelled([100, 110, 90, 100], official=[50, 40, 60, 50], side=2)


@pytest.mark.parametrize(
    ("pattern", "angles"),
    [
        ("10:90", (0.0, 90.0)),
        ("30:70", (0.0, 180.0)),
        ("linear", (0.0, 90.0)),
        ("random", (0.0, 90.0)),
        ("random", (0.0, 90.0, 180.0, 270.0)),
    ],
)
def test_clients_see_as_much_of_each_angle_as_their_mixture_says(pattern: str, angles: tuple[float, ...]) -> None:
    """400 training and 200 test images to 8 clients, 50 and 25 each. Parts are rounded down, so each but the last is
    off by less than one sample, and the last by less than one for each other; test images are cut by the same shares,
    half as many, rounded up or down (at a tie, by a whole sample)."""
    for seed in range(5):
        made = Mixture(clients=8, pattern=pattern, angles=angles)(IMAGES, rng(seed)).check()
        many = len(angles)
        assert mixture(made).shape == (8, many)
        assert mixture(made).sum(1) == pytest.approx(np.ones(8))
        assert_nothing_lost_or_doubled(IMAGES, made)
        assert_official_split_is_kept(IMAGES, made)
        train, test = views(made, made.train), views(made, made.test)
        assert train.sum(1).tolist() == [50] * 8
        assert np.all(np.abs(train - 50 * mixture(made))[:, :-1] < 1)
        assert np.all(np.abs(train - 50 * mixture(made))[:, -1] < many - 1 + 1e-6)
        assert np.all(np.abs(test - train / 2) <= 1)
        assert np.abs(test.sum(1) - 25).max() < 1


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_a_share_is_held_out_of_every_part(share: float) -> None:
    """600 images, 75 for each of 8; of a client's m through one view, its share rounded up or down."""
    data = labelled([150] * 4, side=2)
    made = Mixture(clients=8, pattern="30:70", test=share)(data, rng())
    assert totals(made).tolist() == [75] * 8
    test = views(made, made.test)
    every = views(made, made.train) + test
    assert every[:, 0].tolist() == [22] * 4 + [52] * 4  # 22.5 and 52.5, rounded down
    assert test.sum(1).tolist() == [round(share * 75)] * 8
    assert np.all(np.abs(test - every * round(share * 75) / 75) < 1)


def test_the_truth_of_two_halves_is_the_half_and_other_patterns_have_none() -> None:
    made = Mixture(clients=5, pattern="30:70")(IMAGES, rng())
    assert made.truth is not None
    assert made.truth.tolist() == [0, 0, 0, 1, 1]
    assert "2 true clusters, mixtures of 2 distributions" in made.describe()
    for pattern in ("linear", "random"):
        assert Mixture(clients=5, pattern=pattern)(IMAGES, rng()).truth is None
    one = Mixture(clients=1)(IMAGES, rng())
    assert mixture(one).tolist() == [[0.1, 0.9]]


def test_images_are_turned_by_the_angle_of_their_distribution() -> None:
    """Image [[i, -1], [-2, -3]]; a client's samples through view 1 are turned by 90 degrees, in one list with the
    others."""
    x = torch.tensor([[0.0, -1.0], [-2.0, -3.0]]).repeat(40, 1, 1, 1)
    x[:, 0, 0, 0] = torch.arange(40)
    data = Dataset("toy", x, torch.arange(40) % 3, 3)
    made = Mixture(clients=2, pattern="30:70", test=0.0)(data, rng())
    for client in range(2):
        numbers = made.train.row(client)
        seen, labels = made.samples(client, "train")
        assert int((numbers >= 40).sum()) == (14 if client == 0 else 6)
        for number, image, label in zip(numbers.tolist(), seen, labels.tolist(), strict=True):
            assert torch.equal(image, torch.rot90(x[number % 40], number // 40, (-2, -1)))
            assert label == number % 40 % 3


@pytest.mark.parametrize("samples", [(10, 20), (20, 10), (15, 15)])
def test_sizes_lie_between_the_two_given(samples: tuple[int, int]) -> None:
    """Of training samples where the test set is apart; of all of a client's where a share is held out."""
    data = labelled([500] * 4, official=[500] * 4, side=2)
    wanted = set(range(min(samples), max(samples) + 1))
    made = Mixture(clients=100, samples=samples)(data, rng())
    assert set(made.train.lengths.tolist()) == wanted
    assert_nothing_lost_or_doubled(data, made)
    assert left_over(made) == 4000 - int(totals(made).sum())
    assert set(totals(Mixture(clients=100, samples=samples, test=0.2)(data, rng())).tolist()) == wanted


@pytest.mark.parametrize(
    "partition", [Mixture(clients=8), Mixture(clients=8, groups=((0, 1), (3, 2)), samples=(9, 20))]
)
def test_the_same_seed_gives_the_same_mixtures(partition: Mixture) -> None:
    assert_follows_the_seed(partition, IMAGES)
    assert_leaves_the_data_as_it_was(partition, IMAGES)


# ------------------------------------------------------------------------------------------------ mixtures of classes


@pytest.mark.parametrize("official", [False, True])
def test_groups_are_called_by_their_place_and_mixed_as_the_mixture_says(official: bool) -> None:
    """Classes 4, 1 and 0, 3 of six are 0 and 1 of their groups (FedSoft: A and a are both 0); 2 and 5 are left over.

    A client has 40 samples: 4 or 36 of the first group, the rest of the second."""
    data = labelled([200] * 6, official=[200] * 6 if official else None)
    made = Mixture(clients=8, groups=((4, 1), (0, 3)), samples=(40, 40), test="auto" if official else 0.2)(data, rng())
    assert made.check().outputs == 2
    split = counts(data, made.train) + (0 if official else counts(data, made.test))
    assert split[:, [4, 1]].sum(1).tolist() == [4] * 4 + [36] * 4
    assert split[:, [0, 3]].sum(1).tolist() == [36] * 4 + [4] * 4
    assert split[:, [2, 5]].sum() == 0
    called = {4: 0, 1: 1, 0: 0, 3: 1}
    for client in range(8):
        for name in ("train", "test"):
            x, y = made.samples(client, name)
            rows = x[:, 0, 0, 0].long()
            assert y.tolist() == [called[c] for c in data.y[rows].tolist()]
    assert_nothing_lost_or_doubled(data, made)
    if official:
        assert_official_split_is_kept(data, made)
        assert counts(data, made.test)[:, [4, 1]].sum(1).tolist() == [4] * 4 + [36] * 4  # as many to test on


def test_of_groups_of_unequal_size_everyone_has_what_the_scarcest_allows() -> None:
    """100 and 300 samples, 50:50 to 4 clients: each distribution is wanted twice, so at most 100 / 2 = 50 each, 25 of
    either."""
    made = Mixture(clients=4, pattern="50:50", groups=((0,), (1,)))(labelled([100, 300]), rng())
    assert totals(made).tolist() == [50] * 4
    assert left_over(made) == 200


@pytest.mark.parametrize("pattern", ["10:90", "linear", "random"])
def test_without_sizes_a_mixture_of_groups_always_finds_some_that_fit(pattern: str) -> None:
    """10 samples of each of two groups to 4 clients, 10:90: 10 / (0.1 + 0.1 + 0.9 + 0.9) = 5 each would be 0, 0, 4, 4
    of the first and 5, 5, 1, 1 of the second: 12 of 10. A size of 4 fits: 0, 0, 3, 3 and 4, 4, 1, 1."""
    for seed in range(20):
        data = labelled([10, 10])
        made = Mixture(clients=4, pattern=pattern, groups=((0,), (1,)))(data, rng(seed))
        assert_nothing_lost_or_doubled(data, made)
        assert len(set(totals(made).tolist())) == 1


def test_a_group_without_samples_is_refused() -> None:
    with raises("partition-impossible"):
        Mixture(clients=4, groups=((0,), (1,)))(labelled([0, 10]), rng())


# ------------------------------------------------------------------------------------------------------------ natural


def owned(owner: list[int], names: tuple[str, ...] | None = None, official: list[int] | None = None) -> Dataset:
    """Sample i has the number i, label i % 2 and this owner."""
    n = len(owner)
    mask = None if official is None else np.isin(np.arange(n), official)
    return Dataset(
        "diaries", torch.arange(n)[:, None], torch.arange(n) % 2, 2, None, mask, np.array(owner, dtype=np.int64), names
    )


def rows(made: Federation) -> list[list[int]]:
    """The samples of each client, training and test together."""
    return [sorted([*made.train.row(c).tolist(), *made.test.row(c).tolist()]) for c in range(len(made))]


def test_every_owner_is_a_client_under_its_name() -> None:
    """Samples in no order: ann has 0, 3, 4, 5, 8, bob 1 and 7, and cy 2, 6 and 9."""
    data = owned([0, 1, 2, 0, 0, 0, 2, 1, 0, 2], ("ann", "bob", "cy"))
    made = Natural(test=0.4)(data, rng()).check()
    assert rows(made) == [[0, 3, 4, 5, 8], [1, 7], [2, 6, 9]]
    assert made.test.lengths.tolist() == [2, 1, 1]  # round(0.4 n): 2, 0.8, 1.2
    assert made.names == ("ann", "bob", "cy")
    assert (made.name, made.note, made.truth) == ("diaries", "", None)
    assert Natural()(owned([0, 0, 1, 1]), rng()).names is None


def test_owners_with_too_few_samples_are_left_out_and_that_is_said() -> None:
    """bob has 2, cy 3, ann 5; dan, who has none, is never a client. Those who stay keep their names."""
    data = owned([0, 1, 2, 0, 0, 0, 2, 1, 0, 2], ("ann", "bob", "cy"))
    made = Natural(at_least=3)(data, rng())
    assert rows(made) == [[0, 3, 4, 5, 8], [2, 6, 9]]
    assert made.names == ("ann", "cy")
    assert made.describe().endswith("1 client with too few samples left out")
    assert rows(Natural(at_least=5)(data, rng())) == [[0, 3, 4, 5, 8]]
    gap = Natural(at_least=1)(owned([0, 0, 2], ("ann", "dan", "cy")), rng())
    assert (rows(gap), gap.names) == ([[0, 1], [2]], ("ann", "cy"))


def test_so_many_owners_are_drawn_at_random() -> None:
    """3 of 10: in the order of the data set, all different, others with another seed; only of those with enough."""
    data = owned([*np.repeat(np.arange(10), 4).tolist(), 10], tuple("abcdefghijk"))
    met = set()
    for seed in range(20):
        made = Natural(clients=3)(data, rng(seed))
        assert made.names is not None
        assert len(set(made.names)) == 3
        assert list(made.names) == sorted(made.names)
        assert rows(made) == [[4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i in map("abcdefghijk".index, made.names)]
        met |= set(made.names)
    assert met == set("abcdefghij")  # k has one sample
    assert len(Natural(clients=10)(data, rng())) == 10
    with raises("partition-impossible", match=r"data\.partition\.clients: diaries has 10 clients, not 11"):
        Natural(clients=11)(data, rng())


def test_the_official_split_is_kept_and_who_has_nothing_to_train_on_is_left_out() -> None:
    """Samples 1, 4 and 5 are for testing: of ann's 0, 1, 2, of bob's 3, 4; cy has only 5 and 6, dan only 7 (test)."""
    data = owned([0, 0, 0, 1, 1, 2, 2, 3], ("ann", "bob", "cy", "dan"), official=[1, 4, 5, 7])
    for partition in (Natural(at_least=1), Natural(at_least=1, test="official")):
        made = partition(data, rng())
        assert [made.train.row(c).tolist() for c in range(3)] == [[0, 2], [3], [6]]
        assert [made.test.row(c).tolist() for c in range(3)] == [[1], [4], [5]]
        assert made.names == ("ann", "bob", "cy")
    shared = Natural(test=0.5)(data, rng())  # the official one set aside: round(0.5 n) of each
    assert rows(shared) == [[0, 1, 2], [3, 4], [5, 6]]
    assert shared.test.lengths.tolist() == [2, 1, 1]
    with raises("data-split", match="diaries has no official test set"):
        Natural(test="official")(owned([0, 0]), rng())


def test_natural_clients_keep_their_share_of_each_label() -> None:
    """An owner of 60 samples, half of them label 1: 12 are held out, 6 of each label."""
    made = Natural(test=0.2)(owned([0] * 60 + [1] * 30), rng())
    assert [np.bincount(made.test.row(c).numpy() % 2).tolist() for c in range(2)] == [[6, 6], [3, 3]]


def test_natural_works_for_targets() -> None:
    data = Dataset("sensors", torch.zeros(9, 2), torch.arange(9.0)[:, None], 1, client=np.arange(9) // 3)
    made = Natural(test=0.3)(data, rng()).check()
    assert (made.kind, rows(made)) == ("regression", [[0, 1, 2], [3, 4, 5], [6, 7, 8]])


def test_without_owners_there_is_an_error_that_names_another_way() -> None:
    with raises("partition-not-applicable", match=r"data\.partition\.name=iid"):
        Natural()(labelled([10]), rng())


def test_natural_follows_its_seed() -> None:
    data = owned(np.repeat(np.arange(10), 20).tolist())
    assert_follows_the_seed(Natural(), data)
    assert_leaves_the_data_as_it_was(Natural(clients=4), data)


def test_the_test_samples_of_an_owner_are_drawn_at_random() -> None:
    """2 of 10 samples of one label: 45 pairs. 200 seeds should meet most of them."""
    data = Dataset("toy", torch.zeros(10, 1), torch.zeros(10, dtype=torch.int64), 1, client=np.zeros(10, np.int64))
    met = {tuple(Natural(test=0.2)(data, rng(seed)).test.numbers.tolist()) for seed in range(200)}
    assert len(met) > 30
