"""A part of a data set, spread by another partition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_partitions import assert_follows_the_seed, assert_leaves_the_data_as_it_was, counts, labelled, rng, totals

from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.partitions.by_client import Subsample, sampled
from coterie.data.partitions.by_cluster import Rotated

PLAIN = labelled([120, 130, 110, 125, 115])
SPLIT = labelled([120, 130, 110, 125, 115], official=[24, 26, 22, 25, 23])


def test_so_many_samples_of_each_set_and_none_twice() -> None:
    part = sampled(SPLIT, 200, 50, rng())
    assert part.official is not None
    assert (int((~part.official).sum()), int(part.official.sum())) == (200, 50)
    numbers = part.x[:, 0, 0, 0].numpy()  # image i holds the number i
    assert len(set(numbers.tolist())) == 250
    assert SPLIT.official is not None
    assert np.array_equal(SPLIT.official[numbers], part.official)
    assert torch.equal(SPLIT.y[torch.from_numpy(numbers).long()], part.y)


def test_without_an_official_test_set_all_samples_are_one_pool() -> None:
    part = sampled(PLAIN, 77, None, rng())
    assert len(part.y) == 77
    assert part.official is None
    with pytest.raises(CoterieError, match=r"test_samples: toy has no official test set"):
        sampled(PLAIN, 77, 10, rng())


def test_all_official_test_samples_stay_unless_told() -> None:
    part = sampled(SPLIT, 10, None, rng())
    assert part.official is not None
    assert int(part.official.sum()) == 120


@pytest.mark.parametrize(("samples", "test"), [(601, 10), (10, 121)])
def test_more_than_there_are(samples: int, test: int) -> None:
    with pytest.raises(CoterieError, match=r"samples are wanted, toy has (600|120)"):
        sampled(SPLIT, samples, test, rng())


def test_owners_go_with_their_samples() -> None:
    owner = np.arange(len(PLAIN.y)) % 7
    data = Dataset("toy", PLAIN.x, PLAIN.y, 5, official=None, client=owner, validation=owner == 3)
    part = sampled(data, 100, None, rng())
    assert part.client is not None
    assert part.validation is not None
    assert np.array_equal(part.client, part.x[:, 0, 0, 0].numpy() % 7)
    assert np.array_equal(part.validation, part.client == 3)


def test_spread_as_the_other_partition_does() -> None:
    inner = {"name": "rotated", "clients": 10, "angles": [0, 180]}
    made = Subsample(partition=inner, samples=200, test_samples=50)(SPLIT, rng()).check()
    assert len(made) == 10
    assert made.truth is not None
    assert made.truth.tolist() == [0] * 5 + [1] * 5
    assert made.train.lengths.tolist() == [20] * 10
    assert made.test.lengths.tolist() == [5] * 10
    whole = Rotated(clients=10, angles=(0.0, 180.0))(sampled(SPLIT, 200, 50, rng()), rng(1))
    assert whole.name == made.name


def test_a_name_is_enough() -> None:
    made = Subsample(samples=80)(PLAIN, rng())
    assert totals(made).sum() == 80
    assert len(made) == 40


def test_classes_keep_their_numbers() -> None:
    made = Subsample(partition={"name": "iid", "clients": 4}, samples=300, test_samples=60)(SPLIT, rng())
    part = sampled(SPLIT, 300, 60, rng())
    assert np.array_equal(counts(part, made.train).sum(0), np.bincount(part.y[~part.official]))  # type: ignore[operator]


def test_the_same_seed_gives_the_same_part() -> None:
    partition = Subsample(partition={"name": "dirichlet", "clients": 5, "alpha": 1.0}, samples=300)
    assert_follows_the_seed(partition, SPLIT)
    assert_leaves_the_data_as_it_was(partition, SPLIT)


def test_an_unknown_partition_is_told() -> None:
    with pytest.raises(CoterieError, match=r"unknown partition 'rotatet'.*rotated"):
        Subsample(partition="rotatet", samples=100)(PLAIN, rng())
