"""Ids are ids: clients 2, 5 and 9 sit at positions 0, 1 and 2, and nobody may notice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import raises
from coterie.core.tables import ByClient


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


@pytest.fixture
def table() -> ByClient:
    return ByClient(ids(2, 5, 9), torch.tensor([20, 50, 90]))


def test_values_are_found_by_id_in_the_order_asked(table: ByClient) -> None:
    assert table.at(ids(9, 2, 5, 2)).tolist() == [90, 20, 50, 20]


def test_a_position_is_not_an_id(table: ByClient) -> None:
    assert table.has(ids(0, 1, 2, 9, 10)).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("unknown", [0, 4, 10])
def test_an_unknown_client_is_named(table: ByClient, unknown: int) -> None:
    with raises("client-no-value", match=f"client {unknown} has no value"):
        table.at(ids(2, unknown))


@pytest.mark.parametrize("default", [0, -1])
def test_the_default_stands_in_for_unknown_clients_only(table: ByClient, default: int) -> None:
    assert table.at(ids(1, 5, 99), default=default).tolist() == [default, 50, default]


def test_rows_may_be_vectors() -> None:
    table = ByClient(ids(3, 7), torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
    assert table.at(ids(7, 4, 3), default=0.5).tolist() == [[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]]


def test_an_empty_table_knows_nobody() -> None:
    empty = ByClient.empty(torch.float32, (2,))
    assert empty.has(ids(0, 1)).tolist() == [False, False]
    assert empty.at(ids(0), default=0.5).tolist() == [[0.5, 0.5]]
    with raises("client-no-value", match="client 0 has no value"):
        empty.at(ids(0))


def test_only_keeps_the_known_of_those_named(table: ByClient) -> None:
    part = table.only(ids(1, 5, 9))
    assert part.ids.tolist() == [5, 9]
    assert part.values.tolist() == [50, 90]


def test_only_is_a_table_again_whatever_the_order_of_the_request(table: ByClient) -> None:
    part = table.only(ids(9, 2))
    assert part.ids.tolist() == [2, 9]
    assert part.at(ids(2, 9)).tolist() == [20, 90]


def test_put_overwrites_adds_and_stays_sorted(table: ByClient) -> None:
    after = table.put(ids(7, 5), torch.tensor([70, 51]))
    assert after.ids.tolist() == [2, 5, 7, 9]
    assert after.values.tolist() == [20, 51, 70, 90]


def test_put_leaves_the_old_table_as_it_was(table: ByClient) -> None:
    table.put(ids(5), torch.tensor([0]))
    assert table.at(ids(5)).tolist() == [50]


def test_putting_nothing_changes_nothing(table: ByClient) -> None:
    after = table.put(ids(), torch.tensor([], dtype=torch.int64))
    assert (after.ids.tolist(), after.values.tolist()) == ([2, 5, 9], [20, 50, 90])


Entries = st.dictionaries(st.integers(0, 30), st.integers(-100, 100))


@given(st.lists(Entries, max_size=4), st.lists(st.integers(0, 30), max_size=8, unique=True))
def test_behaves_like_a_dictionary(writes: list[dict[int, int]], asked: list[int]) -> None:
    table, expected = ByClient.empty(), dict[int, int]()
    for entries in writes:
        table = table.put(ids(*entries), torch.tensor(list(entries.values()), dtype=torch.int64))
        expected |= entries
    assert table.ids.tolist() == sorted(expected)
    assert table.has(ids(*asked)).tolist() == [client in expected for client in asked]
    assert table.at(ids(*asked), default=-7).tolist() == [expected.get(client, -7) for client in asked]
    part = table.only(ids(*sorted(asked)))
    assert dict(zip(part.ids.tolist(), part.values.tolist(), strict=True)) == {
        client: expected[client] for client in asked if client in expected
    }
