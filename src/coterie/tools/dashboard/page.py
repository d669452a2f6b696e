"""The page as it is before anything is shown on it: landmarks, the list, and a slot for every figure there can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dash import dcc, html

from coterie.tools.dashboard.studio import COMPARED
from coterie.tools.dashboard.words import aria
from coterie.tools.report.figures import KINDS

INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<meta name="color-scheme" content="light dark"><title>{%title%}</title>{%favicon%}
<script src="assets/theme.js"></script>{%css%}</head>
<body><noscript>This page draws its figures with JavaScript, which is turned off.</noscript>
{%app_entry%}{%config%}{%scripts%}{%renderer%}</body>
</html>"""
LOOK_AGAIN = 2000  # milliseconds
BUTTONS = ["select2d", "lasso2d", "autoScale2d"]  # that plotly offers and nothing here needs


def layout(directory: Path) -> Any:
    """Everything that stays where it is."""
    sections: list[tuple[str, tuple[str, ...]]] = [("Comparison", COMPARED)]
    sections += [
        (section, tuple(kind.name for kind in kinds)) for section, kinds in groupby(KINDS, lambda k: k.section)
    ]
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            dcc.Interval(id="tick", interval=LOOK_AGAIN),
            *(dcc.Store(id=name) for name in ("rows", "rows-print", "look", "shown-quick", "shown-slow")),
            html.A("Skip to the figures", href="#panel", className="skip"),
            html.Header(
                [
                    html.H1("Coterie"),
                    html.P(str(directory), className="soft directory"),
                    html.Button("Dark", id="theme", type="button"),
                ]
            ),
            html.P(id="lost", role="alert", hidden=True),
            html.Main(
                [
                    html.Section(
                        [html.H2("Runs", id="runs-title"), html.Div(id="runs"), html.Div(id="empty", hidden=True)],
                        **aria(labelledby="runs-title"),
                    ),
                    html.Div(
                        [
                            html.P(id="announce", role="status", className="unseen"),
                            html.Section(id="about", **aria(label="Selected runs")),
                            *(_section(name, slots) for name, slots in sections),
                            html.Section(id="settings", **aria(label="Configuration")),
                        ],
                        id="panel",
                        tabIndex="-1",
                    ),
                ]
            ),
        ]
    )


def _section(title: str, slots: Sequence[str]) -> Any:
    name = title.lower()
    return html.Section(
        [html.H2(title, id=f"title-{name}"), html.Div([_slot(slot) for slot in slots], className="charts")],
        className="figures",
        **aria(labelledby=f"title-{name}"),
    )


def _slot(name: str) -> Any:
    """To a screen reader the drawing is one picture, and the sentence below it says what is to be seen."""
    picture = html.Div(id=f"graph-{name}", role="img", **aria(labelledby=f"words-{name}"))
    return html.Figure([picture, html.Figcaption(id=f"words-{name}")], id=f"slot-{name}", hidden=True)


def graph(name: str, speed: str, figure: dict[str, Any]) -> Any:
    """For a slot that is shown for the first time. Not there before, as a graph without data is drawn all the same."""
    return dcc.Graph(
        id={"figure": name, "speed": speed},
        figure=figure,
        responsive=True,
        style={"height": "100%"},
        config={"displaylogo": False, "modeBarButtonsToRemove": BUTTONS},
    )
