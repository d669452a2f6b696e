"""The page in a real browser, from a file: every chart has drawn data, nothing complains, nothing goes out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import runs
from plotly import graph_objects as go

from coterie.core.errors import CoterieError
from coterie.tools.report.export import Drawing, draw_figures
from coterie.tools.report.page import render
from coterie.tools.report.record import read_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
# Of whatever kind a chart is: lines, points, bars, heat maps (images) or streams.
MARKS = ".scatterlayer path, .barlayer path, .heatmaplayer image, .sankey-link"


@dataclass
class Visit:
    """A page, and what went wrong on it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, file: Path) -> None:
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)

    def marks(self) -> dict[str, int]:
        """How many marks each chart that is open has drawn."""
        found: dict[str, int] = self.page.evaluate(
            "marks => Object.fromEntries([...document.querySelectorAll('.chart')]"
            ".filter(c => !c.closest('details:not([open])')).map(c => [c.id, c.querySelectorAll(marks).length]))",
            MARKS,
        )
        return found

    def background(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with every figure, and several runs."""
    folder = tmp_path_factory.mktemp("pages")
    name = "<img src=x onerror=alert(1)>"
    clients = [
        row | {"shares": [0.75, 0.25], "mixture": [0.5 + 0.1 * i, 0.5 - 0.1 * i], "name": name}
        for i, row in enumerate(runs.CLIENTS)
    ]
    one = read_run(runs.write(folder / "one", clients=clients))
    (folder / "one.html").write_text(render([one]))
    several = [
        read_run(runs.score_only(folder / f"{method}{seed}", 0.7 + 0.01 * seed, seed, name=method))
        for method in ("fedavg", "wecfl")
        for seed in range(2)
    ]
    (folder / "several.html").write_text(render(several))
    return folder


def visit(browser: Any, file: Path, width: int = 1280, scheme: str = "light") -> Visit:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found = Visit(context.new_page())
    found.open(file)
    return found


def test_every_chart_draws_data_and_nothing_complains(browser: Any, pages: Path) -> None:
    seen = visit(browser, pages / "one.html")
    marks = seen.marks()
    assert len(marks) == 15
    assert {name for name, count in marks.items() if not count} == set()
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.exhaustive
def test_points_of_a_curve_are_as_many_as_its_rounds(browser: Any, pages: Path) -> None:
    seen = visit(browser, pages / "one.html")
    points = seen.page.evaluate("document.querySelectorAll('#run-accuracy .points path').length")
    assert points == 2  # rounds 1 and 3 were evaluated


def test_run_among_several_is_drawn_when_it_is_opened(browser: Any, pages: Path) -> None:
    seen = visit(browser, pages / "several.html")
    before = seen.marks()
    assert set(before) == {
        f"all-{n}" for n in ("compare-accuracy", "compare-macro-f1", "final-accuracy", "compare-sizes")
    }
    assert all(before.values())
    seen.page.click("details:nth-of-type(2) > summary")
    seen.page.wait_for_selector("#run2-seconds[data-drawn]", timeout=60_000)
    seen.page.wait_for_selector("#run2-missing[data-drawn]", timeout=60_000)
    opened = {name: count for name, count in seen.marks().items() if name.startswith("run2-")}
    assert len(opened) == 14
    assert all(opened.values())
    assert seen.complaints == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_follows_the_system_and_the_button(browser: Any, pages: Path, scheme: str) -> None:
    seen = visit(browser, pages / "one.html", scheme=scheme)
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(23, 26, 31)"}
    other = "dark" if scheme == "light" else "light"
    chart = "document.querySelector('#run-missing .main-svg').style.background"
    assert seen.background() == seen.page.evaluate(chart) == colours[scheme]
    seen.page.click("#theme")
    assert seen.background() == colours[other]
    seen.page.wait_for_selector(f"#run-missing .main-svg[style*='{colours[other]}']", timeout=60_000)
    assert seen.marks() == visit(browser, pages / "one.html").marks()
    assert seen.complaints == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["one", "several"])
def test_phone_needs_no_sideways_scrolling(browser: Any, pages: Path, name: str) -> None:
    seen = visit(browser, pages / f"{name}.html", width=360)
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 360
    widest = seen.page.evaluate("Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.clientWidth))")
    assert 200 < widest <= 360


@pytest.mark.exhaustive
def test_on_a_phone_no_table_is_cut(browser: Any, pages: Path) -> None:
    page = visit(browser, pages / "several.html", width=390).page
    cut = "[...document.querySelectorAll('td, caption')].filter(c => c.getBoundingClientRect().right > 390).length"
    assert page.locator("td:visible").count() > 20
    assert page.evaluate(cut) == 0


@pytest.mark.exhaustive
def test_titles_of_axes_and_legends_do_not_meet(browser: Any, pages: Path) -> None:
    page = visit(browser, pages / "several.html").page
    meet = """[...document.querySelectorAll('.chart')].filter(c => {
        const title = c.querySelector('.xtitle'), legend = c.querySelector('.legend');
        return title && legend && title.getBoundingClientRect().bottom > legend.getBoundingClientRect().top;
    }).map(c => c.id)"""
    assert page.evaluate(meet) == []


@pytest.mark.exhaustive
def test_charts_are_described_to_those_who_do_not_see_them(browser: Any, pages: Path) -> None:
    seen = visit(browser, pages / "one.html")
    missing = seen.page.evaluate(
        "[...document.querySelectorAll('.chart')].filter(c => c.getAttribute('role') !== 'img' || "
        "c.getAttribute('aria-label').length < 40 || !c.parentElement.querySelector('figcaption').textContent).length"
    )
    assert missing == 0


@pytest.mark.exhaustive
def test_figures_as_files(tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    from PIL import Image

    from coterie.tools.report.export import files_of, write_figures

    record = read_run(runs.write(tmp_path / "run"))
    wanted = files_of([record], tmp_path / "figures")[:2]
    said: list[str] = []
    paths = write_figures(wanted, ["png", "svg"], said.append)
    assert [path.name for path in paths] == ["accuracy.png", "accuracy.svg", "macro-f1.png", "macro-f1.svg"]
    assert len(said) == 4
    with Image.open(paths[0]) as picture:
        assert picture.size == (1640, 840)
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 10
    assert "Accuracy over rounds" in paths[1].read_text()


@pytest.mark.exhaustive
def test_a_browser_that_does_not_draw_in_time_is_an_error_that_says_so(tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    drawing = Drawing(tmp_path / "never.png", go.Figure(), 800)
    # Which of both is first depends on how far the browser has come.
    with pytest.raises(CoterieError, match=r"did not draw a figure within 0\.001 seconds|the browser has stopped"):
        draw_figures([drawing], lambda _: None, seconds=0.001)
    assert not drawing.path.exists()
