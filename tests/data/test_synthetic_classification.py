"""Synthetic(alpha, beta) of Shamir et al. and Li et al.: sizes, inputs, and one model or many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from coterie import CoterieError, Federation, federate
from coterie.core.registry import DATASETS, NO_CODE
from coterie.data import Synthetic

Floats = NDArray[np.float64]


def made(seed: int = 0, **params: Any) -> Federation:
    return Synthetic(**params)(np.random.default_rng(seed))


def everything(federation: Federation, client: int) -> tuple[Floats, NDArray[np.int64]]:
    """A client's samples, training and test together."""
    (x, y), (test_x, test_y) = federation.samples(client, "train"), federation.samples(client, "test")
    return torch.cat([x, test_x]).double().numpy(), torch.cat([y, test_y]).numpy()


def sizes(federation: Federation) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (federation.train.lengths + federation.test.lengths).numpy()
    return found


def test_every_client_has_fifty_samples_or_more_and_sizes_are_lognormal() -> None:
    """size - 50 is a lognormal(4, 2) cut to a whole number: its median is e^4 = 54.6, and ln has deviation 2. Of 400
    clients the median of the logs is off by about 2 * 1.25 / sqrt(400) = 0.13."""
    found = sizes(made(clients=400, features=1, classes=2))
    assert found.min() >= 50
    logs = np.log(found - 50 + 0.5)
    assert np.median(logs) == pytest.approx(4.0, abs=0.5)
    low, high = np.quantile(logs, [0.16, 0.84])
    assert (high - low) / 2 == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize(("test", "params"), [(0.1, {}), (0.25, {"test": 0.25}), (0.0, {"test": 0.0})])
def test_a_tenth_of_every_clients_samples_is_held_out(test: float, params: dict[str, Any]) -> None:
    federation = made(clients=20, **params)
    np.testing.assert_array_equal(federation.test.lengths.numpy(), np.round(test * sizes(federation)).astype(int))
    rows = torch.cat([federation.train.numbers, federation.test.numbers])
    assert sorted(rows.tolist()) == list(range(len(federation.domains[0].y)))  # each sample once


def test_shapes_classes_and_what_is_said() -> None:
    federation = federate("synthetic")
    assert (len(federation), federation.outputs, federation.input_shape) == (100, 10, (60,))
    assert federation.kind == "classification"
    assert (federation.truth, federation.mixture) == (None, None)
    assert "synthetic(1, 1): 100 clients" in federation.describe()
    assert "synthetic(0.5, 0): 3" in made(clients=3, alpha=0.5, beta=0.0).describe()
    small = made(clients=4, features=7, classes=3, iid=True)
    assert (small.input_shape, small.outputs) == ((7,), 3)
    assert "synthetic iid: 4 clients" in small.describe()
    federation.check()


def test_feature_j_of_iid_clients_has_mean_zero_and_deviation_j_to_the_minus_three_fifths() -> None:
    """Variance j^-1.2, j from 1: 1, 0.66, ..., 60^-0.6 = 0.086; of about 10^5 samples known to a percent or so."""
    federation = made(clients=100, iid=True)
    x = federation.domains[0].x.double()
    expected = torch.arange(1, 61).double() ** -0.6
    assert float(expected[59]) == pytest.approx(0.0857, abs=1e-4)
    torch.testing.assert_close(x.std(0), expected, rtol=0.04, atol=0)
    assert float((x.mean(0) / expected).abs().max()) < 0.05
    # The same around the client's own middle where clients differ.
    apart = made(clients=30, alpha=1.0, beta=1.0)
    biggest = int(np.argmax(sizes(apart)))
    own, _ = everything(apart, biggest)
    np.testing.assert_allclose(own.std(0), expected.numpy(), rtol=0.15)


def middles(beta: float, seed: int = 0) -> Floats:
    """(clients, features) the mean of each client's inputs."""
    federation = made(seed, clients=60, beta=beta)
    return np.stack([everything(federation, c)[0].mean(0) for c in range(60)])


def test_beta_is_the_deviation_of_the_mean_of_a_clients_middle() -> None:
    """The middle of client k is N(B_k, 1) in each feature, B_k ~ N(0, beta): the mean over 60 features has variance
    beta^2 + 1/60, and within a client features differ by 1 whatever beta is."""
    for beta in (0.0, 1.0, 5.0):
        found = middles(beta)
        assert found.mean(1).std() == pytest.approx((beta**2 + 1 / 60) ** 0.5, rel=0.3)
        assert found.std(1).mean() == pytest.approx(1.0, rel=0.1)


def accuracy(federation: Federation, clients: list[int]) -> float:
    """What a single linear classifier reaches on all samples of these clients, at most 200 of each."""
    parts = [everything(federation, c) for c in clients]
    x, y = np.concatenate([p[0][:200] for p in parts]), np.concatenate([p[1][:200] for p in parts])
    model = LogisticRegression(C=100.0, max_iter=300, tol=1e-3).fit(x, y)
    return float(model.score(x, y))


def test_iid_is_one_model_for_all_and_otherwise_there_is_one_each() -> None:
    """One linear classifier serves all iid clients; it cannot serve clients with models of their own, though it can any
    single one of them. (Ten features: with sixty it would tell thirty clients from each other by their inputs.)"""
    one, many = made(clients=30, iid=True, features=10), made(clients=30, features=10)
    everyone = list(range(30))
    assert accuracy(one, everyone) > 0.95
    together = accuracy(many, everyone)
    alone = min(accuracy(many, [c]) for c in everyone[:4] if len(np.unique(everything(many, c)[1])) > 1)
    assert together < 0.75
    assert alone > 0.95
    # Models differ even where inputs do not: alpha = 0 and beta = 0 is not iid.
    assert accuracy(made(clients=30, features=10, alpha=0.0, beta=0.0), everyone) < 0.75


def test_labels_are_those_of_a_linear_model_with_a_bias() -> None:
    """With one feature and two classes a client's labels are a threshold: sorted by x they change at most once, and
    where they do is -(b1 - b0) / (w1 - w0), which without a bias would be 0 for everyone."""
    federation = made(clients=40, features=1, classes=2)
    thresholds = []
    for client in range(40):
        x, y = everything(federation, client)
        order = np.argsort(x[:, 0])
        places = np.flatnonzero(np.diff(y[order]))
        assert len(places) <= 1
        thresholds += x[order, 0][places].tolist()
    assert len(thresholds) > 10
    assert np.std(thresholds) > 0.3


def test_alpha_moves_weights_and_bias_of_a_client_together() -> None:
    """With W and b around one number u_k for all classes, u_k cancels in the argmax: alpha alone changes no label's
    chances. The draws are the same, and so are all labels up to float noise."""
    near, far = made(clients=10, alpha=0.0), made(clients=10, alpha=3.0)
    assert torch.equal(near.domains[0].x, far.domains[0].x)
    agree = float((near.domains[0].y == far.domains[0].y).double().mean())
    assert agree > 0.99


@pytest.mark.parametrize("iid", [True, False])
def test_the_seed_says_all(iid: bool) -> None:
    assert made(3, clients=5, iid=iid).checksum() == made(3, clients=5, iid=iid).checksum()
    assert made(3, clients=5, iid=iid).checksum() != made(4, clients=5, iid=iid).checksum()
    assert federate(Synthetic(clients=5), seed=1).checksum() != federate(Synthetic(clients=5), seed=2).checksum()


@pytest.mark.parametrize(
    ("params", "key"),
    [({"clients": 0}, "clients"), ({"alpha": -1}, "alpha"), ({"test": 1.0}, "test"), ({"betta": 1}, "betta.*beta")],
)
def test_parameters_out_of_their_domain_are_named(params: dict[str, Any], key: str) -> None:
    with pytest.raises(CoterieError, match=rf"data\.{key}"):
        DATASETS.build("synthetic", params, NO_CODE)
