"""Partitioners of Flower: exact values, nothing lost or doubled, every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from huggingface_table import datasets, table

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data.bridges.flower import from_flower

flwr_datasets = pytest.importorskip("flwr_datasets", reason="the extra `flower-datasets` is not installed")
flower = pytest.importorskip("flwr_datasets.partitioner", reason="the extra `flower-datasets` is not installed")

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


class Lopsided(flower.Partitioner):  # type: ignore[misc, name-defined]  # the package has no types
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
    federation = from_flower(made, x=x, y="row", test=0.25, task="classification").check()
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
            flwr_datasets.FederatedDataset(dataset="mnist", partitioners={"train": 2}),
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
    with raises("data-column-unknown", match=r"IidPartitioner, x: there is no column 'hlaf'. Did you mean 'half'"):
        from_flower(made, x="hlaf", y="label")
