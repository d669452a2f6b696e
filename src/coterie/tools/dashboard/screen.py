"""What a browser shows, and what it must be sent so that it shows something else.

It says what it shows by fingerprints, and only what differs from them is sent. So the server keeps nothing about any
browser, a page where nothing happens costs nothing, and a figure keeps its zoom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dash import Patch, no_update
from dash.exceptions import PreventUpdate

from coterie.tools.dashboard.listing import fingerprint
from coterie.tools.dashboard.page import graph
from coterie.tools.dashboard.studio import COMPARED, SLOW, Drawn
from coterie.tools.report.figures import KINDS, Theme, template

Speed = Literal["quick", "slow"]
QUICK = (*COMPARED, *(kind.name for kind in KINDS if kind.name not in SLOW))
SAID = ("about", "settings", "announce")


@dataclass(frozen=True)
class Look:
    """How the page is displayed."""

    theme: Theme
    narrow: bool

    @staticmethod
    def read(value: object) -> Look:
        """As the browser says it; nothing is shown before it does."""
        if not isinstance(value, dict):
            raise PreventUpdate
        return Look("dark" if value.get("theme") == "dark" else "light", bool(value.get("narrow")))


@dataclass(frozen=True)
class Screen:
    """What is to be shown how, and what is shown."""

    speed: Speed
    look: Look
    revision: str  # the selection
    has: Mapping[str, str]  # fingerprints by slot
    mounted: tuple[str, ...]  # slots with a graph in them

    @staticmethod
    def read(speed: Speed, look: Look, keys: Sequence[str], shown: object, mounted: Sequence[Any]) -> Screen:
        """As the browser says it."""
        has = shown if isinstance(shown, dict) else {}
        return Screen(speed, look, "&".join(keys), has, tuple(str(graph["figure"]) for graph in mounted))

    @property
    def print(self) -> str:
        """The same as long as it is the same selection in the same look."""
        return fingerprint((self.look, self.revision))

    @property
    def slots(self) -> tuple[str, ...]:
        """Those that are looked after together."""
        return QUICK if self.speed == "quick" else SLOW


def changes(said: Sequence[Any], drawn: Mapping[str, Drawn], screen: Screen) -> list[Any]:
    """Values for all outputs, those left out that the browser has already; then the fingerprints of what it has now."""
    out: list[Any] = []
    prints: dict[str, str] = {}
    for place, text in zip(SAID, said, strict=False):
        prints[place] = fingerprint(text)
        out.append(no_update if screen.has.get(place) == prints[place] else text)
    figures: dict[str, Any] = dict.fromkeys(screen.mounted, no_update)
    for name in screen.slots:
        one = drawn.get(name)
        prints[name] = "" if one is None else f"{screen.print} {one.print}"
        if screen.has.get(name, "") == prints[name]:
            out += [no_update] * 4
            continue
        if one is None:
            out += [no_update, no_update, "", True]  # out of sight; the graph stays, and has its figure changed later
            continue
        figure = dressed(one, screen)
        if name in figures:  # a new graph in its place would forget what was zoomed
            same = screen.has.get(name, "").startswith(screen.print)
            figures[name] = moved_on(figure) if same else figure
            new = no_update
        else:
            new = graph(name, screen.speed, figure)
        out += [new, {"height": f"{one.height}px"}, one.words, False]
    if prints == screen.has:
        raise PreventUpdate
    return [*out, list(figures.values()), prints]


def dressed(drawn: Drawn, screen: Screen) -> dict[str, Any]:
    """The figure in the page's theme and width."""
    dress: dict[str, Any] = {"template": template(screen.look.theme).to_plotly_json(), "uirevision": screen.revision}
    old = drawn.figure.get("layout", {})
    if screen.look.narrow:
        dress |= {"margin": {"l": 44, "r": 8} | old.get("margin", {}), "font": {"size": 11}}
        dress["title"] = old.get("title", {}) | {"font": {"size": 14}}
    return drawn.figure | {"layout": old | dress}


def moved_on(figure: dict[str, Any]) -> Patch:
    """Another state of the figure that is shown: all but the ranges of its axes, which the reader may have zoomed."""
    patch = Patch()
    patch["data"] = figure["data"]
    for key, value in ({"shapes": [], "annotations": []} | figure["layout"]).items():
        if "axis" in key:
            for part, setting in value.items():
                if part not in ("range", "autorange"):
                    patch["layout"][key][part] = setting
        else:
            patch["layout"][key] = value
    return patch
