"""Data sets of torch, Hugging Face and Flower: exact values, nothing lost or doubled, every refusal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from flwr_datasets import FederatedDataset
from flwr_datasets import partitioner as flower
from PIL import Image
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from coterie.data.bridges.flower import from_flower
from coterie.data.bridges.huggingface import from_huggingface
from coterie.data.bridges.pytorch import federation_from_torch, from_torch
from coterie.data.federation import Federation
from coterie.errors import CoterieError

datasets.disable_progress_bars()


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
    arrays = Federation.from_arrays([(p.tensors[0], p.tensors[1]) for p in parts], test=0.3, seed=5)
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


# ------------------------------------------------------------------------------------------------------ Hugging Face


def table(n: int = 12) -> datasets.Dataset:
    """Rows whose number is in every column, in some way."""
    return datasets.Dataset.from_dict(
        {
            "row": list(range(n)),
            "half": [i / 2 for i in range(n)],
            "label": [i % 3 for i in range(n)],
            "who": [f"zoë {i % 4}" for i in range(n)],
            "image": [Image.new("L", (3, 2), i) for i in range(n)],
            "words": [[i, i + 1] for i in range(n)],
        }
    )


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
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[huggingface\]'"):
        from_huggingface(data, x="half", y="label")


# ------------------------------------------------------------------------------------------------------------ Flower

PARTITIONERS = {
    "iid": lambda: flower.IidPartitioner(num_partitions=4),
    "natural": lambda: flower.NaturalIdPartitioner(partition_by="who"),
    "grouped": lambda: flower.GroupedNaturalIdPartitioner(partition_by="who", group_size=2),
    "dirichlet": lambda: flower.DirichletPartitioner(
        num_partitions=3, partition_by="label", alpha=1.0, min_partition_size=2, seed=3
    ),
    "pathological": lambda: flower.PathologicalPartitioner(
        num_partitions=3, partition_by="label", num_classes_per_partition=2, shuffle=True, seed=1
    ),
    "shard": lambda: flower.ShardPartitioner(
        num_partitions=3, partition_by="label", num_shards_per_partition=2, shard_size=4, seed=2
    ),
    "linear": lambda: flower.LinearPartitioner(num_partitions=3),
    "continuous": lambda: flower.ContinuousPartitioner(num_partitions=3, partition_by="half", strictness=0.5, seed=4),
}


class Lopsided(flower.Partitioner):  # type: ignore[misc]  # the package has no types
    """All to the first of two."""

    num_partitions = 2

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select(range(len(self.dataset) if partition_id == 0 else 0))


# datasets sorts with an option that pyarrow 25 calls deprecated (ShardPartitioner).
@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
@pytest.mark.parametrize("x", ["image", "half"])
@pytest.mark.parametrize("kind", list(PARTITIONERS))
@pytest.mark.parametrize("asked_before", [False, True])
def test_from_flower_gives_the_partitions(kind: str, asked_before: bool, x: str) -> None:
    made = PARTITIONERS[kind]()
    made.dataset = table(24)
    if asked_before:
        made.load_partition(0)
    federation = from_flower(made, x=x, y="row", test=0.25).check()
    assert len(federation.domains[0].y) == 24
    assert "__coterie_row" not in made.dataset.column_names
    seen: list[int] = []
    for client in range(made.num_partitions):
        train, test = (federation.samples(client, split) for split in ("train", "test"))
        factor = 255 if x == "image" else 2
        mine = [*train[1].tolist(), *test[1].tolist()]
        flat = torch.cat([train[0], test[0]]).flatten(1)[:, 0]
        assert torch.allclose(flat * factor, torch.tensor(mine).float())
        assert sorted(mine) == sorted(made.load_partition(client)["row"][:])
        assert len(test[1]) == round(0.25 * len(mine))
        seen += mine
    assert len(federation) == made.num_partitions
    assert sorted(seen) == list(range(24))
    assert federation.note == ""


def test_from_flower_names_natural_clients_and_keeps_declared_classes() -> None:
    made = PARTITIONERS["natural"]()
    made.dataset = table().cast_column("label", datasets.ClassLabel(names=list("abcd"))).shuffle(seed=0)
    federation = from_flower(made, x="half", y="label", name="mine")
    assert federation.names == ("zoë 0", "zoë 1", "zoë 2", "zoë 3")
    assert (federation.name, federation.outputs) == ("mine", 4)
    assert from_flower(made, x="half", y="label", seed=1).checksum() != federation.checksum()
    assert from_flower(made, x="half", y="label", seed=0).checksum() == federation.checksum()


def test_from_flower_says_what_is_left_over() -> None:
    made = flower.SizePartitioner(partition_sizes=[4, 5])
    made.dataset = table()
    with pytest.warns(UserWarning, match="smaller"):  # Flower's own: not all of the data is used
        federation = from_flower(made, x="half", y="label")
    assert federation.note == "3 samples are in no partition"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (flower.IidPartitioner(2), r"the IidPartitioner has no data; set partitioner.dataset"),
        (
            FederatedDataset(dataset="mnist", partitioners={"train": 2}),
            r'a FederatedDataset is no .*fds.partitioners\["tr',
        ),
        ([1], r"a list is no partitioner"),
    ],
)
def test_from_flower_refuses_what_is_no_partitioner_with_data(made: Any, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        from_flower(made, x="half", y="label")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (flower.VerticalEvenPartitioner(2), r"the VerticalEvenPartitioner parts columns, not samples"),
        (flower.DirichletPartitioner(50, "label", 1.0), r"the DirichletPartitioner cannot part the data: "),
        (flower.IidPartitioner(20), r"the IidPartitioner cannot part the data: "),
        (Lopsided(), r"partition 1 of the Lopsided is empty; use fewer partitions"),
        (flower.NaturalIdPartitioner("nobody"), r"the NaturalIdPartitioner cannot part the data: "),
    ],
)
def test_from_flower_refuses_what_makes_no_clients(made: Any, message: str) -> None:
    made.dataset = table()
    with pytest.raises(CoterieError, match=message):
        from_flower(made, x="half", y="label")


def test_from_flower_names_the_column() -> None:
    made = flower.IidPartitioner(2)
    made.dataset = table()
    with pytest.raises(CoterieError, match=r"IidPartitioner, x: there is no column 'hlaf'. Did you mean 'half'"):
        from_flower(made, x="hlaf", y="label")
