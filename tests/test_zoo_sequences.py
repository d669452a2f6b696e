"""The networks for signals and for words: shapes, what they read, and that they learn on both engines."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from conftest import raises
from coterie import CoterieError, FedAvg, Federation, Local
from coterie.core.registry import MODELS, NO_CODE
from coterie.data.federation import Domain, Ragged
from coterie.zoo import CNN1D, LSTM

SMALL = LSTM(vocabulary=12, embedding=4, hidden=6, dense=5)


def numbers_in(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


# ---------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(("shape", "outputs"), [((9, 128), 6), ((1, 4), 2), ((3, 7), 1), ((2, 50), 11)])
def test_cnn1d_gives_a_number_per_class_for_every_signal(shape: tuple[int, int], outputs: int) -> None:
    network = CNN1D()(shape, outputs)
    assert network(torch.zeros(5, *shape)).shape == (5, outputs)


def test_cnn1d_has_the_parameters_that_its_fields_say() -> None:
    """First 9 * 32 * 9 + 32, second 32 * 64 * 9 + 64; 128 / 4 = 32 places, so 64 * 32 * 64 + 64; last 64 * 6 + 6."""
    by_hand = (9 * 32 * 9 + 32) + (32 * 64 * 9 + 64) + (64 * 32 * 64 + 64) + (64 * 6 + 6)
    assert numbers_in(CNN1D()((9, 128), 6)) == by_hand
    # 10 // 4 = 2 places are left after pooling twice.
    small = CNN1D(channels=(3, 4), kernel=5, hidden=7)((2, 10), 2)
    assert numbers_in(small) == (2 * 3 * 5 + 3) + (3 * 4 * 5 + 4) + (4 * 2 * 7 + 7) + (7 * 2 + 2)


@pytest.mark.parametrize("shape", [(10,), (1, 8, 8), (3, 3), ()])
def test_cnn1d_refuses_what_is_no_signal_and_names_another_model(shape: tuple[int, ...]) -> None:
    with raises("model-shape", match=r"cnn1d wants signals .*model\.name=mlp") as error:
        CNN1D()(shape, 2)
    assert str(shape) in str(error.value)


def test_cnn1d_is_refused_before_a_run_on_images() -> None:
    with raises("model-shape"):
        coterie.run("fedavg", coterie.federate("digits", "iid"), "cnn1d", rounds=1)


# ------------------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(("words", "outputs"), [(1, 2), (7, 1), (25, 3)])
def test_lstm_gives_a_number_per_class_for_every_text(words: int, outputs: int) -> None:
    network = SMALL((words,), outputs)
    assert network(torch.ones(5, words, dtype=torch.int64)).shape == (5, outputs)


def test_lstm_has_the_parameters_that_its_fields_say() -> None:
    """A layer of h over i inputs has four gates of h * i + h * h + 2 h; embedding 12 * 4; 6 * 5 + 5; 5 * 2 + 2."""
    layers = 4 * (6 * 4 + 6 * 6 + 2 * 6) + 4 * (6 * 6 + 6 * 6 + 2 * 6)
    assert numbers_in(SMALL((9,), 2)) == 12 * 4 + layers + (6 * 5 + 5) + (5 * 2 + 2)


def test_padding_behind_the_last_word_is_not_read() -> None:
    """The same words in 4, 6 and 30 places: the same logits; and what is read is read in order to the last word."""
    torch.manual_seed(0)
    network = SMALL((4,), 3)
    words = torch.tensor([[5, 2, 7, 3], [4, 1, 0, 0], [9, 0, 0, 0]])
    short = network(words)
    for places in (6, 30):
        padded = torch.zeros(3, places, dtype=torch.int64)
        padded[:, :4] = words
        torch.testing.assert_close(network(padded), short)
    # One text alone, cut to its own length, says the same.
    torch.testing.assert_close(network(words[1:2, :2]), short[1:2])
    for other in ([5, 2, 7, 4], [4, 2, 7, 3], [2, 5, 7, 3], [5, 2, 7, 0]):
        assert not torch.allclose(network(torch.tensor([other])), short[:1]), other


def test_the_numbers_of_padding_do_not_matter_and_do_not_learn() -> None:
    """The embedding of padding is not read, and no gradient reaches it; that of the words is."""
    torch.manual_seed(0)
    network: Any = SMALL((4,), 2)
    words = torch.tensor([[5, 2, 0, 0]])
    before = network(words)
    with torch.no_grad():
        network.embedding.weight[0] = 99.0
    assert torch.equal(network(words), before)
    network(words).sum().backward()
    changed = network.embedding.weight.grad.abs().sum(1).nonzero()[:, 0]
    assert changed.tolist() == [2, 5]


def test_a_text_without_words_is_read_as_one_padding() -> None:
    network = SMALL((3,), 2)
    nothing, longer = network(torch.zeros(2, 3, dtype=torch.int64)), network(torch.zeros(1, 9, dtype=torch.int64))
    assert bool(nothing.isfinite().all())
    torch.testing.assert_close(nothing[:1], longer)


@pytest.mark.parametrize("shape", [(1, 8, 8), (9, 128), ()])
def test_lstm_refuses_what_is_no_list_of_words(shape: tuple[int, ...]) -> None:
    with raises("model-shape") as error:
        LSTM()(shape, 2)
    assert str(shape) in str(error.value)


def test_features_that_are_no_word_numbers_are_told_before_a_run() -> None:
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(10, 4)).astype(np.float32), rng.integers(0, 2, 10))] * 2
    with raises("model-shape"):
        coterie.run("fedavg", data, "lstm", rounds=1)


@pytest.mark.parametrize(
    ("name", "params", "key"),
    [
        ("cnn1d", {"kernel": 0}, r"model\.kernel"),
        ("cnn1d", {"channels": [3]}, r"model\.channels"),
        ("cnn1d", {"hiden": 3}, r"model\.hiden.*hidden"),
        ("lstm", {"layers": -1}, r"model\.layers"),
        ("lstm", {"vocabulary": "many"}, r"model\.vocabulary"),
    ],
)
def test_parameters_out_of_their_domain_are_named(name: str, params: dict[str, Any], key: str) -> None:
    with pytest.raises(CoterieError, match=key):
        MODELS.build(name, params, NO_CODE)


# --------------------------------------------------------------------------------------------------------- learning


def spread(x: Tensor, y: Tensor, clients: int, *, words: bool = False) -> Federation:
    """Samples dealt in turn; every fourth of a client's is to test on."""
    rows = [np.arange(c, len(y), clients) for c in range(clients)]
    held = [row[::4] for row in rows]
    train = [np.setdiff1d(row, test) for row, test in zip(rows, held, strict=True)]
    domain = Domain(x, y, None) if words else Domain(x, y)
    return Federation((domain,), Ragged.of(train), Ragged.of(held), outputs=2)


def signals() -> Federation:
    """Two channels of 16: slow and fast waves, at a random phase."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    at = rng.uniform(0, 6, 120)[:, None, None] + np.arange(16) * np.where(y, 2.0, 0.5)[:, None, None]
    x = np.concatenate([np.sin(at), np.cos(at)], 1) + 0.1 * rng.normal(size=(120, 2, 16))
    return spread(torch.from_numpy(x).float(), torch.from_numpy(y), 3)


def texts() -> Federation:
    """Texts of 2 to 5 words out of 2..11 in 6 places: the last word says the label, 2..6 no and 7..11 yes."""
    rng = np.random.default_rng(0)
    x = torch.zeros(240, 6, dtype=torch.int64)
    y = torch.zeros(240, dtype=torch.int64)
    for i in range(240):
        n = int(rng.integers(2, 6))
        x[i, :n] = torch.from_numpy(rng.integers(2, 12, n))
        y[i] = int(x[i, n - 1] >= 7)
    return spread(x, y, 3, words=True)


@pytest.mark.parametrize("kind", ["signals", "texts"])
def test_both_learn_on_both_engines_alike(kind: Literal["signals", "texts"]) -> None:
    """Clearly more than the half that guessing gives; workers agree with the reference to float noise."""
    data, local = (signals(), Local(steps=8, batch=16, lr=0.1, momentum=0.9))
    network: Any = CNN1D(channels=(4, 6), kernel=3, hidden=8)
    if kind == "texts":
        data, local = texts(), Local(steps=15, batch=20, lr=0.02, optimizer="adam")
        network = SMALL
    options: dict[str, Any] = {"model": lambda: network(data.input_shape, 2), "rounds": 4, "seed": 0}
    one = coterie.run(FedAvg(local=local), data, engine="sequential", **options)
    two = coterie.run(FedAvg(local=local), data, engine="workers", workers=2, **options)
    assert one.accuracy is not None
    assert one.accuracy > 0.8
    torch.testing.assert_close(one.state, two.state, rtol=1e-4, atol=1e-5)
    assert two.accuracy == pytest.approx(one.accuracy)


def test_both_run_by_name_with_clusters() -> None:
    local = Local(steps=1, batch=8)
    for name, data in (("cnn1d", signals()), ("lstm", texts())):
        result = coterie.run(coterie.IFCA(k=2, local=local), data, name, rounds=1)
        assert result.accuracy is not None
        inputs, _ = data.samples(0, "test")
        assert result.predict(0, inputs).shape == (len(inputs),)
