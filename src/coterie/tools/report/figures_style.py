"""How figures look: two themes that differ in their template alone, and signs that do without colour vision."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from coterie.core.errors import CoterieError
from coterie.tools.report.reading import Floats, Ints

Theme = Literal["light", "dark"]
# Okabe and Ito's colours; their yellow and black, which vanish on a white or a dark page, are an olive and a grey here.
# Four more follow, so that as many clusters as are drawn one by one have a colour each.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#9c8f00", "#8a8a8a"),
    *("#7a5cc9", "#a0522d", "#5f9e2f", "#e8589c"),
)
OTHERS = -1  # in place of a number: what is drawn together, or belongs nowhere
PALE = "#c2c2c2"  # its colour
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    *("circle", "square", "diamond", "cross", "triangle-up", "x"),
    *("star", "triangle-down", "pentagon", "hexagon", "bowtie", "hourglass"),
)
PATTERNS = ("", "/", ".", "x", "\\", "-", "|", "+")
POINTS = 600  # of one curve: more cannot be told apart on a screen
CLUSTERS = 10  # drawn one by one; what is beyond is drawn together
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif"


def plotly() -> Any:
    """plotly.graph_objects, which is an extra."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise CoterieError("coterie report needs plotly: pip install 'coterie[report]'", code="extra-missing") from None
    return go


def template(theme: Theme = "light") -> Any:
    """All that differs between light and dark; figures leave their other colours readable on both."""
    go = plotly()
    ink, faint, line, paper = (
        ("#1c1f24", "#e3e6ea", "#8b929c", "#ffffff")
        if theme == "light"
        else ("#e6e8eb", "#343a43", "#7d8590", "#171a1f")
    )
    axis = {
        "gridcolor": faint,
        "linecolor": line,
        "zerolinecolor": faint,
        "ticks": "outside",
        "tickcolor": line,
        "showline": True,
        "automargin": True,
        "title": {"standoff": 8},
    }
    bar = {"outlinewidth": 0, "thickness": 14, "ticks": ""}
    return go.layout.Template(
        layout={
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "font": {"family": FONT, "size": 13, "color": ink},
            "title": {"x": 0, "xanchor": "left", "xref": "container", "pad": {"l": 12}, "font": {"size": 16}},
            "xaxis": axis,
            "yaxis": axis,
            "colorway": list(COLOURS),
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.2, "yanchor": "top"},
            "hoverlabel": {"bgcolor": paper, "bordercolor": line, "font": {"color": ink, "family": FONT}},
            "margin": {"l": 60, "r": 20, "t": 56, "b": 50},
            "hovermode": "closest",
        },
        data={"heatmap": [{"colorbar": bar}]},
    )


def blank(title: str, x: str, y: str, words: str, theme: Theme, height: int = 420) -> Any:
    """A figure with its title and axes. `words` tells what is to be seen to those who do not see it."""
    figure = plotly().Figure()
    figure.update_layout(
        template=template(theme),
        title={"text": title},
        height=height,
        meta={"words": words},
        xaxis={"title": {"text": x}},
        yaxis={"title": {"text": y}},
    )
    return figure


def words(figure: Any) -> str:
    """What a figure shows, in a sentence."""
    return str((figure.layout.meta or {}).get("words", ""))


def plain(text: object, most: int = 80) -> str:
    """A text from a file as it stands: plotly reads a little HTML in labels, so there must be none."""
    line = " ".join(str(text).split())
    return html.escape(line if len(line) <= most else line[: most - 1] + "…", quote=False)


def colour(index: int) -> str:
    """Of a cluster or a run. They repeat after a while; dashes, signs and hatching are then others."""
    return PALE if index < 0 else COLOURS[index % len(COLOURS)]


def see_through(index: int, opacity: float = 0.18) -> str:
    """The same colour for a band."""
    red, green, blue = (int(colour(index)[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def dash(index: int) -> str:
    """The dashes of a line."""
    return _beside_colour(DASHES, index)


def symbol(index: int) -> str:
    """The sign of a hidden cluster, or of a run."""
    return _beside_colour(SYMBOLS, index)


def pattern(index: int) -> str:
    """The hatching of an area or a bar."""
    return _beside_colour(PATTERNS, index)


def _beside_colour(signs: Sequence[str], index: int) -> str:
    """One step further each time the colours begin again: the same colour does not meet the same sign."""
    return signs[0] if index < 0 else signs[(index + index // len(COLOURS)) % len(signs)]


def area(figure: Any, x: Ints, y: Floats, name: str, place: int) -> None:
    """One layer of a stack."""
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        stackgroup="one",
        line={"width": 0.5, "color": colour(place)},
        fillcolor=see_through(place, 0.75),
        fillpattern={
            "shape": pattern(place),
            "bgcolor": see_through(place, 0.75),
            "fgcolor": "rgba(255,255,255,0.5)",
            "size": 7,
            "solidity": 0.2,
        },
    )


def bar_marker(index: int) -> dict[str, Any]:
    """The colour and hatching of a bar."""
    hatch = {"shape": pattern(index), "fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.6)", "solidity": 0.2}
    return {"color": colour(index), "pattern": hatch, "line": {"width": 0}}


def thin(count: int, most: int = POINTS) -> Ints:
    """Positions of at most so many of `count`, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))


def percent(value: float) -> str:
    """0.9312 -> 93.1 %"""
    return f"{100 * value:.1f} %"
