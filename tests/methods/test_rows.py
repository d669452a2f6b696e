"""A table of large values: by id, growing without a copy, and beyond what memory has room for in files."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.core.allocation import SMALL, held
from papers.methods.rows import Rows


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_values_are_found_by_id_and_summed_by_label() -> None:
    table = Rows.empty().put(ids(9, 2), torch.tensor([[9.0, 0.0], [2.0, 1.0]])).put(ids(5), torch.tensor([[5.0, 2.0]]))
    assert table.ids.tolist() == [2, 5, 9]
    sums = table.sums(ids(9, 5, 2), ids(2, 0, 2), 3, torch.empty(0, 2))
    assert sums.tolist() == [[5.0, 2.0], [0.0, 0.0], [11.0, 1.0]]


def test_putting_copies_nothing_that_was_there_and_leaves_the_old_table() -> None:
    first = Rows.empty().put(ids(4), torch.tensor([[1.0]]))
    second = first.put(ids(1), torch.tensor([[2.0]]))
    assert second.rows[1] is first.rows[0]
    assert first.ids.tolist() == [4]
    assert first.put(ids(4), torch.tensor([[3.0]])).rows[0].item() == 3.0
    assert first.rows[0].item() == 1.0


def test_what_memory_has_no_room_for_lies_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papers.methods.rows.room", lambda: 2 * SMALL)
    values = torch.arange(3.0)[:, None].expand(3, SMALL // 4)
    table = Rows.empty().put(ids(0, 1), values[:2].clone()).put(ids(2), values[2:].clone())
    assert [held(row) for row in table.rows] == [SMALL, SMALL, 0]
    assert table.sums(ids(0, 1, 2), ids(0, 0, 0), 1, values)[0, :3].tolist() == [3.0] * 3
