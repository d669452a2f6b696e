"""What a terminal of 80 columns shows: scores are never cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coterie.core.metrics import Summary
from coterie.engines.contract import Missing
from coterie.tools.cli import console
from coterie.training.events import RoundDone, RunStarted


def summary(clusters: int, size: int = 10) -> Summary:
    return Summary(0.5, 0.7312, 0.6543, clusters, (size,) * clusters, ari=0.91, nmi=0.82)


def drawn(rows: list[tuple[str, Summary, float]], width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(console.results(rows))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("clusters", [1, 4, 12, 300])
@pytest.mark.parametrize("name", ["wecfl", "fedgrouprox", "mine.methods:AMethodWithALongName"])
def test_scores_are_whole_at_80_columns(clusters: int, name: str) -> None:
    rows = [(name, summary(clusters, 123), 1234.5), ("  newcomers", summary(clusters), 1234.5)]
    lines = drawn(rows)
    assert max(map(len, lines)) <= 80
    for number in ("73.1 %", "65.4 %", "0.91", "0.82", "1234.5", "accuracy", "macro-F1", "seconds", "123"):
        assert any(number in line for line in lines), number
    assert not any("…" in line for line in lines)


def test_sizes_have_a_column_where_there_is_room_and_lines_where_there_is_none() -> None:
    rows = [("wecfl", summary(4), 1.0)]
    assert any("sizes" in line for line in drawn(rows, width=100))
    narrow = drawn([("wecfl", summary(12), 1.0)])
    assert not any("sizes" in line for line in narrow)
    assert "clients per cluster of wecfl: 10 10" in " ".join(narrow)


def test_a_method_s_name_is_whole_beside_the_errors_of_a_regression() -> None:
    errors = Summary(
        1.02e10, None, None, 3, (12, 9, 19), None, None, rmse=1.01e5, mae=1.899e4, r2=-1.368, constant=1.15e10
    )
    lines = drawn([("fedgrouprox", errors, 1234.5)])
    assert max(map(len, lines)) <= 80
    for whole in ("method", "fedgrouprox", "1.02e+10", "1.15e+10", "-1.368", "1234.5"):
        assert any(whole in line for line in lines), whole


def test_a_progress_line_is_whole_at_80_columns() -> None:
    out = io.StringIO()
    with console.progress(Console(file=out, force_terminal=True, width=80, color_system=None), "fedgrouprox") as listen:
        listen(RunStarted("FedGrouProx", "data", 40, 40, 300, 0))
        listen(RoundDone(200, 40, 39, (Missing(1, "away"),), 1, 0.1, summary(12)))
    last = out.getvalue().rsplit("\x1b[2K", 1)[-1]
    for part in ("fedgrouprox", "200/300", "accuracy 73.1%", "12 clusters", "1 missed", "left"):
        assert part in last
    assert "…" not in last
