"""The partitions with hidden clusters: by label (cluster-dirichlet, cluster-classes, pathological) and by what is seen
(rotated, shifted, swapped, rotated-classes, hybrid)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_partitions import (
    Ints,
    Partition,
    assert_follows_the_seed,
    assert_leaves_the_data_as_it_was,
    assert_nothing_lost_or_doubled,
    assert_official_split_is_kept,
    assert_same_proportions,
    assert_share_held_out,
    counts,
    labelled,
    left_over,
    rng,
    totals,
)

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation
from coterie.data.partitions.by_client import Classes, Dirichlet
from coterie.data.partitions.by_cluster import (
    SMALLEST,
    ClusterClasses,
    ClusterDirichlet,
    Hybrid,
    Pathological,
    Rotated,
    RotatedClasses,
    Shifted,
    Swapped,
)
from coterie.data.partitions.dealing import clusters_of
from coterie.data.scale import Scale

SIZES = [120, 130, 110, 125, 115, 140, 100, 120, 120, 120]
PLAIN = labelled(SIZES, side=2)
SPLIT = labelled(SIZES, official=[size // 5 for size in SIZES], side=2)
PAPERS = labelled([6000] * 10, official=[1000] * 10)  # the labels of Fashion-MNIST

BY_LABEL: list[Partition] = [
    ClusterDirichlet(clients=20, clusters=5),
    ClusterClasses(clients=20, clusters=5),
    Pathological(clients=20),
    Pathological(clients=20, groups=((0, 9), (3,))),
]
BY_SIGHT: list[Partition] = [
    Rotated(clients=20),
    Rotated(clients=20, angles=(0.0, 45.0)),
    Shifted(clients=20),
    Swapped(clients=20),
    RotatedClasses(clients=20),
    RotatedClasses(clients=20, groups=((1, 2), (5,))),
]
REUSED: list[Any] = [
    Rotated(clients=20, reuse=True),
    Shifted(clients=21, reuse=True),
    Swapped(clients=20, reuse=True),
    RotatedClasses(clients=20, reuse=True),
    Rotated(clients=20, reuse=True, test=0.3),
    Shifted(clients=20, reuse=True, test=0.3),
    RotatedClasses(clients=21, reuse=True, test=0.3),
]


def truth(made: Federation) -> Ints:
    assert made.truth is not None
    return made.truth


def every(data: Dataset, made: Federation) -> Ints:
    """(clients, classes) as the data set calls them, training and test together."""
    return counts(data, made.train) + counts(data, made.test)


# ----------------------------------------------------------------------------------------------- what all have alike


@pytest.mark.parametrize("partition", [*BY_LABEL, *BY_SIGHT], ids=repr)
def test_nothing_is_lost_or_doubled(partition: Partition) -> None:
    for seed in range(5):
        for data in (PLAIN, SPLIT):
            made = partition(data, rng(seed))
            assert_nothing_lost_or_doubled(data, made)
            assert made.check().outputs == 10
    assert_official_split_is_kept(SPLIT, made)


@pytest.mark.parametrize("partition", [*BY_LABEL, *BY_SIGHT, *REUSED], ids=repr)
def test_the_same_seed_gives_the_same_split(partition: Partition) -> None:
    assert_follows_the_seed(partition, SPLIT)
    assert_leaves_the_data_as_it_was(partition, SPLIT)


@given(st.integers(1, 50), st.integers(1, 50))
def test_clusters_are_of_one_size_and_in_order(clients: int, clusters: int) -> None:
    """40 clients in 4 clusters: ten 0s, ten 1s, ...; sizes differ by at most one."""
    if clusters > clients:
        with raises("partition-impossible", match=f"{clusters} clusters need at least as many clients, not {clients}"):
            clusters_of(clients, clusters)
        return
    found = clusters_of(clients, clusters)
    sizes = np.bincount(found, minlength=clusters)
    assert len(found) == clients
    assert (np.diff(found) >= 0).all()
    assert len(sizes) == clusters
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("partition", "clusters"),
    [
        (ClusterDirichlet(clients=23, clusters=3), 3),
        (ClusterClasses(clients=23, clusters=3), 3),
        (Pathological(clients=23), 4),
        (Rotated(clients=23, angles=(0.0, 180.0)), 2),
        (Shifted(clients=23, shifts=(0, 1, 2, 3, 4)), 5),
        (Swapped(clients=23), 4),
        (RotatedClasses(clients=23), 8),
    ],
    ids=repr,
)
def test_the_truth_is_client_times_clusters_over_clients(partition: Partition, clusters: int) -> None:
    made = partition(PLAIN, rng())
    assert truth(made).tolist() == [client * clusters // 23 for client in range(23)]
    assert made.describe().split(", ")[-1 - bool(made.note)] == f"{clusters} true clusters"
    assert made.mixture is None


@pytest.mark.parametrize(
    "partition",
    [
        ClusterDirichlet(clients=20, clusters=5, test=0.25),
        ClusterClasses(clients=20, clusters=5, test=0.25),
        Pathological(clients=20, test=0.25),
        Rotated(clients=20, test=0.25),
        Shifted(clients=20, test=0.25),
        Swapped(clients=20, test=0.25),
        RotatedClasses(clients=20, test=0.25),
    ],
    ids=repr,
)
def test_a_share_is_held_out_of_every_client_and_label(partition: Partition) -> None:
    for data in (PLAIN, SPLIT):
        made = partition(data, rng(3))
        assert_share_held_out(data, made, 0.25)


# ------------------------------------------------------------------------------------------------- clusters by label


def variances(data: Dataset, made: Federation, cluster: Ints) -> tuple[float, float]:
    """Of the clients' label distributions: between the means of clusters, and within clusters."""
    found = counts(data, made.train)
    p = found / found.sum(1, keepdims=True)
    means = np.stack([p[cluster == k].mean(0) for k in range(int(cluster.max()) + 1)])
    return float(np.square(means - means.mean(0)).sum(1).mean()), float(np.square(p - means[cluster]).sum(1).mean())


def test_clusters_of_dirichlets_differ_far_more_than_the_clients_of_one() -> None:
    """(0.1, 10), 200 clients in 10 clusters, as in WeCFL's experiments. Clusters are nearly of one or two classes
    (a variance of about 0.4); a client's weights vary by 1 / sqrt(10) of themselves (spec 0.015): 5 times and more.
    Where clients are drawn by themselves, means of 20 vary by 1 / 20 of what clients do."""
    for seed in range(5):
        made = ClusterDirichlet(clients=200)(PAPERS, rng(seed))
        between, within = variances(PAPERS, made, truth(made))
        assert between > 10 * within
        for clientwise in (Dirichlet(clients=200), Classes(clients=200)):
            between, within = variances(PAPERS, clientwise(PAPERS, rng(seed)), truth(made))
            assert between < 0.15 * within


def test_clusters_of_classes_differ_more_than_the_clients_of_one() -> None:
    """(3, 2)-class. A client has 1/2 of each of its two classes, its cluster 1/3 of each of its three:
    within 2 (1/6)^2 + (1/3)^2 = 1/6; between 3 (1/3 - 1/10)^2 + 7 (1/10)^2 = 7/30, were the shares of classes equal.
    Their ratio is 1.4, not 5: but clients drawn by themselves would have one of 1/20, 28 times smaller."""
    for seed in range(5):
        made = ClusterClasses(clients=200)(PAPERS, rng(seed))
        between, within = variances(PAPERS, made, truth(made))
        assert between == pytest.approx(7 / 30, rel=0.15)
        assert within == pytest.approx(1 / 6, rel=0.3)
        shuffled = rng(seed).permutation(truth(made))
        assert between / within > 10 * np.divide(*variances(PAPERS, made, shuffled))


def test_cluster_dirichlet_has_its_papers_statistics() -> None:
    """papers.md 1.4, simulated: mean 298, 60 to 645 training samples per client, 5.3 classes each. Nothing is rounded
    away here, so the mean is 60,000 / 200 = 300; single extremes vary with the seed, so they are loose."""
    classes = []
    for seed in range(5):
        made = ClusterDirichlet(clients=200)(PAPERS, rng(seed))
        assert_nothing_lost_or_doubled(PAPERS, made)
        assert_official_split_is_kept(PAPERS, made)
        assert_same_proportions(PAPERS, made)
        lengths = made.train.lengths.numpy()
        assert lengths.mean() == 300
        assert 30 <= lengths.min() <= 120
        assert 450 <= lengths.max() <= 1300
        classes.append(made.labels_per_client().mean())
        sizes = np.bincount(truth(made), lengths)
        assert sizes.min() > SMALLEST * 6000 - 20  # WeCFL's code draws smaller clusters again; 20 of rounding
    assert np.mean(classes) == pytest.approx(5.3, abs=1.0)


def test_within_and_between_are_not_mixed_up() -> None:
    """(100, 0.1): clusters alike, clients of one all different."""
    made = ClusterDirichlet(clients=100, clusters=5, between=100.0, within=0.1)(PAPERS, rng())
    between, within = variances(PAPERS, made, truth(made))
    assert between < 0.2 * within
    sizes = np.bincount(truth(made), totals(made))
    assert sizes == pytest.approx(np.full(5, 14_000), rel=0.15)


@pytest.mark.parametrize(("between", "within"), [(3, 2), (1, 1), (5, 5), (10, 3)])
def test_a_cluster_has_its_classes_and_each_client_some_of_them(between: int, within: int) -> None:
    """Every client exactly `within`, all clients of a cluster together at most `between`; a class that nobody drew
    is left over, and that is said."""
    for seed in range(10):
        partition = ClusterClasses(clients=40, clusters=4, between=between, within=within)
        made = partition(SPLIT, rng(seed))
        have = every(SPLIT, made) > 0
        assert (have.sum(1) == within).all()
        drawn = [have[truth(made) == cluster].any(0) for cluster in range(4)]
        assert all(int(one.sum()) <= between for one in drawn)
        if within == between:
            assert all(int(one.sum()) == between for one in drawn)
        unwanted = ~have.any(0)
        assert left_over(made) >= np.bincount(SPLIT.y.numpy())[unwanted].sum()
        assert_nothing_lost_or_doubled(SPLIT, made)
        assert_same_proportions(SPLIT, made)


def test_a_class_is_shared_equally_by_clusters_and_then_by_clients() -> None:
    """(2, 2)-class of 4 clusters: each cluster that has a class gets 1/k of it, each of its 5 clients 1/5 of that."""
    data = labelled([3000] * 4)
    made = ClusterClasses(clients=20, clusters=4, between=2, within=2)(data, rng())
    found = every(data, made)
    for column in found.T:
        holders = column[column > 0]
        assert np.abs(holders - 3000 / max(len(holders), 1)).max(initial=0) <= 1


def test_three_two_class_as_in_wecfl() -> None:
    """papers.md 1.4: 2 classes per client; 300 training samples in the mean where every class found a cluster."""
    made = [ClusterClasses(clients=200)(PAPERS, rng(seed)) for seed in range(5)]
    for one in made:
        assert (one.labels_per_client() == 2).all()
        assert float(one.train.lengths.float().mean()) == 300 - left_over(one) * 6 / 7 / 200
    assert min(left_over(one) for one in made) == 0


@pytest.mark.parametrize(("between", "within"), [(2, 3), (11, 2)])
def test_classes_of_clusters_must_be_enough_for_clients_and_no_more_than_there_are(between: int, within: int) -> None:
    with raises("partition-impossible", match=rf"within <= between <= 10 .*, not {within} and {between}"):
        ClusterClasses(between=between, within=within)(PLAIN, rng())


@pytest.mark.parametrize("between", [1e-4, 0.1, 1e4])
@pytest.mark.parametrize("within", [1e-4, 0.1, 1e4])
def test_cluster_dirichlet_ends_whatever_is_asked(between: float, within: float) -> None:
    partition = ClusterDirichlet(clients=40, clusters=4, between=between, within=within)
    for seed in range(3):
        try:
            made = partition(SPLIT, rng(seed))
        except CoterieError as error:
            said = str(error)
            assert said.endswith("use fewer clients or clusters, milder parameters, or a smaller at_least")
            continue
        assert_nothing_lost_or_doubled(SPLIT, made)
        assert totals(made).min() >= 10
        assert int(made.test.lengths.min()) >= 1


def test_pathological_clients_have_only_their_groups_classes() -> None:
    """StoCFL's groups: 012, 34, 56, 789, 100 clients each of 400; with 6,000 images of each class 18,000 / 100 = 180
    or 12,000 / 100 = 120 training images per client, and 30 or 20 test images."""
    made = Pathological(clients=400)(PAPERS, rng())
    groups = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
    for split, each in ((made.train, (180, 120, 120, 180)), (made.test, (30, 20, 20, 30))):
        found = counts(PAPERS, split)
        for client in range(400):
            outside = np.setdiff1d(np.arange(10), groups[client // 100])
            assert found[client, outside].sum() == 0
            assert found[client].sum() == each[client // 100]
    assert (made.labels_per_client() == np.repeat([3, 2, 2, 3], 100)).all()  # its group's classes are all there
    assert left_over(made) == 0


def test_classes_in_no_group_are_left_over() -> None:
    made = Pathological(clients=4, groups=((0,), (9, 2)))(PLAIN, rng())
    assert [set(np.flatnonzero(row)) for row in every(PLAIN, made)] == [{0}, {0}, {2, 9}, {2, 9}]
    assert left_over(made) == len(PLAIN.y) - 120 - 110 - 120
    assert made.name == "toy, classes 0 | 9 2"


@pytest.mark.parametrize("partition", [Pathological, RotatedClasses])
@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((0, 1), (1, 2)), "a class belongs to one group"),
        (((0, 0), (1,)), "a class belongs to one group"),
        (((0, 1), ()), "a group has classes"),
        (((0, 1), (10,)), r"toy has classes 0\.\.9, not 10"),
    ],
)
def test_groups_that_overlap_or_do_not_exist_are_refused(partition: Any, groups: Any, message: str) -> None:
    with raises("partition-impossible", match=message):
        partition(groups=groups)(PLAIN, rng())


# -------------------------------------------------------------------------------------------- clusters by what is seen


@pytest.mark.parametrize("partition", REUSED, ids=repr)
@pytest.mark.parametrize("data", [PLAIN, SPLIT], ids=["a share", "official"])
def test_reused_samples_come_once_per_view_and_are_never_trained_on_here_and_tested_there(
    partition: Any, data: Dataset
) -> None:
    """Every view deals out every sample; what is a test image for one is a test image for all."""
    made: Federation = partition(data, rng())
    numbers = torch.cat([made.train.numbers, made.test.numbers]).numpy()
    assert len(np.unique(numbers)) == len(numbers) == len(data.y) * len(made.domains)
    trained, tested = (set((split.numbers.numpy() % len(data.y)).tolist()) for split in (made.train, made.test))
    assert not trained & tested
    assert len(tested) == (
        round(0.3 * len(data.y)) if partition.test == 0.3 else len(data.y) // 5 if data is PLAIN else 240
    )
    assert made.note == ""
    if data is SPLIT and partition.test == "auto":
        assert_official_split_is_kept(data, made)
    if not isinstance(partition, RotatedClasses):  # each cluster deals evenly
        for cluster in range(len(made.domains)):
            sizes = made.train.lengths.numpy()[truth(made) == cluster]
            assert sizes.max() - sizes.min() <= 1


def test_reuse_gives_everyone_as_many_samples_as_there_are_clusters() -> None:
    """StoCFL: 1,200 clients, each rotation with all 60,000 images: 200 each; used once they would be 50."""
    assert set(Rotated(clients=1200, reuse=True)(PAPERS, rng()).train.lengths.tolist()) == {200}
    assert set(Rotated(clients=1200)(PAPERS, rng()).train.lengths.tolist()) == {50}


def test_reuse_without_tests_uses_everything_to_train() -> None:
    made = Shifted(clients=8, reuse=True, test=0.0)(PLAIN, rng())
    assert len(made.train.numbers) == 4 * len(PLAIN.y)
    assert len(made.test.numbers) == 0


def seen(made: Federation, data: Dataset, client: int) -> set[tuple[int, int]]:
    """(label in the data set, label the client sees) of its training samples; image i holds the number i."""
    x, y = made.samples(client, "train")
    rows = x[:, 0, 0, 0].long()
    return set(zip(data.y[rows].tolist(), y.tolist(), strict=True))


@pytest.mark.parametrize("reuse", [False, True])
def test_shifted_labels_by_hand(reuse: bool) -> None:
    """Of 5 classes, shifted by 0, 3 and -1: 0 1 2 3 4 are called 0 1 2 3 4, 3 4 0 1 2, and 4 0 1 2 3."""
    data = labelled([40] * 5)
    made = Shifted(clients=6, shifts=(0, 3, -1), reuse=reuse)(data, rng())
    names = ([0, 1, 2, 3, 4], [3, 4, 0, 1, 2], [4, 0, 1, 2, 3])
    for client in range(6):
        assert seen(made, data, client) == set(enumerate(names[client // 2]))
    assert made.name == "toy, labels shifted by 0, 3, -1"


@pytest.mark.parametrize("reuse", [False, True])
def test_swapped_labels_by_hand(reuse: bool) -> None:
    """Of 4 classes, 0 and 1 swapped in the first cluster, 3 and 0 in the second, and 2 with itself in the third."""
    data = labelled([40] * 4)
    made = Swapped(clients=6, pairs=((0, 1), (3, 0), (2, 2)), reuse=reuse)(data, rng())
    names = ([1, 0, 2, 3], [3, 1, 2, 0], [0, 1, 2, 3])
    for client in range(6):
        assert seen(made, data, client) == set(enumerate(names[client // 2]))
    with raises("partition-impossible", match=r"data\.partition\.pairs: toy has classes 0\.\.3, not 4"):
        Swapped(pairs=((0, 4),))(data, rng())


def oriented(n_per_class: int, classes: int) -> Dataset:
    """Images [[i, -1], [-2, -3]]: which one and how it is turned can be seen."""
    n = n_per_class * classes
    x = torch.tensor([[0.0, -1.0], [-2.0, -3.0]]).repeat(n, 1, 1, 1)
    x[:, 0, 0, 0] = torch.arange(n)
    return Dataset("toy", x, torch.arange(n) % classes, classes)


@pytest.mark.parametrize("reuse", [False, True])
def test_rotated_classes_are_every_angle_with_every_group_in_order(reuse: bool) -> None:
    """Angles 0 and 180, groups {0}, {1, 2}, {3}: clusters 0 to 2 upright, 3 to 5 turned; of each, group by group.

    40 images per class: without reuse a group's are shared by its four clients of both angles, 10 each for one class
    and 20 for two; with reuse by the two of one angle, 20 and 40."""
    data = oriented(40, 4)
    groups = ((0,), (1, 2), (3,))
    made = RotatedClasses(clients=12, angles=(0.0, 180.0), groups=groups, reuse=reuse, test=0.0)(data, rng())
    assert truth(made).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for client in range(12):
        x, y = made.samples(client, "train")
        angle, group = divmod(int(truth(made)[client]), 3)
        corner = (0, 0) if angle == 0 else (1, 1)  # where an image holds its number
        rows = x[:, 0, corner[0], corner[1]].long()
        assert torch.equal(x, torch.rot90(data.x[rows], 2 * angle, (-2, -1)))
        assert torch.equal(y, data.y[rows])
        assert set(y.tolist()) == set(groups[group])
        assert len(y) == 10 * len(groups[group]) * (2 if reuse else 1)


def test_an_odd_angle_turns_a_copy_and_a_quarter_turn_does_not() -> None:
    made = Rotated(clients=4, angles=(0.0, 90.0, -180.0, 30.0))(PLAIN, rng())
    assert [domain.turns for domain in made.domains] == [0, 1, 2, 0]
    assert [domain.x is PLAIN.x for domain in made.domains] == [True, True, True, False]
    assert all(domain.y is PLAIN.y and domain.scale is PLAIN.scale for domain in made.domains)


def test_more_clusters_than_clients_are_refused() -> None:
    for partition, clusters in (
        (ClusterDirichlet(clients=9), 10),
        (ClusterClasses(clients=9), 10),
        (Pathological(clients=3), 4),
        (Shifted(clients=3), 4),
        (Swapped(clients=3), 4),
        (RotatedClasses(clients=7), 8),
        (Hybrid(clients=1, other="digits"), 2),
    ):
        with raises("partition-impossible", match=f"{clusters} clusters need at least as many clients"):
            partition(labelled([20] * 10, side=8), rng())


# ------------------------------------------------------------------------------------------------------------- hybrid


@dataclass
class Other:
    """A user's data set: images that hold 1000, 1001, ..., scaled by a rule of their own."""

    samples: int = 60
    side: int = 2
    targets: bool = False
    official: bool = False

    def __call__(self) -> Dataset:
        n = self.samples
        x = torch.arange(1000, 1000 + n, dtype=torch.int32).view(n, 1, 1, 1).expand(n, 1, self.side, self.side)
        y = torch.rand(n, 1) if self.targets else torch.arange(n) % 12
        official: NDArray[np.bool_] | None = np.arange(n) >= n - 10 if self.official else None
        return Dataset("other", x, y, 12, Scale(divisor=10.0, mean=1.0, std=2.0), official)


@dataclass
class Owned:
    """A user's data that comes as a federation."""

    def __call__(self) -> Federation:
        return Federation.from_arrays([(np.zeros((3, 2)), np.zeros(3, dtype=np.int64))])


def test_one_half_has_this_data_set_the_other_half_another_each_scaled_by_its_own_rule() -> None:
    """50 images 0..49 scaled by 50 and 60 images 1000..1059 as ((x / 10) - 1) / 2, to 3 and 2 of 5 clients."""
    data = Dataset("toy", *(labelled([10] * 5, side=2).x, torch.arange(50) % 5), 5, Scale(divisor=50.0))
    made = Hybrid(clients=5, other=Other())(data, rng()).check()
    assert truth(made).tolist() == [0, 0, 0, 1, 1]
    assert totals(made).tolist() == [17, 16, 17, 30, 30]
    assert made.test.lengths.tolist() == [3, 3, 3, 6, 6]
    assert made.outputs == 12  # of 5 and 12 classes
    stored = []
    for client in range(5):
        for x, y in (made.samples(client, "train"), made.samples(client, "test")):
            raw = x[:, 0, 0, 0] * 50 if client < 3 else (x[:, 0, 0, 0] * 2 + 1) * 10
            rows = raw.round().long()
            torch.testing.assert_close(raw, rows.float(), atol=1e-2, rtol=0)
            assert torch.equal(y, rows % 5 if client < 3 else (rows - 1000) % 12)
            stored += rows.tolist()
    assert sorted(stored) == [*range(50), *range(1000, 1060)]
    assert made.name == "toy and other"


def test_the_other_data_set_may_have_parameters_and_an_official_test_set() -> None:
    data = labelled([20], official=[4], side=2)
    partition = Hybrid(clients=4, other=Other(samples=30, official=True))
    made = partition(data, rng())
    assert made.train.lengths.tolist() == [10, 10, 10, 10]
    assert made.test.lengths.tolist() == [2, 2, 5, 5]
    assert set(made.test.numbers.tolist()) == {*range(20, 24), *range(24 + 20, 24 + 30)}
    assert_follows_the_seed(partition, data)
    assert_leaves_the_data_as_it_was(partition, data)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Other(side=3), r"toy has samples of shape \(1, 2, 2\), other of \(1, 3, 3\); both must be"),
        (Other(targets=True), "both must be alike"),
        (Owned(), "has clients of its own and cannot be mixed in"),
        ("my_data_sets:Other", "is code beyond this library"),
    ],
)
def test_a_data_set_that_does_not_fit_cannot_be_mixed_in(other: Any, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Hybrid(clients=4, other=other)(labelled([20], side=2), rng())
