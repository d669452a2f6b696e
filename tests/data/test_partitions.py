"""What every partition promises, and the client-wise ones: iid, quantity, dirichlet, classes, power-law."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from conftest import examples, raises
from coterie.core.errors import CoterieError
from coterie.core.registry import NO_CODE, PARTITIONS
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation, Ragged
from coterie.data.partitions.by_client import IID, Classes, Dirichlet, PowerLaw, Quantity
from coterie.data.partitions.by_cluster import ClusterClasses, ClusterDirichlet
from coterie.data.scale import Scale

Partition = Callable[[Dataset, np.random.Generator], Federation]
Ints = NDArray[np.int64]

MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)  # images of each digit, both sets together


# -------------------------------------------------------------------------------------- shared with the other files


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labelled(sizes: Sequence[int], official: Sequence[int] | None = None, side: int = 1) -> Dataset:
    """So many samples of class 0, 1, ... and, after them, of an official test set; image i holds the number i."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    test = np.repeat(np.arange(len(sizes)), [0] * len(sizes) if official is None else official)
    y = np.concatenate([y, test])
    x = torch.arange(len(y), dtype=torch.int32).view(-1, 1, 1, 1).expand(-1, 1, side, side)
    mask = None if official is None else np.arange(len(y)) >= sum(sizes)
    return Dataset("toy", x, torch.from_numpy(y), len(sizes), Scale(), mask)


def counts(data: Dataset, split: Ragged) -> Ints:
    """(clients, classes) how many samples of each class, as the data set calls them, a client has of a split."""
    found = np.zeros((len(split), data.classes), dtype=np.int64)
    np.add.at(found, (split.owners(), data.y.numpy()[split.numbers.numpy() % len(data.y)]), 1)
    return found


def totals(made: Federation) -> Ints:
    """(clients,) samples, training and test together."""
    return np.asarray((made.train.lengths + made.test.lengths).numpy())


def left_over(made: Federation) -> int:
    """What the federation says nobody has."""
    said = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) samples left over", made.note)]
    return sum(said)


def assert_nothing_lost_or_doubled(data: Dataset, made: Federation) -> None:
    """Every sample at most once over all clients, both splits and all views; what is missing is said."""
    numbers = torch.cat([made.train.numbers, made.test.numbers]).numpy()
    assert numbers.min() >= 0
    assert numbers.max() < sum(len(domain.y) for domain in made.domains)
    rows = numbers % len(data.y)
    assert len(np.unique(rows)) == len(rows) == len(data.y) - left_over(made)
    assert len(made.train) == len(made.test) == len(made)


def assert_follows_the_seed(partition: Partition, data: Dataset) -> None:
    """The same seed, the same federation; another seed, another."""
    one, same, other = (partition(data, rng(seed)) for seed in (1, 1, 2))
    for split in ("train", "test"):
        mine, twin, stranger = (getattr(made, split) for made in (one, same, other))
        assert torch.equal(mine.numbers, twin.numbers)
        assert torch.equal(mine.ends, twin.ends)
        assert not (torch.equal(mine.numbers, stranger.numbers) and torch.equal(mine.ends, stranger.ends))
    assert one.describe() == same.describe()
    assert one.checksum() == same.checksum() != other.checksum()


def assert_leaves_the_data_as_it_was(partition: Partition, data: Dataset) -> None:
    x, y = data.x.clone(), data.y.clone()
    arrays = [None if a is None else a.copy() for a in (data.official, data.client)]
    partition(data, rng())
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)
    for now, before in zip((data.official, data.client), arrays, strict=True):
        assert (now is None) == (before is None)
        assert now is None or before is None or np.array_equal(now, before)


def assert_official_split_is_kept(data: Dataset, made: Federation) -> None:
    """Nobody trains on the official test set, nobody is tested on the training set."""
    assert data.official is not None
    assert not data.official[made.train.numbers.numpy() % len(data.y)].any()
    assert data.official[made.test.numbers.numpy() % len(data.y)].all()


def assert_same_proportions(data: Dataset, made: Federation, within: float = 1.0) -> None:
    """Cut by the same shares, train and test are each off by less than `within` samples of a class: the shares of
    the two sets that a client has differ by less than within / size + within / size."""
    assert data.official is not None
    sizes = [np.bincount(data.y.numpy()[part], minlength=data.classes) for part in (~data.official, data.official)]
    shares = [counts(data, split) / size for split, size in zip((made.train, made.test), sizes, strict=True)]
    assert np.all(np.abs(shares[0] - shares[1]) <= within / sizes[0] + within / sizes[1] + 1e-9)


def assert_share_held_out(data: Dataset, made: Federation, share: float) -> None:
    """Of a client's n samples h = min(round(share n), n - 1), of its m of a label m h / n, rounded up or down: within
    one sample of m h / n, which is within half a sample of the share of m."""
    test = counts(data, made.test)
    every = counts(data, made.train) + test
    held, n = test.sum(1), every.sum(1)
    assert held.tolist() == [min(round(share * int(k)), int(k) - 1) for k in n]
    assert np.all(np.abs(test - every * (held / n)[:, None]) < 1)


# -------------------------------------------------------------------------------------------------- every one of them

CLIENTWISE: list[Partition] = [
    IID(clients=20),
    Quantity(clients=20),
    Dirichlet(clients=20),
    Dirichlet(clients=20, poor="drop"),
    Classes(clients=20),
    PowerLaw(clients=20),
    PowerLaw(clients=20, test="official"),
]
PLAIN = labelled([120, 130, 110, 125, 115])
SPLIT = labelled([120, 130, 110, 125, 115], official=[24, 26, 22, 25, 23])


@pytest.mark.parametrize("partition", CLIENTWISE, ids=repr)
def test_nothing_is_lost_or_doubled(partition: Partition) -> None:
    for seed in range(5):
        made = partition(SPLIT, rng(seed))
        assert_nothing_lost_or_doubled(SPLIT, made)
        assert made.check().outputs == 5
        assert made.truth is None  # no clusters to be found


@pytest.mark.parametrize("partition", CLIENTWISE, ids=repr)
def test_the_same_seed_gives_the_same_split(partition: Partition) -> None:
    assert_follows_the_seed(partition, SPLIT)
    assert_leaves_the_data_as_it_was(partition, SPLIT)


def test_a_partition_that_deals_by_labels_refuses_a_regression() -> None:
    """All there are by name, but those that do not look at labels."""
    targets = Dataset("houses", torch.zeros(200, 1, 2, 2), torch.rand(200, 1), 1)
    indifferent = {"iid", "quantity", "rotated", "mixture", "hybrid", "natural", "subsample", "corrupted"}
    assert indifferent < set(PARTITIONS.places)
    for name in set(PARTITIONS.places) - indifferent:
        with raises("partition-not-applicable"):
            PARTITIONS.build(name, {}, NO_CODE)(targets, rng())


@pytest.mark.parametrize("partition", [IID(clients=7, test=0.3), Quantity(clients=7, test=0.3)], ids=repr)
def test_targets_are_dealt_like_labels(partition: Partition) -> None:
    data = Dataset("houses", torch.arange(200.0)[:, None], torch.arange(200.0)[:, None] * 2, 1)
    made = partition(data, rng()).check()
    assert_nothing_lost_or_doubled(data, made)
    assert (made.kind, made.outputs) == ("regression", 1)
    for client in range(7):
        x, y = made.samples(client, "train")
        assert torch.equal(y, x * 2)
        n = int(totals(made)[client])
        assert int(made.test.lengths[client]) == round(0.3 * n)


@st.composite
def awkward(draw: st.DrawFn) -> tuple[Dataset, int]:
    """A data set of a few classes, some of them empty, with or without an official test set; and how many clients:
    one, a few, or as many as there are samples."""
    sizes = draw(st.lists(st.integers(0, 25), min_size=1, max_size=5).filter(any))
    official = draw(st.none() | st.lists(st.integers(0, 6), min_size=len(sizes), max_size=len(sizes)))
    data = labelled(sizes, official)
    n = len(data.y)
    return data, draw(st.sampled_from([1, 2, max(n // 3, 1), max(n // 8, 1), n]))


def at_least_or_a_clear_refusal(partition: Any, data: Dataset, seed: int) -> Federation | None:
    made: Federation | None = None
    said = ""
    try:
        made = partition(data, rng(seed))
    except CoterieError as error:
        said = str(error)
    if made is None:
        assert re.match(r"data\.partition.*(fewer clients|smaller at_least|smaller first)", said)
        return None
    assert_nothing_lost_or_doubled(data, made)
    assert len(made) == partition.clients
    assert totals(made).min() >= partition.at_least
    assert int(made.train.lengths.min()) >= 1
    return made


@examples(
    25, 200, awkward(), st.sampled_from([1e-4, 0.05, 0.1, 1.0, 1e4]), st.sampled_from([1, 2, 10]), st.integers(0, 10**6)
)
def test_dirichlet_ends_with_enough_for_everyone_or_says_why_not(
    case: tuple[Dataset, int], alpha: float, least: int, seed: int
) -> None:
    data, clients = case
    partition = Dirichlet(clients=clients, alpha=alpha, at_least=least)
    made = at_least_or_a_clear_refusal(partition, data, seed)
    if made is not None and data.official is not None:
        assert int(made.test.lengths.min()) >= 1


@examples(
    25, 200, awkward(), st.sampled_from([1e-4, 0.1, 1.0, 1e4]), st.sampled_from([1, 2, 10]), st.integers(0, 10**6)
)
def test_quantity_ends_with_enough_for_everyone_or_says_why_not(
    case: tuple[Dataset, int], alpha: float, least: int, seed: int
) -> None:
    data, clients = case
    at_least_or_a_clear_refusal(Quantity(clients=clients, alpha=alpha, at_least=least), data, seed)


@pytest.mark.parametrize(
    "partition",
    [
        Quantity(clients=100, alpha=0.5, at_least=5),
        Dirichlet(clients=100, alpha=0.1, at_least=5),
        ClusterDirichlet(clients=200, clusters=2, between=1.0, within=0.3, at_least=2),
    ],
    ids=repr,
)
def test_where_half_the_mean_is_asked_for_everyone_still_gets_it(partition: Any) -> None:
    """10 or 5 samples in the mean, 5 or 2 at least: drawing again leaves one or two clients poor, who are given the
    rest. (That takes a hundred clients: of fewer none may be left poor.)"""
    data = labelled([100] * 10)
    made = [at_least_or_a_clear_refusal(partition, data, seed) for seed in range(12)]
    assert sum(one is not None for one in made) >= 8


@examples(25, 200, awkward(), st.integers(1, 3), st.integers(0, 10**6))
def test_label_choices_end_with_enough_for_everyone_or_say_why_not(
    case: tuple[Dataset, int], n: int, seed: int
) -> None:
    """However scarce the samples, nobody has more classes than asked for."""
    data, clients = case
    n, clusters = min(n, data.classes), min(3, clients)
    for partition in (
        Classes(clients=clients, n=n, at_least=1),
        ClusterClasses(clients=clients, clusters=clusters, between=data.classes, within=n, at_least=1),
    ):
        made = at_least_or_a_clear_refusal(partition, data, seed)
        if made is not None:
            assert ((counts(data, made.train) + counts(data, made.test)) > 0).sum(1).max() <= n
    at_least_or_a_clear_refusal(ClusterDirichlet(clients=clients, clusters=clusters, at_least=1), data, seed)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("official", [False, True])
def test_a_share_is_held_out_of_every_client_and_label(share: float, official: bool) -> None:
    """Also where there is an official test set: it is then dealt out with the rest."""
    data = SPLIT if official else PLAIN
    for seed in range(3):
        for partition in (
            IID(clients=13, test=share),
            Quantity(clients=13, test=share),
            Dirichlet(clients=13, test=share),
            Classes(clients=13, test=share),
            PowerLaw(clients=13, test=share),
        ):
            made = partition(data, rng(seed))
            assert_nothing_lost_or_doubled(data, made)
            assert_share_held_out(data, made, share)


@pytest.mark.parametrize("test", ["auto", "official"])
def test_an_official_test_set_is_dealt_by_the_same_shares(test: Any) -> None:
    for seed in range(5):
        for partition in (Dirichlet(clients=13, test=test), Classes(clients=13, test=test)):
            made = partition(SPLIT, rng(seed))
            assert_official_split_is_kept(SPLIT, made)
            assert_same_proportions(SPLIT, made)
    assert_official_split_is_kept(SPLIT, IID(clients=13, test=test)(SPLIT, rng()))
    assert_official_split_is_kept(SPLIT, PowerLaw(clients=13, test="official")(SPLIT, rng()))


def test_there_must_be_an_official_test_set_to_ask_for_it() -> None:
    with raises("data-split", match=r"data\.partition\.test: toy has no official test set"):
        IID(clients=2, test="official")(PLAIN, rng())


# --------------------------------------------------------------------------------------------------------------- iid


@given(st.integers(1, 60), st.integers(0, 20), st.integers(1, 60), st.integers(0, 1000))
def test_iid_sizes_differ_by_at_most_one_in_both_splits(n: int, official: int, clients: int, seed: int) -> None:
    """600 training and 100 test images to 7 clients: 85 or 86, and 14 or 15. With more clients than training samples
    there is an error."""
    data = labelled([n], [official])
    if clients > n:
        with raises("partition-impossible", match="would have nothing to train on; use fewer clients"):
            IID(clients=clients)(data, rng(seed))
        return
    made = IID(clients=clients)(data, rng(seed))
    assert_nothing_lost_or_doubled(data, made)
    assert left_over(made) == 0
    for split in (made.train, made.test):
        assert int(split.lengths.max() - split.lengths.min()) <= 1


def test_iid_clients_have_labels_as_the_data_set_has_them() -> None:
    """3,000 samples each of 3 labels, to 10 clients: 300 of each, 5 standard deviations of 13.4 at most away
    (drawing 900 of 9,000: 900 * 1/3 * 2/3 * 0.9 = 180)."""
    data = labelled([3000] * 3)
    made = IID(clients=10)(data, rng())
    every = counts(data, made.train) + counts(data, made.test)
    assert np.abs(every - 300).max() < 5 * 13.4
    assert np.abs(every - 300).max() > 0  # drawn, not dealt label by label


# ---------------------------------------------------------------------------------------------------------- quantity


def test_quantity_skews_sizes_and_not_labels() -> None:
    """Dirichlet(0.5) over 20: a share has mean 1/20 and variance 0.05 * 0.95 / 11, a standard deviation of 1.3 means.
    Of a client's n samples half have label 0, give or take 5 sqrt(n) / 2."""
    data = labelled([10_000, 10_000])
    spreads = []
    for seed in range(10):
        made = Quantity(clients=20, at_least=10)(data, rng(seed))
        sizes = totals(made)
        assert sizes.sum() == 20_000
        assert sizes.min() >= 10
        every = counts(data, made.train) + counts(data, made.test)
        assert np.all(np.abs(every[:, 0] - sizes / 2) <= 5 * np.sqrt(sizes) / 2)
        spreads.append(sizes.std() / sizes.mean())
    assert np.mean(spreads) == pytest.approx(1.3, abs=0.25)


def test_quantity_gives_everyone_at_least_what_is_asked_for() -> None:
    """50 in the mean for each of 20 clients: 25 at least is possible, 60 at least is not."""
    for seed in range(10):
        assert totals(Quantity(clients=20, alpha=5.0, at_least=25)(labelled([1000]), rng(seed))).min() >= 25
    with raises("partition-impossible", match=r"of 20 clients still have too few samples; use fewer clients"):
        Quantity(clients=20, at_least=60)(labelled([1000]), rng())


# --------------------------------------------------------------------------------------------------------- dirichlet


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_dirichlet_shares_vary_as_alpha_says(alpha: float) -> None:
    """Over 20 clients a share of a class has mean 1/20 and variance 0.05 * 0.95 / (20 alpha + 1)."""
    data = labelled([2000] * 10)
    shares = [counts(data, Dirichlet(clients=20, alpha=alpha, test=0.0)(data, rng(s)).train) / 2000 for s in range(20)]
    assert np.mean(shares) == pytest.approx(0.05)
    assert np.var(shares) == pytest.approx(0.0475 / (20 * alpha + 1), rel=0.12)
    # Each class is drawn by itself: no more of one because of more of another.
    across = np.asarray(np.corrcoef(np.concatenate(shares).T))[np.triu_indices(10, 1)]
    assert abs(across.mean()) < 0.03


def test_a_huge_alpha_makes_everyone_alike() -> None:
    """Dirichlet(1e6) over 10: 1/10 to within 3e-4 x 5 or so, of 1,000 samples 100 give or take two."""
    data = labelled([1000] * 3)
    assert np.abs(counts(data, Dirichlet(clients=10, alpha=1e6, test=0.0)(data, rng()).train) - 100).max() <= 2


@pytest.mark.parametrize("alpha", [1e2, 1e4, 1e6])
def test_rounding_does_not_take_from_the_same_clients_in_every_class(alpha: float) -> None:
    """12 test samples of each of 10 classes to 40 clients that are alike: 0.3 of each class, 3 in all."""
    data = labelled([100] * 10, official=[12] * 10)
    made = Dirichlet(clients=40, alpha=alpha, at_least=1)(data, rng())
    assert int(made.test.lengths.min()) >= 1
    assert int(made.test.lengths.max()) <= 6


@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_dirichlet_with_many_clients_gives_everyone_enough(alpha: float) -> None:
    """60,000 + 10,000 images to 200 clients, as in WeCFL's experiments: 300 to train on in the mean."""
    data = labelled([6000] * 10, [1000] * 10)
    for seed in range(8):
        made = Dirichlet(clients=200, alpha=alpha)(data, rng(seed))
        assert_nothing_lost_or_doubled(data, made)
        assert totals(made).min() >= 10
        assert int(made.test.lengths.min()) >= 1
        assert float(made.train.lengths.float().mean()) == 300
        assert made.note == ""
        assert np.median(made.labels_per_client()) <= (5 if alpha == 0.1 else 3)


def test_one_client_has_everything() -> None:
    for partition in (Dirichlet(clients=1), Quantity(clients=1), Classes(clients=1, n=5)):
        assert totals(partition(PLAIN, rng())).tolist() == [600]


POOR = labelled([100] * 10, official=[20] * 10)


def test_poor_clients_can_be_left_out_and_that_is_said() -> None:
    said = 0
    for seed in range(20):
        made = Dirichlet(clients=40, alpha=0.05, poor="drop")(POOR, rng(seed))
        assert_nothing_lost_or_doubled(POOR, made)
        gone = 40 - len(made)
        assert gone > 0
        assert made.describe().endswith(f", {gone} clients with fewer than 10 samples left out")
        said += left_over(made)
    assert said > 0  # what the poor would have had goes to nobody, and that is said too


def test_poor_clients_can_be_copies_of_others_and_that_is_said() -> None:
    """The last `gone` clients repeat earlier ones, sample by sample; the others share nothing."""
    drawn = set()
    for seed in range(20):
        made = Dirichlet(clients=40, alpha=0.05, poor="duplicate")(POOR, rng(seed))
        assert len(made) == 40
        found = re.search(r"(\d+) clients are copies of others$", made.describe())
        assert found is not None
        gone = int(found[1])
        rows = [(made.train.row(client).tolist(), made.test.row(client).tolist()) for client in range(40)]
        first, copies = rows[: 40 - gone], rows[40 - gone :]
        numbers = [number for train, test in first for number in train + test]
        assert len(numbers) == len(set(numbers)) == len(POOR.y) - left_over(made)
        assert copies
        assert all(copy in first for copy in copies)
        drawn |= {first.index(copy) for copy in copies}
    assert len(drawn) > 10  # copied at random, not one over and over


def test_where_nobody_is_poor_there_are_no_copies() -> None:
    for poor in ("drop", "duplicate"):
        made = Dirichlet(clients=10, alpha=100.0, poor=poor)(POOR, rng())
        assert len(made) == 10
        assert made.note == ""
        assert_nothing_lost_or_doubled(POOR, made)


def test_where_everybody_is_poor_there_is_nobody_to_copy() -> None:
    for poor in ("drop", "duplicate"):
        with raises("partition-impossible", match="no client would have 2000 samples; use fewer clients"):
            Dirichlet(clients=40, at_least=2000, poor=poor)(POOR, rng())


@pytest.mark.parametrize("poor", ["drop", "duplicate"])
@pytest.mark.parametrize("data", [PLAIN, POOR], ids=["a share", "official"])
def test_whoever_is_not_poor_has_enough(poor: Any, data: Dataset) -> None:
    for seed in range(100):
        made = Dirichlet(clients=40, alpha=0.1, poor=poor)(data, rng(seed))
        assert totals(made).min() >= 10
        assert int(made.test.lengths.min()) >= 1


# ----------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_everyone_has_exactly_n_classes_shared_equally(n: int) -> None:
    """A class of 110 to 130 samples that k clients have: 110 / k each, rounded up or down."""
    for seed in range(10):
        made = Classes(clients=20, n=n)(PLAIN, rng(seed))
        assert_nothing_lost_or_doubled(PLAIN, made)
        every = counts(PLAIN, made.train) + counts(PLAIN, made.test)
        assert ((every > 0).sum(1) == n).all()
        assert (made.labels_per_client() == n).all()
        for column in every.T:
            held = column[column > 0]
            if len(held):
                assert held.max() - held.min() <= 1
        wanted = (every > 0).any(0)
        assert left_over(made) == np.bincount(PLAIN.y.numpy())[~wanted].sum()


def test_two_classes_as_in_wecfl() -> None:
    """papers.md 1.4: 200 clients of exactly 2 classes, 300 to train on and 50 to test on in the mean."""
    data = labelled([6000] * 10, [1000] * 10)
    made = Classes(clients=200)(data, rng())
    assert (made.labels_per_client() == 2).all()
    assert (float(made.train.lengths.float().mean()), float(made.test.lengths.float().mean())) == (300, 50)


def test_classes_are_drawn_at_random() -> None:
    """Of 5 classes 2: 10 pairs, each with 1/10 of 2,000 clients, 5 standard deviations of 13.4 at most away."""
    data = labelled([20_000] * 5)
    have = counts(data, Classes(clients=2000)(data, rng()).train) > 0
    pairs = np.bincount(have @ (2 ** np.arange(5)))
    assert sorted(np.flatnonzero(pairs)) == sorted(2**a + 2**b for a in range(5) for b in range(a))
    assert np.abs(pairs[pairs > 0] - 200).max() < 5 * 13.4


def test_more_classes_than_there_are_cannot_be_had() -> None:
    for partition in (Classes(n=6), PowerLaw(n=6)):
        with raises("partition-impossible", match=r"data\.partition\.n: toy has 5 classes, not 6"):
            partition(PLAIN, rng())


# --------------------------------------------------------------------------------------------------------- power law


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.floats(0.1, 4.0), st.integers(0, 1000))
def test_client_u_has_the_classes_from_u_on_and_the_first_few_of_each(
    clients: int, n: int, first: int, sigma: float, seed: int
) -> None:
    """At most 12 clients want 5 of a class: 60 of each class are enough for any."""
    data = labelled([60, 70, 65, 80])
    made = PowerLaw(clients=clients, n=n, first=first, sigma=sigma)(data, rng(seed))
    assert_nothing_lost_or_doubled(data, made)
    every = counts(data, made.train) + counts(data, made.test)
    for u in range(clients):
        mine = {(u + turn) % 4 for turn in range(n)}
        assert set(np.flatnonzero(every[u])) == mine
        assert min(every[u][c] for c in mine) >= first


def test_power_law_by_hand() -> None:
    """Two classes of 100, three clients: 0 has (0, 1), 1 has (1, 0), 2 has (0, 1) again, so each class is wanted by
    all three. 5 each leave 85, shared by lognormal weights and rounded down."""
    data = labelled([100, 100])
    weight = rng(7).lognormal(0.0, 2.0, (3, 2))  # drawn client by client, class by class
    of_0, of_1 = weight[[0, 1, 2], [0, 1, 0]], weight[[0, 1, 2], [1, 0, 1]]
    expected = [5 + np.floor(85 * w / w.sum()) for w in (of_0, of_1)]
    made = PowerLaw(clients=3)(data, rng(7))
    assert (counts(data, made.train) + counts(data, made.test)).T.tolist() == [e.tolist() for e in expected]


def test_a_class_too_small_for_everyones_first_samples_is_named() -> None:
    """Clients 0 to 9, classes u and u + 1 modulo 2: all ten want class 1, 50 samples at 5 each; there are 49."""
    with raises("partition-impossible", match=r"first: class 1 has 49 samples, too few for 5 to each of 10 clients"):
        PowerLaw(clients=10)(labelled([100, 49]), rng())
    assert totals(PowerLaw(clients=10)(labelled([100, 50]), rng())).min() >= 10


def test_fedprox_mnist_has_its_papers_size() -> None:
    """papers.md 5.3: 70,000 images to 1,000 users, about 69,035 of them dealt out (what rounding down leaves over is
    half a sample each for 2,000 draws, about 1,000): 69 per user, the median about 26 (here: 22 to 30). A tenth is
    held out of every user."""
    data = labelled(MNIST)
    assert len(data.y) == 70_000
    for seed in range(5):
        made = PowerLaw(clients=1000)(data, rng(seed))
        assert_nothing_lost_or_doubled(data, made)
        sizes = totals(made)
        assert sizes.sum() == pytest.approx(69_035, rel=0.01)
        assert sizes.mean() == pytest.approx(69, rel=0.01)
        assert 22 <= np.median(sizes) <= 30
        assert sizes.min() >= 10
        assert_share_held_out(data, made, 0.1)
