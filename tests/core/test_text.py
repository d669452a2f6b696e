"""Clients as people name them."""

from __future__ import annotations

import pytest

from coterie.core.text import as_written


@pytest.mark.parametrize(
    ("names", "written", "found"),
    [
        (None, "5", 5),
        (None, "north", "north"),
        (["north", "south"], "south", "south"),
        (["north", "south"], "1", 1),
        (["10", "11"], "11", "11"),
        (["10", "11"], "1", "1"),  # no such name: an error later, and not the model of client '11'
    ],
)
def test_a_number_is_a_name_where_names_are_numbers(names: list[str] | None, written: str, found: int | str) -> None:
    assert as_written(names, written) == found
