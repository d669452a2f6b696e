"""What the figures are made of."""

from __future__ import annotations

from typing import Any

from coterie.tools.report.figures_style import COLOURS, DASHES, plotly
from papers.cell import Outcome
from papers.results import Results
from papers.work import find

MARGIN = {"l": 60, "r": 20, "t": 40, "b": 50}


def first(results: Results, run: str) -> Outcome | None:
    """The outcome of a run with its lowest seed, if there is one."""
    return next(iter(results.of(find(run))), None)


def blank(x: str, y: str, height: int = 420) -> Any:
    """A figure with one pair of axes."""
    figure = plotly().Figure()
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin=MARGIN,
        legend={"orientation": "h", "y": -0.2},
    )
    figure.update_xaxes(title=x)
    figure.update_yaxes(title=y)
    return figure


def curve(x: Any, y: Any, name: str, i: int, **more: Any) -> Any:
    """A line in the i-th colour and dash."""
    style = {"color": COLOURS[i % len(COLOURS)], "dash": DASHES[i % len(DASHES)], "width": 2}
    return plotly().Scatter(x=list(x), y=list(y), name=name, mode="lines", line=style, **more)


def grid(rows: int, columns: int, titles: list[str], height: int = 420) -> Any:
    """Several pairs of axes side by side, with a common y."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows, columns, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04)
    figure.update_layout(template="plotly_white", height=height, margin=MARGIN)
    return figure
