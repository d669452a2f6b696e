"""What mattered in a search, as a page in the style of reports."""

from __future__ import annotations

import pytest

from coterie.tools.report.figures_runs import importance
from coterie.tools.report.figures_style import words
from coterie.tools.report.page import importance_page

pytest.importorskip("plotly")


def test_a_bar_per_key() -> None:
    figure = importance({"local.lr": 0.75, "method.<k>": 0.25}, "accuracy")
    (bars,) = figure.data
    assert (list(bars.x), list(bars.y)) == ([0.75, 0.25], ["local.lr", "method.&lt;k&gt;"])
    assert "local.lr 75.0 % and method.<k> 25.0 %" in words(figure)


def test_the_page_has_the_style_of_reports_and_asks_nothing_of_a_network() -> None:
    page = importance_page({"local.lr": 1.0}, "macro_f1", 7)
    assert "<h1>What matters to macro_f1</h1>" in page
    assert "from 7 trials" in page
    assert "dl.key" in page  # the style sheet
    assert "default-src 'none'" in page
    assert "<script src=" not in page
