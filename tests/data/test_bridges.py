"""Data sets of torch: exact values, nothing lost or doubled, every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from coterie.core.errors import CoterieError
from coterie.data.bridges.pytorch import federation_from_torch, from_torch
from coterie.data.federation import Federation


class Pairs(torch.utils.data.Dataset[Any]):
    """Any list of samples; remembers which were asked for."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        return self.samples[i]


def numbered(n: int, start: int = 0) -> TensorDataset:
    """Samples whose only feature is their number."""
    rows = torch.arange(start, start + n)
    return TensorDataset(rows[:, None].float(), rows % 3)


def numbers(federation: Federation, split: Any) -> list[list[float]]:
    return [federation.samples(c, split)[0][:, 0].tolist() for c in range(len(federation))]


# ------------------------------------------------------------------------------------------------------------- torch


def test_from_torch_tensors_and_official_test_set() -> None:
    data = from_torch(numbered(4), test=numbered(2, 4), name="mine", client=["b", "a", "b", "a", "c", "a"])
    assert (data.name, data.classes, data.y.tolist()) == ("mine", 3, [0, 1, 2, 0, 1, 2])
    assert data.x.tolist() == [[0], [1], [2], [3], [4], [5]]
    assert data.official is not None
    assert data.official.tolist() == [False] * 4 + [True] * 2
    assert data.client is not None
    assert (data.client_names, data.client.tolist()) == (("a", "b", "c"), [1, 0, 1, 0, 2, 0])
    assert from_torch(numbered(4)).official is None


@pytest.mark.parametrize(
    ("x", "shape", "dtype", "divisor"),
    [
        (Image.new("L", (3, 2), 51), (1, 2, 3), torch.uint8, 255),
        (Image.new("RGB", (3, 2), (51, 51, 51)), (3, 2, 3), torch.uint8, 255),
        (Image.new("RGBA", (3, 2), (51, 51, 51, 9)), (3, 2, 3), torch.uint8, 255),
        (np.full((2, 3), 51, dtype=np.uint8), (1, 2, 3), torch.uint8, 255),
        (torch.full((3, 2, 2), 51, dtype=torch.uint8), (3, 2, 2), torch.uint8, 255),
        (torch.full((4,), 51.0, dtype=torch.float64), (4,), torch.float32, 1),
        (torch.full((4,), 51.0, dtype=torch.bfloat16, requires_grad=True), (4,), torch.float32, 1),
        ([51, 51], (2,), torch.int64, 1),
        (51.0, (1,), torch.float32, 1),
    ],
)
def test_from_torch_takes_what_samples_are_made_of(
    x: Any, shape: tuple[int, ...], dtype: torch.dtype, divisor: float
) -> None:
    data = from_torch(Pairs((x, 0), (x, 1)))
    assert (tuple(data.x.shape), data.x.dtype) == ((2, *shape), dtype)
    assert data.scale is not None
    assert torch.allclose(data.scale(data.x), torch.tensor(51 / divisor))


@pytest.mark.parametrize(
    ("labels", "kind", "y"),
    [
        ([2, 0], "classification", [2, 0]),
        ([torch.tensor(2), torch.tensor(0)], "classification", [2, 0]),
        ([np.int32(2), np.int32(0)], "classification", [2, 0]),
        (["wolf", "ape"], "classification", [1, 0]),
        ([0.5, 2], "regression", [[0.5], [2.0]]),
        ([torch.tensor([0.5, 1]), torch.tensor([2.0, 3])], "regression", [[0.5, 1], [2, 3]]),
    ],
)
def test_from_torch_labels_or_targets(labels: list[Any], kind: str, y: list[Any]) -> None:
    data = from_torch(Pairs((0.0, labels[0]), (0.0, labels[1])))
    assert (data.kind, data.y.tolist()) == (kind, y)


def test_words_stay_whole_numbers() -> None:
    data = from_torch(TensorDataset(torch.tensor([[3, 4], [5, 6]]), torch.tensor([0, 1])), words=True)
    assert (data.scale, data.x.dtype, data.x.tolist()) == (None, torch.int64, [[3, 4], [5, 6]])


class Stream(IterableDataset[Any]):
    """Has neither a length nor numbered samples."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(1, 2)])


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (Stream(), {}, r"dataset: a Stream has no length"),
        (Pairs(), {}, r"dataset has no samples"),
        (Pairs({"x": 1}), {}, r"dataset, sample 0 is a dict; expected \(x, y\)"),
        (Pairs((1.0, 2), (1, 2, 3)), {}, r"dataset, sample 1 is 3 things; expected \(x, y\)"),
        (Pairs((object(), 2)), {}, r"dataset, x of sample 0: this object is no array, image or number"),
        (Pairs((1.0, 2), ([1.0, 2.0], 2)), {}, r"dataset, x: the sample at place 1 is float64 of shape \(2,\)"),
        (Pairs((1.0, 2), (1.0, "a")), {}, r"dataset, y: the sample at place 1 is <U1"),
        (Pairs((1.0, 0), (1.0, -1)), {}, r"y, sample 1: the label -1 is negative"),
        (Pairs(("a", 0)), {}, r"own data, x has <U1"),
        (numbered(2), {"client": ["a"]}, r"client has 1 owners, the data 2 samples, test set included"),
        (numbered(2), {"client": ["a", ""]}, r"client, sample 1: the value is missing"),
        (
            numbered(2),
            {"test": Pairs(([1.0, 2.0], 0))},
            r"test has float64 inputs of shape \(2,\), dataset has float32",
        ),
        (numbered(2), {"test": Pairs(([1.0], 0.5))}, r"test has floats of shape \(\) for y, dataset has whole numbers"),
    ],
)
def test_from_torch_refused(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        from_torch(dataset, **options)


def test_subsets_of_one_data_set_are_indices_into_it() -> None:
    base = Pairs(*((float(i), i % 2) for i in range(10)))
    outer = Subset(base, [9, 8, 7, 6])
    federation = federation_from_torch([Subset(base, [1, 3, 5]), Subset(outer, [0, 2])], test=0, truth=[4, 7])
    assert numbers(federation, "train") == [[1, 3, 5], [9, 7]]
    assert numbers(federation, "test") == [[], []]
    assert base.asked == [1, 3, 5, 7, 9]  # each once, and only what some client has
    assert len(federation.domains[0].y) == 5
    assert federation.truth is not None
    assert federation.truth.tolist() == [4, 7]
    federation.check()


def test_data_sets_of_their_own_and_test_sets() -> None:
    shared = numbered(6, 100)
    federation = federation_from_torch(
        [numbered(3), numbered(2, 10)], [Subset(shared, [5, 0]), Subset(shared, [0])], name="mine"
    )
    assert numbers(federation, "train") == [[0, 1, 2], [10, 11]]
    assert numbers(federation, "test") == [[105, 100], [100]]
    assert federation.samples(0, "test")[1].tolist() == [0, 1]
    assert (len(federation.domains[0].y), federation.name, federation.outputs) == (7, "mine", 3)


def test_held_out_as_from_arrays_does_it() -> None:
    parts = [numbered(11), numbered(8, 11), numbered(1, 19)]
    mine = federation_from_torch(parts, test=0.3, seed=5)
    arrays = Federation.from_arrays([(p.tensors[0], p.tensors[1]) for p in parts], test=0.3, seed=5, standardise=False)
    assert mine.checksum() == arrays.checksum()
    whole: ConcatDataset[Any] = ConcatDataset(parts)
    shared = federation_from_torch(
        [Subset(whole, range(11)), Subset(whole, range(11, 19)), Subset(whole, [19])], test=0.3, seed=5
    )
    assert shared.checksum() == arrays.checksum()
    assert federation_from_torch(parts, test=0.3, seed=6).checksum() != arrays.checksum()


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([], {}, r"at least one client"),
        ([numbered(2)], {"tests": []}, r"0 test sets for 1 clients"),
        ([numbered(2)], {"truth": [1, 2]}, r"truth names 2 clients, the data has 1"),
        ([numbered(2)], {"test": 1.0}, r"0 <= test < 1, not 1.0"),
        ([numbered(2), Stream()], {}, r"client 1: a Stream has no length"),
        ([numbered(2), Pairs((torch.zeros(2), 1))], {}, r"client 1 has float32 inputs of shape \(2,\), client 0 has"),
        ([numbered(2)], {"tests": [Pairs((0.0, 0.5))]}, r"test set of client 0 has float64 inputs of shape \(\)"),
    ],
)
def test_federation_from_torch_refused(clients: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        federation_from_torch(clients, **options)
