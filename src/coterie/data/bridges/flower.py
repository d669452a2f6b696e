"""Partitioners of flwr_datasets (needs the extra `flower-datasets`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.settings import Kind
from coterie.data.bridges.huggingface import classes_of, datasets_of, table_of
from coterie.data.bridges.pytorch import (
    Ints,
    federation_of,
    held_out_at_random,
    joined,
)
from coterie.data.federation import Federation

ROW = "__coterie_row"  # the column that tells which row of the whole a row of a partition is


def from_flower(
    partitioner: Any,
    *,
    x: str | Sequence[str],
    y: str,
    test: float = 0.2,
    seed: int = 0,
    name: str | None = None,
    words: bool = False,
    task: Kind | None = None,
) -> Federation:
    """A partitioner of flwr_datasets whose data set is set: one client per partition, samples held once.

    Of a FederatedDataset, pass `fds.partitioners["train"]`. The share `test` of each client is held out, as
    `Federation.from_arrays` does. The partitioner is left as it was.
    """
    kind = type(partitioner).__name__
    if not all(hasattr(type(partitioner), part) for part in ("load_partition", "num_partitions", "dataset")):
        raise CoterieError(
            f'data: a {kind} is no partitioner; of a FederatedDataset, pass fds.partitioners["train"]', code="data-type"
        )
    try:
        dataset = partitioner.dataset
    except AttributeError:
        raise CoterieError(
            f"data: the {kind} has no data; set partitioner.dataset = ... first", code="data-empty"
        ) from None
    arrays = table_of(dataset, x, y, kind, words)
    called = name or getattr(dataset.info, "dataset_name", None) or "own data"
    data = joined([arrays], [kind], called, words, classes_of(dataset, y), task)
    # Partitioners sort, shuffle and draw: a copy of this one, with its random state, does it to numbered rows. What
    # is big and no criterion to part by stays out of them.
    big = [] if not isinstance(x, str) or isinstance(dataset.features[x], datasets_of(dataset, kind).Value) else [x]
    numbered = dataset.remove_columns(big).add_column(ROW, list(range(len(dataset))))
    twin = copy.deepcopy(partitioner, {id(dataset): numbered})
    try:
        rows = [_rows(twin.load_partition(i), i, kind) for i in range(twin.num_partitions)]
    except (ValueError, KeyError, IndexError) as error:
        raise CoterieError(f"data: the {kind} cannot part the data: {error}", code="partition-impossible") from error
    unused = len(dataset) - len(np.unique(np.concatenate(rows)))
    naturals = getattr(twin, "partition_id_to_natural_id", None) or {}
    names = tuple(str(naturals[i]) for i in range(len(rows))) if len(naturals) == len(rows) else None
    note = f"{unused:,} samples are in no partition" if unused else ""
    return federation_of(data, *held_out_at_random(rows, test, seed), note=note, names=names)


def _rows(partition: Any, client: int, kind: str) -> Ints:
    if ROW not in partition.column_names:
        raise CoterieError(
            f"data: the {kind} parts columns, not samples; only horizontal partitions are clients here",
            code="partition-not-applicable",
        )
    rows = np.asarray(partition.select_columns([ROW]).with_format("numpy")[:][ROW], dtype=np.int64)
    if not len(rows):
        raise CoterieError(
            f"data: partition {client} of the {kind} is empty; use fewer partitions or a minimal size",
            code="data-empty",
        )
    return rows
