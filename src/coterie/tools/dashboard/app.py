"""The Dash application: what happens when the clock ticks, the address changes, or the page looks different."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State
from dash.exceptions import PreventUpdate

from coterie.tools.dashboard import words
from coterie.tools.dashboard.listing import RunList, line_row
from coterie.tools.dashboard.page import INDEX, layout
from coterie.tools.dashboard.pages import add_pages
from coterie.tools.dashboard.screen import QUICK, SAID, Look, Screen, Speed, changes
from coterie.tools.dashboard.selection import select
from coterie.tools.dashboard.studio import SLOW, Studio
from coterie.tools.report.ranking import group, rank


def make_app(directory: Path, studio: Studio | None = None) -> Dash:
    """The application over the runs of a directory."""
    app = Dash(
        "coterie",
        assets_folder=str(Path(__file__).parent / "assets"),
        assets_ignore=r"^theme\.js$",  # the page's head has it already
        index_string=INDEX,
        title=f"Coterie: {directory.name or directory}",
        update_title="",
        serve_locally=True,
        add_log_handler=False,
        health_endpoint="alive",
    )
    app.layout = layout(directory)
    runs = RunList(directory)
    board = studio or Studio()
    _list(app, runs)
    _board(app, runs, board)
    add_pages(app, runs, board)
    _browser(app)
    return app


def _browser(app: Any) -> None:
    """What needs no server: assets/runs.js and assets/look.js."""
    app.clientside_callback(
        ClientsideFunction("coterie", "look"),
        Output("look", "data"),
        Output("theme", "children"),
        Output("theme", "aria-label"),
        Input("theme", "n_clicks"),
    )
    app.clientside_callback(ClientsideFunction("coterie", "runs"), Input("rows", "data"), Input("address", "search"))


def _list(app: Any, runs: RunList) -> None:
    @app.callback(  # type: ignore[untyped-decorator]
        Output("rows", "data"),
        Output("rows-print", "data"),
        Output("empty", "children"),
        Output("empty", "hidden"),
        Input("tick", "n_intervals"),
        State("rows-print", "data"),
    )
    def tell(_: int | None, shown: str | None) -> Any:
        now = runs.look()
        if now.print == shown:
            raise PreventUpdate
        rows = [line_row(line) for line in now.lines.values()]
        return rows, now.print, None if rows else words.how_to_begin(runs.directory), bool(rows)


def _board(app: Any, runs: RunList, studio: Studio) -> None:
    @app.callback(  # type: ignore[untyped-decorator]
        *(Output(name, "children") for name in SAID), *_outputs(QUICK, "quick"), *_inputs("quick")
    )
    def show(search: str | None, look: object, _: int | None, shown: object, mounted: list[Any]) -> Any:
        seen, known = Look.read(look), runs.look().lines
        selection = select(search, known)
        lines = [known[key] for key in selection.keys]
        records = [studio.record(line) for line in lines]
        drawn = studio.quick(lines[0]) if len(lines) == 1 else studio.together(lines) if lines else {}
        head = words.complaints(selection)
        if len(lines) == 1:
            head += words.about_run(lines[0].key, records[0])
        elif lines:
            head += words.about_runs(len(lines), rank(group(records)))
        said = head, words.configuration(selection.keys, records), words.announcement(selection.keys, records)
        return changes(said, drawn, Screen.read("quick", seen, selection.keys, shown, mounted))

    @app.callback(*_outputs(SLOW, "slow"), *_inputs("slow"))  # type: ignore[untyped-decorator]
    def show_slow(search: str | None, look: object, _: int | None, shown: object, mounted: list[Any]) -> Any:
        seen, known = Look.read(look), runs.look().lines
        keys = select(search, known).keys
        drawn = studio.slow(known[keys[0]]) if len(keys) == 1 else {}
        return changes((), drawn, Screen.read("slow", seen, keys, shown, mounted))


def _outputs(slots: Sequence[str], speed: Speed) -> list[Output]:
    """Of every slot its graph, height, words, and whether it is there; figures of graphs there are; fingerprints."""
    places = (("graph", "children"), ("graph", "style"), ("words", "children"), ("slot", "hidden"))
    return [
        *(Output(f"{part}-{name}", what) for name in slots for part, what in places),
        Output({"figure": ALL, "speed": speed}, "figure"),
        Output(f"shown-{speed}", "data"),
    ]


def _inputs(speed: Speed) -> list[Input | State]:
    return [
        Input("address", "search"),
        Input("look", "data"),
        Input("tick", "n_intervals"),
        State(f"shown-{speed}", "data"),
        State({"figure": ALL, "speed": speed}, "id"),
    ]
