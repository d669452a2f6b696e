"""From a data set and a partition to a federation: every kind of either, and what cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from conftest import raises
from coterie import CoterieError, Federation, federate
from coterie.core.seeds import Purpose, generator
from coterie.data import IID, Dataset, Digits, Natural, Rotated, Synthetic, SyntheticRegression
from coterie.data.federate import Partition, makes_clients


def dataset(*, owned: bool = True) -> Dataset:
    """Twelve samples of two features; sample i belongs to client i % 3."""
    x = torch.arange(24.0).reshape(12, 2)
    owner = np.arange(12) % 3 if owned else None
    return Dataset("twelve", x, torch.arange(12) % 2, 2, client=owner, client_names=("a", "b", "c") if owned else None)


def same(one: Federation, other: Federation) -> bool:
    return one.checksum() == other.checksum() and one.describe() == other.describe()


# -------------------------------------------------------------------------------------------------- what may be given


def test_names_are_the_objects_with_their_defaults() -> None:
    named = federate("digits", "rotated")
    assert len(named) == 40
    assert same(named, federate(Digits(), Rotated()))
    assert same(named, federate(Digits()(), "rotated"))
    assert same(named, federate("digits", Rotated()))
    # What is drawn is drawn from the seed's own stream, and nothing else is.
    assert same(named, Rotated()(Digits()(), generator(0, Purpose.PARTITION)))


@pytest.mark.parametrize("partition", ["iid", "dirichlet", IID(clients=7)])
def test_the_seed_says_who_gets_what(partition: Any) -> None:
    assert same(federate("digits", partition, seed=3), federate("digits", partition, seed=3))
    assert not same(federate("digits", partition, seed=3), federate("digits", partition, seed=4))


def test_parameters_of_objects_are_used() -> None:
    made = federate(Digits(), IID(clients=7, test=0.5))
    assert len(made) == 7
    assert int(made.test.lengths.sum()) == pytest.approx(1797 / 2, abs=4)


def test_a_federation_is_as_it_is() -> None:
    made = Federation.from_arrays([(np.zeros((4, 2)), np.zeros(4, dtype=np.int64))])
    assert federate(made) is made


def test_data_whose_samples_have_owners_has_a_client_for_each() -> None:
    """Four samples each, a fifth of which (rounded: one) to test on."""
    made = federate(dataset())
    assert made.names == ("a", "b", "c")
    assert made.train.lengths.tolist() == [3, 3, 3]
    assert made.test.lengths.tolist() == [1, 1, 1]
    for client in range(3):
        x = torch.cat([made.samples(client, "train")[0], made.samples(client, "test")[0]])
        # Sample i is (2i, 2i + 1), and i % 3 is its owner.
        assert (x[:, 0] / 2 % 3).tolist() == [client] * 4
    assert same(made, federate(dataset(), "natural"))
    assert same(made, federate(dataset(), Natural()))


def test_data_whose_samples_have_owners_may_be_dealt_otherwise() -> None:
    made = federate(dataset(), IID(clients=2))
    assert len(made) == 2
    assert made.names is None


@pytest.mark.parametrize("maker", [Synthetic(clients=3), SyntheticRegression(clients=6)])
def test_generated_data_has_clients_of_its_own(maker: Synthetic | SyntheticRegression) -> None:
    made = federate(maker, seed=5)
    assert len(made) == maker.clients
    assert same(made, maker(generator(5, Purpose.PARTITION)))
    assert not same(made, federate(maker, seed=6))


def test_a_generator_by_name_has_its_defaults() -> None:
    assert same(federate("synthetic-regression"), federate(SyntheticRegression()))


# ------------------------------------------------------------------------------------------------- a user's own parts


@dataclass(frozen=True)
class Halves:
    """The first half of the samples to one client, the rest to the other; drawn: which one is first."""

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        x, y, half = data.x.numpy(), data.y.numpy(), len(data.y) // 2
        hands = [(x[:half], y[:half]), (x[half:], y[half:])]
        return Federation.from_arrays(
            hands if rng.random() < 0.5 else hands[::-1], outputs=data.classes, standardise=False
        )


@dataclass(frozen=True)
class Mine:
    """A user's data set."""

    def __call__(self) -> Dataset:
        return dataset()


@dataclass(frozen=True)
class MadeByMe:
    """A user's generator of clients."""

    def __call__(self, rng: np.random.Generator) -> Federation:
        return Federation.from_arrays([(rng.normal(size=(5, 2)), np.zeros(5, dtype=np.int64))] * 2)


def test_a_users_partition_is_handed_the_data_and_the_seeds_generator() -> None:
    assert isinstance(Halves(), Partition)
    firsts = {float(federate(dataset(), Halves(), seed=s).samples(0, "train")[0].min()) < 12 for s in range(12)}
    assert firsts == {True, False}
    assert same(federate(dataset(), Halves(), seed=1), federate(Mine(), Halves(), seed=1))
    plain = federate(dataset(), lambda data, rng: Halves()(data, rng), seed=1)
    assert same(plain, federate(dataset(), Halves(), seed=1))


def test_a_users_data_set_and_generator_are_called() -> None:
    assert same(federate(Mine()), federate(dataset()))
    assert same(federate(dataset), federate(dataset()))  # a function, too
    assert same(federate(MadeByMe(), seed=2), MadeByMe()(generator(2, Purpose.PARTITION)))


def test_a_users_function_that_draws_is_given_the_seeds_generator() -> None:
    def drawn(rng: np.random.Generator) -> Federation:
        return MadeByMe()(rng)

    assert same(federate(drawn, seed=2), federate(MadeByMe(), seed=2))


def test_what_makes_clients_is_told_by_its_signature() -> None:
    assert [makes_clients(kind) for kind in (Synthetic, SyntheticRegression, MadeByMe)] == [True] * 3
    assert [makes_clients(kind) for kind in (Digits, Mine, coterie.data.NPZ, coterie.data.MNIST)] == [False] * 4
    assert makes_clients(dataset)  # a user's function may; it is not asked before it is called


# ------------------------------------------------------------------------------------------------------------- errors

WRONG: dict[str, tuple[Any, Any, str]] = {
    "an unknown data set": ("digit", "iid", r"data\.name: unknown data 'digit'\. Did you mean 'digits'"),
    "an unknown partition": ("digits", "idd", r"data\.partition\.name: unknown partition 'idd'\. Did you mean 'iid'"),
    "no partition": ("digits", None, r"'digits' must be spread over clients.*data\.client=COLUMN.*name=iid.*dirichlet"),
    "no partition of an object": (Digits(), None, r"data\.partition: 'digits' must be spread"),
    "natural without owners": (dataset(owned=False), "natural", r"data\.partition: twelve does not say whose"),
    "own clients by name": ("synthetic-regression", "iid", r"data\.partition: 'synthetic-regression' has clients of"),
    "own clients of an object": (SyntheticRegression(), IID(), r"'SyntheticRegression' has clients of its own; leave"),
    "a federation": (federate(dataset()), IID(), r"data\.partition: 'twelve' has clients of its own"),
    "a user's clients": (MadeByMe(), "iid", r"'MadeByMe' has clients of its own"),
    "no data": (None, None, r"data\.name: 'NoneType' gave a NoneType; expected a Federation"),
    "a list": ([(np.zeros((3, 2)), np.zeros(3))], None, r"gave a list; expected a Federation.*from_arrays"),
    "a function of nothing": (lambda: 3, "iid", r"gave a int; expected a Federation"),
    "a class": (Digits, "iid", r"data: Digits is a class; write Digits\(\.\.\.\)"),
    "a partition of nothing": (dataset(), lambda data, rng: None, r"data\.partition\.name: the partition gave a None"),
    "a partition of samples": (dataset(), lambda data, rng: data, r"gave a Dataset; expected a Federation"),
    "parameters that are missing": ("npz", None, r"data\.path"),
    "more clients than samples": (dataset(), IID(clients=50), "use fewer clients"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_told(what: str) -> None:
    data, partition, message = WRONG[what]
    with pytest.raises(CoterieError, match=message):
        federate(data, partition)


@pytest.mark.parametrize(
    ("partition", "hint"), [(IID, r"write IID\("), (3, "give a name"), ({"name": "iid"}, "give a name")]
)
def test_what_is_no_partition_is_told(partition: Any, hint: str) -> None:
    with raises("component-invalid", match=rf"data\.partition: .* is not a partition; {hint}"):
        federate("digits", partition)


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    found, raw = Digits()(), load_digits()
    np.testing.assert_array_equal(found.x[:, 0].numpy(), raw.images)
    np.testing.assert_array_equal(found.y.numpy(), raw.target)
