"""YAML that somebody wrote: a value, or one error, soon and without much memory."""

from __future__ import annotations

import pytest

from coterie.core.text import NODES, YamlError, parse_yaml

LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))]
)  # 2 * 10^8 values


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, f"more than {NODES:,} values"),
        ("a: &a [*a]", "refers to itself"),
        ("a: " + "[" * 60_000, "open brackets"),
        ("- " * 30_000, "deep"),
        ("x" * (1 << 20) + "x", "longer than"),
        ("when: 2026-13-01", "month must be"),
        ("k: " + "9" * 5000, "limit"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: [1", "expected"),
        ("? [a]\n: b", "unhashable|constructing"),
        ("!!int x", "invalid literal"),
        ("!!float x", "could not convert"),
        ("!!binary \xff", "ascii|base64"),
    ],
)
def test_what_is_no_value_is_one_error(text: str, why: str) -> None:
    with pytest.raises(YamlError, match=why) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 500


def test_values_are_as_always() -> None:
    assert parse_yaml("a: &a [1, 2.5, yes]\nb: *a\nc: {d: '[[['}") == {
        "a": [1, 2.5, True],
        "b": [1, 2.5, True],
        "c": {"d": "[[["},
    }
    assert parse_yaml("") is None
