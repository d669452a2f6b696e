"""The clients' data: domains, index rows, scaling, a user's own arrays, partitions, and a generated truth."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.federation import Domain, Federation, Ragged
from coterie.data.partitions.by_client import IID
from coterie.data.partitions.by_cluster import Rotated
from coterie.data.scale import Scale
from coterie.data.sets.synthetic import SyntheticRegression
from coterie.data.transforms import rotate


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def images(n: int, side: int = 2) -> Dataset:
    """n images, all different: image i holds i * side^2 and the numbers after it; labels 0, 1, 2, 0, ..."""
    x = torch.arange(n * side * side, dtype=torch.float32).view(n, 1, side, side)
    return Dataset("toy", x, torch.arange(n) % 3, 3, Scale())


def federation(**changes: Any) -> Federation:
    """Two clients on one table of four samples of one feature."""
    domain = Domain(torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1]))
    values: dict[str, Any] = {
        "domains": (domain,),
        "train": Ragged.of([[0, 1], [2]]),
        "test": Ragged.of([[], [3]]),
        "outputs": 2,
    }
    return Federation(**(values | changes))


# -------------------------------------------------------------------------------- domains, rows, scaling


@pytest.mark.parametrize(
    ("turns", "seen"),
    [
        (0, [[1, 2], [3, 4]]),
        (1, [[2, 4], [1, 3]]),
        (2, [[4, 3], [2, 1]]),
        (-1, [[3, 1], [4, 2]]),
        (5, [[2, 4], [1, 3]]),
    ],
)
def test_a_domain_turns_its_images_counter_clockwise(turns: int, seen: list[list[int]]) -> None:
    x = torch.tensor([[[[9, 9], [9, 9]]], [[[1, 2], [3, 4]]]], dtype=torch.uint8)
    taken, labels = Domain(x, torch.tensor([5, 6]), turns=turns).take(torch.tensor([1]))
    assert taken.tolist() == [[seen]]
    assert labels.tolist() == [6]


def test_a_domain_changes_labels() -> None:
    domain = Domain(torch.zeros(3, 1), torch.tensor([0, 1, 2]), relabel=torch.tensor([2, 0, 1]))
    assert domain.take(torch.tensor([2, 0, 1]))[1].tolist() == [1, 2, 0]


def test_samples_of_several_domains_come_in_the_order_of_their_numbers() -> None:
    """Numbers 0-2 are the first domain's, 3-4 the second's: 4, 0, 3, 2 are (11), (0), (10), (2), in this order."""
    first = Domain(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1, 2]))
    second = Domain(torch.tensor([[10.0], [11.0]]), torch.tensor([0, 1]), relabel=torch.tensor([3, 4]))
    mixed = federation(domains=(first, second), train=Ragged.of([[4, 0, 3, 2], [3, 4]]), outputs=5)
    x, y = mixed.samples(0, "train")
    assert (x[:, 0].tolist(), y.tolist()) == ([11, 0, 10, 2], [4, 0, 3, 2])
    x, y = mixed.samples(1, "train")
    assert (x[:, 0].tolist(), y.tolist()) == ([10, 11], [3, 4])


def test_ragged_rows_are_lists_end_to_end() -> None:
    rows = Ragged.of([[3, 1], [], [2]])
    assert len(rows) == 3
    assert [rows.row(client).tolist() for client in range(3)] == [[3, 1], [], [2]]
    assert rows.lengths.tolist() == [2, 0, 1]
    assert len(Ragged.of([])) == 0


def test_scale_by_hand() -> None:
    """(100 / 50 - 1) / 4 = 0.25."""
    assert Scale(50.0, 1.0, 4.0)(torch.tensor([100], dtype=torch.uint8)).tolist() == [0.25]


def test_bytes_become_floating_point_even_unscaled() -> None:
    assert Scale()(torch.tensor([7], dtype=torch.uint8)).dtype == torch.float32


def test_a_client_sees_its_samples_scaled() -> None:
    domain = Domain(torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1]), Scale(divisor=2.0, mean=0.5))
    scaled = federation(domains=(domain,))
    assert scaled.client(0).train[0].tolist() == [[-0.5], [0.0]]
    assert scaled.client(1).test[0].tolist() == [[1.0]]
    assert scaled.client(0).test[0].shape == (0, 1)


def test_turned_samples_are_contiguous() -> None:
    turned = federation(domains=(Domain(torch.zeros(4, 1, 2, 3), torch.zeros(4, dtype=torch.int64), turns=1),))
    assert turned.samples(0, "train")[0].is_contiguous()
    assert turned.input_shape == (1, 3, 2)


def test_the_roster_knows_ids_and_sizes_of_training_data() -> None:
    roster = federation().roster
    assert (roster.ids.tolist(), roster.n.tolist()) == ([0, 1], [2, 1])


def test_describe_counts() -> None:
    text = federation(truth=np.array([0, 1]), name="toy").describe()
    assert text == (
        "toy: 2 clients, 3 training samples (min/median/max 1/1/2), 1 test samples, "
        "classes per client min/median/max 1/1/2 of 2, 2 true clusters"
    )


# -------------------------------------------------------------------------------------------- own arrays

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10) % 3


def test_own_data_is_split_without_loss() -> None:
    made = Federation.from_arrays([(X, Y), (X + 100, Y)], test=0.3, truth=[0, 1], standardise=False)
    for client, shift in enumerate((0, 100)):
        (x, y), (x_test, y_test) = made.samples(client, "train"), made.samples(client, "test")
        assert (len(y), len(y_test)) == (7, 3)
        first = torch.cat([x, x_test])[:, 0] - shift
        assert sorted(first.tolist()) == X[:, 0].tolist()
        assert torch.equal(torch.cat([y, y_test]), (first / 2).long() % 3)  # labels stay with their inputs
    assert (made.kind, made.outputs, made.input_shape) == ("classification", 3, (2,))
    assert made.truth is not None
    assert made.truth.tolist() == [0, 1]
    assert made.check() is made


def test_own_data_may_come_split() -> None:
    parts = [(X[:4], Y[:4], X[4:5], Y[4:5]), (X[5:7], Y[5:7], X[7:], Y[7:])]
    made = Federation.from_arrays(parts, standardise=False)
    assert made.samples(0, "train")[0][:, 0].tolist() == [0, 2, 4, 6]
    assert made.samples(0, "test")[0][:, 0].tolist() == [8]
    assert made.samples(1, "train")[0][:, 0].tolist() == [10, 12]
    assert made.samples(1, "test")[1].tolist() == [1, 2, 0]


def test_own_data_may_be_tensors_or_lists() -> None:
    arrays = Federation.from_arrays([(X, Y)])
    for same in ((torch.from_numpy(X), torch.from_numpy(Y)), (X.tolist(), Y.tolist())):
        made = Federation.from_arrays([same])
        assert torch.equal(made.samples(0, "train")[0], arrays.samples(0, "train")[0])
        assert torch.equal(made.samples(0, "train")[1], arrays.samples(0, "train")[1])


def test_own_floating_point_targets_make_a_regression() -> None:
    made = Federation.from_arrays([(X, X[:, 0])], test=0.0)
    x, y = made.samples(0, "train")
    assert (made.kind, made.outputs, y.shape) == ("regression", 1, (10, 1))
    assert torch.equal(y[:, 0], x[:, 0])
    assert Federation.from_arrays([(X, X)]).outputs == 2


def test_the_number_of_classes_may_be_told() -> None:
    assert Federation.from_arrays([(X, Y)], outputs=10).check().outputs == 10


def test_the_split_follows_the_seed() -> None:
    splits = [Federation.from_arrays([(X, Y)] * 2, test=0.5, seed=seed).train for seed in (1, 1, 2)]
    assert torch.equal(splits[0].numbers, splits[1].numbers)
    assert not torch.equal(splits[0].numbers, splits[2].numbers)
    assert not torch.equal(splits[0].row(0), splits[0].row(1) - 10)  # each client has a split of its own


@pytest.mark.parametrize(("samples", "test"), [(1, 0.6), (3, 0.9)])
def test_a_client_with_data_keeps_some_to_train_on(samples: int, test: float) -> None:
    made = Federation.from_arrays([(X[:samples], Y[:samples])], test=test)
    assert int(made.train.lengths[0]) == 1
    assert int(made.test.lengths[0]) == samples - 1


GOOD = (X, Y)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([GOOD, (X[:, :1], Y)], r"client 1 has samples of shape \(1,\), client 0 of \(2,\)"),
        ([GOOD, (X, Y[:3])], "client 1 has 10 inputs but 3 labels"),
        ([GOOD, (X, Y, X)], "client 1 has 3 arrays"),
        ([GOOD, (X, Y * 1.0)], r"client 1 has torch.float32 labels, client 0 has torch.int64"),
        ([GOOD, (X, np.array(["a"] * 10))], "client 1 has labels that are names, those of client 0 are numbers"),
        ([GOOD, (X, np.array([None] * 10))], "client 1: y is not an array of numbers"),
        ([GOOD, ([[1.0, 2.0], [3.0]], [0, 1])], "client 1: x is not an array of numbers"),
        ([(X, Y, X[:, :1], Y)], r"client 0 has samples of shape"),
        ([(X, np.array(["a"] * 10), X, Y)], "labels to train on are names, those to test on numbers"),
        ([(X, X[:, :1]), (X, X)], "client 1"),
        ([], "at least one client"),
    ],
    ids=[
        "shape",
        "length",
        "arity",
        "kind",
        "text",
        "objects",
        "ragged",
        "own test shape",
        "two kinds",
        "targets",
        "nobody",
    ],
)
def test_own_data_that_does_not_fit_names_the_client(clients: list[Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Federation.from_arrays(clients)


def test_a_share_to_test_on_leaves_something_to_train_on() -> None:
    with raises("data-split", match=r"0 <= test < 1, not 1\.0"):
        Federation.from_arrays([GOOD], test=1.0)


def test_a_truth_must_name_every_client() -> None:
    with raises("data-shape", match="truth names 1 clients, the data has 2"):
        Federation.from_arrays([GOOD, GOOD], truth=[0])


def spoiled(value: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    out = X.copy()
    out[3, 1] = value
    return out


@pytest.mark.parametrize(
    ("clients", "outputs", "message"),
    [
        ([GOOD, (spoiled(np.nan), Y)], None, "client 1 has NaN or Inf in its inputs"),
        ([GOOD, (X, Y, spoiled(np.inf), Y)], None, "client 1 has NaN or Inf in its inputs"),
        ([(X, X), (X, spoiled(np.nan))], None, "client 1 has NaN or Inf in its targets"),
        ([GOOD, (X[:0], Y[:0])], None, "client 1 has no training samples"),
        ([(X[:2], Y[:2]), GOOD], 2, r"client 1 has a label outside 0\.\.1"),
        ([GOOD, (X, Y - 1)], None, r"client 1 has a label outside 0\.\.2"),
    ],
    ids=["nan", "inf in test", "nan target", "no samples", "label too large", "negative label"],
)
def test_data_that_no_training_survives_names_the_client(clients: list[Any], outputs: int | None, message: str) -> None:
    made = Federation.from_arrays(clients, outputs=outputs)
    with pytest.raises(CoterieError, match=message):
        made.check()


def test_labels_are_checked_as_the_clients_see_them() -> None:
    """The table says 0..1, the second domain makes 5 of a 1: client 1 sees it."""
    table = Domain(torch.zeros(2, 1), torch.tensor([0, 1]))
    other = Domain(table.x, table.y, relabel=torch.tensor([0, 5]))
    made = federation(domains=(table, other), train=Ragged.of([[0, 1], [2, 3]]), test=Ragged.of([[], []]))
    with raises("data-labels", match="client 1 has a label outside"):
        made.check()


def test_a_federation_without_clients_is_refused() -> None:
    with raises("data-empty", match="at least one client"):
        federation(train=Ragged.of([]), test=Ragged.of([])).check()


# ------------------------------------------------------------------------------------------- partitions


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, float]:
    """Samples, clients (no more than samples) and the share held out."""
    n = draw(st.integers(1, 40))
    return n, draw(st.integers(1, n)), draw(st.sampled_from([0.0, 0.2, 0.5, 0.99]))


def assert_every_sample_once(made: Federation, n: int) -> None:
    """Whatever the domain, each sample of the table is with exactly one client, to train or to test."""
    numbers = torch.cat([made.train.numbers, made.test.numbers])
    assert sorted((numbers % n).tolist()) == list(range(n))
    assert int(made.train.lengths.min()) >= 1
    total = made.train.lengths + made.test.lengths
    assert int(total.max() - total.min()) <= 1


@given(sizes(), st.integers(0, 1000))
def test_iid_loses_no_sample_and_doubles_none(size: tuple[int, int, float], seed: int) -> None:
    n, clients, test = size
    made = IID(clients=clients, test=test)(images(n), rng(seed))
    assert len(made) == clients
    assert_every_sample_once(made, n)


@given(sizes(), st.integers(1, 5), st.integers(0, 1000))
def test_rotated_loses_no_sample_and_doubles_none(size: tuple[int, int, float], clusters: int, seed: int) -> None:
    n, clients, test = size
    angles = (0.0, 90.0, 180.0, 270.0, 45.0)[: min(clusters, clients)]
    made = Rotated(clients=clients, angles=angles, test=test)(images(n), rng(seed))
    assert_every_sample_once(made, n)
    assert made.truth is not None
    members = Counter(made.truth.tolist())
    assert set(members) == set(range(len(angles)))
    assert max(members.values()) - min(members.values()) <= 1
    assert sorted(made.truth.tolist()) == made.truth.tolist()


@pytest.mark.parametrize("partition", [IID(clients=3), Rotated(clients=4)])
def test_the_same_seed_gives_the_same_partition(partition: IID | Rotated) -> None:
    made = [partition(images(20), rng(seed)).train.numbers for seed in (1, 1, 2)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_rotated_clients_see_the_images_of_their_cluster() -> None:
    data = images(8)
    made = Rotated(clients=4, angles=(0.0, 90.0, 180.0, 270.0), test=0.0)(data, rng())
    for client in range(4):
        rows = made.train.row(client) % 8
        x, y = made.samples(client, "train")
        assert torch.equal(x, torch.rot90(data.x[rows], client, (-2, -1)))
        assert torch.equal(y, data.y[rows])


@pytest.mark.parametrize("side", [4, 5])
@pytest.mark.parametrize(("angle", "turns"), [(0.0, 0), (90.0, 1), (180.0, 2), (270.0, 3), (-90.0, 3)])
def test_rotate_by_quarter_turns_is_rot90(angle: float, turns: int, side: int) -> None:
    x = torch.rand(3, 2, side, side, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotate(x, angle), torch.rot90(x, turns, (-2, -1)), atol=1e-4, rtol=0)
    small = (x * 255).to(torch.uint8)
    turned = rotate(small, angle)
    assert turned.dtype == torch.uint8
    assert torch.equal(turned, torch.rot90(small, turns, (-2, -1)))


def test_rotate_keeps_the_proportions_of_images_that_are_not_square() -> None:
    """A bright column left of the center, turned by 90 degrees counter-clockwise, is a bright row below it."""
    x = torch.zeros(1, 1, 5, 9)
    x[..., 3] = 1.0
    turned = rotate(x, 90.0)[0, 0]
    assert turned[3, 2:7].tolist() == pytest.approx([1.0] * 5, abs=1e-4)
    assert float(turned.sum()) == pytest.approx(5.0, abs=1e-3)


def test_an_oblique_rotation_moves_the_right_way() -> None:
    """A dot right of the center, turned by 45 degrees counter-clockwise, is up right of it."""
    x = torch.zeros(1, 1, 7, 7)
    x[0, 0, 3, 5] = 1.0
    turned = rotate(x, 45.0)[0, 0]
    row, column = divmod(int(turned.argmax()), 7)
    assert row < 3 < column


def refuse_to_deal(partition: IID | Rotated, data: Dataset, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        partition(data, rng())


def test_partitions_that_cannot_be_are_refused() -> None:
    flat = Dataset("flat", torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), 1, Scale())
    refuse_to_deal(Rotated(clients=4), flat, "only images can be rotated")
    refuse_to_deal(Rotated(clients=3), images(20), "4 clusters need at least as many clients, not 3")
    refuse_to_deal(IID(clients=5), images(4), "4 samples cannot be dealt to 5 clients")


def test_iid_holds_out_a_share_of_every_hand() -> None:
    made = IID(clients=4, test=0.4)(images(20), rng())
    assert made.train.lengths.tolist() == [3] * 4
    assert made.test.lengths.tolist() == [2] * 4


# -------------------------------------------------------------------------------------------- synthetic


def least_squares(x: Tensor, y: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.lstsq(x.double(), y.double()).solution
    return solution[:, 0]


def test_least_squares_recovers_the_theta_of_each_cluster() -> None:
    """Without noise every client's data gives its cluster's theta exactly: one per cluster, all different."""
    made = SyntheticRegression(clients=6, clusters=3, dimension=4, samples=(10, 20), noise=0.0)(rng())
    assert made.truth is not None
    assert made.truth.tolist() == [0, 0, 1, 1, 2, 2]
    theta = [least_squares(*made.samples(client, "train")) for client in range(6)]
    for one, other in combinations(range(6), 2):
        same = made.truth[one] == made.truth[other]
        assert torch.allclose(theta[one], theta[other], atol=1e-4) == same
    for client in range(6):
        x, y = made.samples(client, "test")
        assert len(y) > 0
        torch.testing.assert_close(x.double() @ theta[client], y[:, 0].double(), atol=1e-4, rtol=0)


def test_noise_and_variance_are_as_asked() -> None:
    """2,000 residuals of noise 0.5, and 400 entries of theta of variance 9, to within a few standard errors."""
    made = SyntheticRegression(
        clients=20, clusters=20, dimension=20, samples=(100, 100), variance=9.0, noise=0.5, test=0.0
    )(rng())
    data = [made.samples(client, "train") for client in range(20)]
    theta = [least_squares(x, y) for x, y in data]
    left = [y[:, 0] - x @ t.float() for (x, y), t in zip(data, theta, strict=True)]
    # Least squares takes 20 of 100 degrees of freedom.
    assert float(torch.cat(left).square().sum() / (20 * 80)) == pytest.approx(0.25, rel=0.15)
    assert float(torch.cat(theta).square().mean()) == pytest.approx(9.0, rel=0.25)


def test_sizes_lie_between_the_two_given() -> None:
    made = SyntheticRegression(clients=30, samples=(5, 8), test=0.0)(rng())
    assert set(made.train.lengths.tolist()) == {5, 6, 7, 8}
    assert made.check().outputs == 1


def test_a_generated_client_keeps_some_to_train_on() -> None:
    made = SyntheticRegression(clients=4, samples=(1, 1), test=0.6)(rng())
    assert made.train.lengths.tolist() == [1, 1, 1, 1]


def test_a_generated_federation_follows_its_seed() -> None:
    one, same, other = (SyntheticRegression(clients=4)(rng(seed)).domains[0].y for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one[:10], other[:10])
