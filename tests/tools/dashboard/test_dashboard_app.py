"""What is drawn again, what is sent again, and to whom."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import boards
import pytest

pytest.importorskip("dash", reason="the extra `dashboard` is not installed")

from dash import no_update
from dash.exceptions import PreventUpdate

from coterie.tools.dashboard import studio as studios
from coterie.tools.dashboard import words
from coterie.tools.dashboard.app import make_app
from coterie.tools.dashboard.listing import Line, RunList
from coterie.tools.dashboard.screen import QUICK, Look, Screen, moved_on
from coterie.tools.dashboard.screen import changes as changes_of
from coterie.tools.dashboard.selection import Selection
from coterie.tools.dashboard.server import protect
from coterie.tools.dashboard.studio import COMPARED, SLOW, Studio
from coterie.tools.report.figures import KINDS, Kind
from coterie.tools.report.ranking import group, rank
from coterie.tools.report.record import read_run

LIGHT, DARK = Look("light", False), Look("dark", False)


def line(directory: Path, key: str) -> Line:
    return RunList(directory).look().lines[key]


def changes(drawn: Any, look: Look, lines: list[Line], before: list[Any] | None = None) -> list[Any]:
    """What a browser is sent that was sent this before."""
    mounted = [] if before is None else [{"figure": name} for name in sent(before)]
    shown = None if before is None else before[-1]
    return changes_of((), drawn, Screen.read("quick", look, [line.key for line in lines], shown, mounted))


def sent(out: list[Any]) -> list[str]:
    """The slots that get something."""
    return [name for i, name in enumerate(QUICK) if out[4 * i + 3] is False]


def figure(out: list[Any], name: str = "accuracy") -> Any:
    """The figure in a slot that had none."""
    return out[4 * QUICK.index(name)].figure


def test_every_figure_has_a_slot_and_every_slot_a_figure(tmp_path: Path) -> None:
    for seed in range(2):
        boards.a_run(tmp_path / f"a{seed}", seed=seed)
    board = Studio()
    lines = list(RunList(tmp_path).look().lines.values())
    assert set(board.quick(lines[0])) <= set(QUICK)
    assert {"accuracy", "sizes", "clients-similarity", "agreement", "traffic", "missing"} <= set(board.quick(lines[0]))
    assert set(board.slow(lines[0])) == set(SLOW) == {"map"}
    assert set(board.together(lines)) <= set(COMPARED)
    assert {"compare-accuracy", "final-accuracy"} <= set(board.together(lines))


def test_a_figure_travels_only_when_it_has_changed(tmp_path: Path) -> None:
    run, board = boards.a_run(tmp_path / "a"), Studio()
    here = line(tmp_path, "a")
    first = changes(board.quick(here), LIGHT, [here])
    assert "accuracy" in sent(first)
    with pytest.raises(PreventUpdate):
        changes(board.quick(here), LIGHT, [here], first)
    boards.add_round(run, 7, 0.99)
    second = changes(board.quick(line(tmp_path, "a")), LIGHT, [here], first)
    assert second[4 * QUICK.index("accuracy")] is no_update  # the graph stays, and gets another figure
    figures = dict(zip(sent(first), second[-2], strict=True))
    told = {
        tuple(step["location"]): step["params"]["value"] for step in figures["accuracy"].to_plotly_json()["operations"]
    }
    assert told["data",] != figure(first)["data"]
    assert ("layout", "xaxis", "title") in told
    assert figures["clients-similarity"] is no_update  # the sketch is what it was


def test_another_theme_sends_all_and_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boards.a_run(tmp_path / "a")
    board, here = Studio(), line(tmp_path, "a")
    light = changes(board.quick(here), LIGHT, [here])
    monkeypatch.setattr(studios, "_draw", lambda *_: pytest.fail("drawn again"))
    dark = changes(board.quick(here), DARK, [here], light)
    assert sent(dark) == sent(light)
    figures = dict(zip(sent(light), dark[-2], strict=True))
    assert figures["accuracy"]["data"] == figure(light)["data"]
    assert figures["accuracy"]["layout"]["template"] != figure(light)["layout"]["template"]


def test_the_ranges_of_axes_are_the_readers() -> None:
    axis = {"title": "round", "range": [0, 1], "autorange": "reversed"}
    steps = moved_on({"data": [], "layout": {"xaxis": axis, "yaxis2": axis}}).to_plotly_json()["operations"]
    places = {tuple(step["location"]) for step in steps if "axis" in str(step["location"])}
    assert places == {("layout", "xaxis", "title"), ("layout", "yaxis2", "title")}


def test_zoom_stays_with_the_selection(tmp_path: Path) -> None:
    run, board = boards.a_run(tmp_path / "a"), Studio()
    boards.a_run(tmp_path / "b")
    here, there = line(tmp_path, "a"), line(tmp_path, "b")
    before = figure(changes(board.quick(here), LIGHT, [here]))
    boards.add_round(run, 7)
    after = figure(changes(board.quick(here), LIGHT, [here]))
    other = figure(changes(board.quick(there), LIGHT, [there]))
    assert before["layout"]["uirevision"] == after["layout"]["uirevision"] != other["layout"]["uirevision"]
    assert before["data"] != after["data"]


def test_what_a_run_has_no_longer_is_taken_away(tmp_path: Path) -> None:
    boards.a_run(tmp_path / "a")
    board, here = Studio(), line(tmp_path, "a")
    first = changes(board.quick(here), LIGHT, [here])
    out = changes({}, LIGHT, [], first)
    place = 4 * QUICK.index("accuracy")
    assert out[place : place + 4] == [no_update, no_update, "", True]


def test_the_map_waits_for_the_sketch_and_for_the_pause(tmp_path: Path) -> None:
    run = boards.begin(tmp_path / "a")
    boards.add_round(run, 1)
    boards.save_sketch(run, trained=5)
    board, patient = Studio(pause=0.0), Studio(pause=3600.0)
    few = board.slow(line(tmp_path, "a"))["map"]
    assert patient.slow(line(tmp_path, "a"))["map"].print == few.print
    boards.add_round(run, 2)
    assert board.slow(line(tmp_path, "a"))["map"] is few  # the rounds went on, the sketch did not
    boards.save_sketch(run, trained=11)
    assert patient.slow(line(tmp_path, "a"))["map"].print == few.print
    assert "11 clients" in board.slow(line(tmp_path, "a"))["map"].words


def test_a_figure_that_cannot_be_drawn_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("of all things")

    kinds = [dataclasses.replace(kind, draw=fail) if kind.name == "sizes" else kind for kind in KINDS]
    monkeypatch.setattr(studios, "KINDS", tuple[Kind, ...](kinds))
    boards.a_run(tmp_path / "a")
    drawn = Studio().quick(line(tmp_path, "a"))
    assert "of all things" in drawn["sizes"].words
    assert drawn["accuracy"].figure["data"]


def test_a_ranking_in_words(tmp_path: Path) -> None:
    for seed in range(3):
        boards.a_run(tmp_path / f"a{seed}", "wecfl", seed, last=0.90 + 0.01 * seed)
        boards.a_run(tmp_path / f"b{seed}", "fedavg", seed, last=0.60 + 0.02 * seed)
    records = [read_run(path) for path in sorted(tmp_path.iterdir())]
    said = json.dumps([part.to_plotly_json() for part in words.about_runs(6, rank(group(records)))], default=vars)
    assert "91.0 \\u00b1 1.0 %" in said  # 90, 91, 92
    assert "62.0 \\u00b1 2.0 %" in said  # 60, 62, 64
    assert "worse than the best" in said


def test_announcements_are_few(tmp_path: Path) -> None:
    run = boards.begin(tmp_path / "a", rounds=100)
    said = []
    for number in range(1, 31):
        boards.add_round(run, number)
        said.append(words.announcement(["a"], [read_run(run)]))
    assert len(set(said)) == 4
    assert said[-1] == "a is shown: under way, 30 percent."


def test_names_that_are_not_there_are_told_as_text() -> None:
    told = words.complaints(Selection((), ("<script>", *"abcdefg"), 2))
    assert told[0].children == "There is no run '<script>' here."
    assert len(told) == 7  # five names, how many more, and what is left out


@pytest.mark.parametrize(("host", "name", "code"), [
    ("127.0.0.1", "127.0.0.1:8050", 200), ("127.0.0.1", "localhost:8050", 200), ("127.0.0.1", "[::1]:8050", 200),
    ("127.0.0.1", "evil.example:8050", 403), ("127.0.0.1", "127.0.0.1.evil.example", 403),
    ("0.0.0.0", "lab-7.example:8050", 200),
])  # fmt: skip
def test_a_local_page_answers_to_local_names(tmp_path: Path, host: str, name: str, code: int) -> None:
    app = make_app(tmp_path)
    protect(app, host)
    answer = app.server.test_client().get("/alive", headers={"Host": name})
    assert answer.status_code == code
    assert "script-src 'self' 'sha256-" in answer.headers["Content-Security-Policy"]


def test_no_callback_reads_outside(tmp_path: Path) -> None:
    boards.a_run(tmp_path / "outside")
    (tmp_path / "runs").mkdir()
    client = make_app(tmp_path / "runs").server.test_client()
    (outputs,) = (
        call["output"] for call in client.get("/_dash-dependencies").json if "shown-quick.data" in call["output"]
    )
    parts = [part.rsplit(".", 1) for part in outputs.strip(".").split("...")]
    ask = {
        "output": outputs,
        "outputs": [[] if id_[0] == "{" else {"id": id_, "property": what} for id_, what in parts],
        "inputs": [
            {"id": "address", "property": "search", "value": "?run=../outside"},
            {"id": "look", "property": "data", "value": {"theme": "light", "narrow": False}},
            {"id": "tick", "property": "n_intervals", "value": 1},
        ],
        "state": [{"id": "shown-quick", "property": "data", "value": None}, []],
        "changedPropIds": ["address.search"],
    }
    answer = client.post("/_dash-update-component", json=ask).json["response"]
    assert "There is no run '../outside' here." in json.dumps(answer["about"])
    assert not [part for part in answer if part.startswith(("graph-", "slot-"))]
