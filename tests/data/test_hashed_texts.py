"""Texts as hashed words."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.data.cells import hashed
from coterie.data.texts import Texts

TOPICS = {"sport": "goal match team score", "money": "bank shares profit market"}


def test_by_hand() -> None:
    """Counts 1 and 2 of two words: 1 and 1 + log 2, with their signs, of length 1 together."""
    (row,) = hashed(["Cat dog, DOG!"], 64).double().tolist()
    codes = [zlib.crc32(word) for word in (b"cat", b"dog")]
    expected = np.zeros(64)
    for code, weight in zip(codes, (1, 1 + np.log(2)), strict=True):
        expected[(code >> 1) % 64] += weight if code & 1 else -weight
    np.testing.assert_allclose(row, expected / np.linalg.norm(expected), atol=1e-3)


@given(st.lists(st.text(max_size=30), max_size=4), st.integers(1, 40))
def test_any_text_is_a_vector_of_length_one_or_nothing(texts: list[str], size: int) -> None:
    found = hashed(texts, size)
    assert found.shape == (len(texts), size)
    assert torch.equal(found, hashed(texts, size))
    for length in found.double().norm(dim=1).tolist():
        assert abs(length - 1) < 1e-2 or length == 0
    if len(texts) == 2:
        assert torch.equal(hashed(texts[::-1], size).flip(0), found)


def test_news_are_learnt_from_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["text,label,client"]
    for client in range(4):
        for topic, words in TOPICS.items():
            lines += [f"{' '.join(rng.permutation(words.split())[:2])} the {n},{topic},c{client}" for n in range(8)]
    file = tmp_path / "news.csv"
    file.write_text("\n".join(lines))
    data = Texts(path=str(file), text="hashed", size=64)()
    assert (data.x.dtype, tuple(data.x.shape), data.class_names) == (torch.float16, (64, 64), ("money", "sport"))
    federation = coterie.federate(Texts(path=str(file), text="hashed", size=64))
    result = coterie.run(coterie.FedAvg(local=coterie.Local(epochs=5, lr=1.0)), federation, "linear", rounds=5)
    assert result.accuracy is not None
    assert result.accuracy > 0.9
