"""Data sets of Hugging Face: exact values, every refusal."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_table import datasets, table
from PIL import Image

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data.bridges.huggingface import from_huggingface


def test_from_huggingface_images() -> None:
    data = from_huggingface(table(), x="image", y="label", client="who")
    assert (tuple(data.x.shape), data.x.dtype) == ((12, 1, 2, 3), torch.uint8)
    assert data.x[:, 0, 1, 2].tolist() == list(range(12))
    assert data.scale is not None
    assert data.scale.divisor == 255
    assert (data.classes, data.y.tolist()) == (3, [i % 3 for i in range(12)])
    assert data.client is not None
    assert data.client.tolist() == [i % 4 for i in range(12)]
    assert data.client_names == ("zoë 0", "zoë 1", "zoë 2", "zoë 3")


def test_from_huggingface_keeps_the_order_of_a_shuffled_one() -> None:
    shuffled = table().shuffle(seed=1).with_format("torch")
    order = [int(i) for i in shuffled["row"][:]]
    assert order != sorted(order)
    data = from_huggingface(shuffled, x="image", y="row", client="who")
    assert data.x[:, 0, 0, 0].tolist() == data.y.tolist() == order
    assert data.client is not None
    assert data.client.tolist() == [i % 4 for i in order]


def test_from_huggingface_numbers() -> None:
    both = from_huggingface(table(3), x=["half", "row"], y="half")
    assert (both.x.tolist(), both.x.dtype) == ([[0, 0], [0.5, 1], [1, 2]], torch.float32)
    assert (both.kind, both.y.tolist()) == ("regression", [[0], [0.5], [1]])
    small = table(3).cast_column("row", datasets.Value("uint8"))
    assert from_huggingface(small, x="row", y="label").x.dtype == torch.float32
    lists = from_huggingface(table(3), x="words", y="who")
    assert (lists.x.tolist(), lists.classes) == ([[0, 1], [1, 2], [2, 3]], 3)
    assert from_huggingface(table(3), x="words", y="who", words=True).scale is None
    arrays = datasets.Dataset.from_dict({"a": [np.full((2, 3), i).tolist() for i in range(2)], "y": ["b", "a"]})
    arrays = arrays.cast_column("a", datasets.Array2D((2, 3), "uint8"))
    data = from_huggingface(arrays, x="a", y="y")
    assert (tuple(data.x.shape), data.x.dtype, data.y.tolist()) == ((2, 1, 2, 3), torch.uint8, [1, 0])


def test_from_huggingface_declared_classes_and_splits() -> None:
    declared = table().cast_column("label", datasets.ClassLabel(names=list("abcdefg")))
    both = datasets.DatasetDict({"train": declared, "test": declared.select([3, 4]), "extra": declared})
    data = from_huggingface(both, x="half", y="label", client="who", name="mine")
    assert (data.name, data.classes, len(data.y)) == ("mine", 7, 14)
    assert data.x[-2:, 0].tolist() == [1.5, 2]
    assert data.official is not None
    assert np.flatnonzero(data.official).tolist() == [12, 13]
    assert data.client is not None
    assert data.client[-2:].tolist() == [3, 0]
    assert len(from_huggingface(declared, x="half", y="label", test=declared.select([1])).y) == 13
    assert from_huggingface(datasets.DatasetDict({"train": declared}), x="half", y="label").official is None


ROWS = {"y": [0, 1], "text": ["a", "b"], "hole": [1, None], "ragged": [[1], [1, 2]], "minus": [0, -1]}


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ([1, 2], {"x": "y"}, r"dataset: expected a datasets.Dataset, not a list"),
        (table(2).to_iterable_dataset(), {"x": "row", "y": "label"}, r"not a IterableDataset .*without streaming"),
        (datasets.DatasetDict({"dev": table(2)}), {"x": "row"}, r"no 'train' among the splits dev"),
        (ROWS, {"x": "tex"}, r"dataset, x: there is no column 'tex'. Did you mean 'text'\? Known: "),
        (ROWS, {"x": ["y", "tex"]}, r"dataset, x: there is no column 'tex'"),
        (ROWS, {"x": "minus", "y": "z"}, r"dataset, y: there is no column 'z'"),
        (ROWS, {"x": "minus", "client": "who"}, r"dataset, client: there is no column 'who'"),
        (ROWS, {"x": "text"}, r"x 'text' has no numbers, arrays or images but Value\('string'\)"),
        (ROWS, {"x": "hole"}, r"x 'hole', sample 1: None is missing or of another length"),
        (ROWS, {"x": "ragged"}, r"x 'ragged', sample 1: \[1, 2\] is missing or of another length"),
        (ROWS, {"x": ["minus", "lists"]}, r"x 'lists': one number per sample is needed"),
        (ROWS, {"x": []}, r"x names no column"),
        (ROWS, {"x": "minus", "y": "hole"}, r"y 'hole', sample 1: the value is missing"),
        (ROWS, {"x": "minus", "y": "ragged"}, r"y 'ragged': this list is no array"),
        (ROWS, {"x": "y", "y": "minus"}, r"sample 1: the label -1 is negative"),
        (ROWS, {"x": "minus", "client": "hole"}, r"client 'hole', sample 1: the value is missing"),
        ({"y": [], "a": []}, {"x": "a"}, r"dataset has no samples"),
        (
            {"a": [Image.new("L", (1, 1)), Image.new("L", (2, 1))], "y": [0, 1]},
            {"x": "a"},
            r"place 1 .*images: one size",
        ),
        ({"a": [Image.new("L", (1, 1)), None], "y": [0, 1]}, {"x": "a"}, r"x 'a', sample 1: this NoneType is no array"),
    ],
)
def test_from_huggingface_refused(dataset: Any, options: dict[str, Any], message: str) -> None:
    if type(dataset) is dict:
        more = {"lists": [[1, 2], [3, 4]]} if dataset is ROWS else {}
        dataset = datasets.Dataset.from_dict(dataset | more)
    with pytest.raises(CoterieError, match=message):
        from_huggingface(dataset, **({"y": "y"} | options))


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = table(2)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with raises("extra-missing", match=r"pip install 'coterie\[huggingface\]'"):
        from_huggingface(data, x="half", y="label")
