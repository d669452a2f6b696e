"""The dashboard in a real browser: a server of its own, real clicks and keys, and a run that goes on meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boards
import pytest

pytest.importorskip("dash", reason="the extra `dashboard` is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE = 60_000  # milliseconds; the machine may be busy
Open = Callable[..., Any]

# For every day there is the report's page, in tools/report/test_report_page.py.
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six good runs, and four that are not."""
    place = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        boards.a_run(place / "good" / f"wecfl-{seed}", "wecfl", seed, last=0.90 + 0.01 * seed)
        boards.a_run(place / "good" / f"fedavg-{seed}", "fedavg", seed, last=0.60 + 0.02 * seed)
    (place / "broken").mkdir()
    (place / "broken" / "config.yaml").write_text("{{{: <b>")
    boards.age(boards.begin(place / "empty"))
    half = boards.begin(place / "half")
    boards.add_round(half, 1)
    boards.add_round(half, 2)
    with (half / "rounds.jsonl").open("a") as log:
        log.write('{"round": 3, "acc')
    boards.age(half)
    boards.age(boards.a_run(place / "<img src=x onerror=alert(1)>", "<b>ifca</b>"))
    return place


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with boards.dashboard(runs) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """What browsers complained about, and what was asked of other machines."""
    return []


@pytest.fixture(scope="module")
def visit(browser: Any, address: str, complaints: list[str]) -> Open:
    """Opens a page in a window of its own."""

    def open_(search: str = "", at: str = address, **how: Any) -> Any:
        page = browser.new_context(**({"viewport": {"width": 1366, "height": 768}} | how)).new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda r: None if r.url.startswith((at, "data:", "blob:")) else complaints.append(r.url))
        page.goto(at + search)
        until(page, "document.querySelector('#runs tbody tr, #empty pre') !== null")
        return page

    return open_


@pytest.fixture(scope="module")
def window(visit: Open) -> Any:
    """A page that several tests use: to load it takes longer than to use it."""
    return visit()


@pytest.fixture
def page(window: Any) -> Any:
    """The page with nothing selected and nothing filtered."""
    window.get_by_label("Find").fill("")
    window.get_by_label("Status").select_option("")
    clear = window.get_by_role("button", name="Clear selection")
    if clear.is_enabled():
        clear.click()
    playwright.expect(window.locator("figure:visible")).to_have_count(0, timeout=PATIENCE)
    return window


@pytest.fixture(autouse=True)
def no_complaints(complaints: list[str]) -> Iterator[None]:
    yield
    found = complaints.copy()
    complaints.clear()
    assert found == []


def until(page: Any, script: str) -> None:
    """Wait for this to be true. playwright's own way would need `eval`, which the page's policy forbids."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(script):
        assert time.monotonic() < end, script
        page.wait_for_timeout(50)


def names(page: Any) -> list[str]:
    found: list[str] = page.locator("#runs tbody td.column-run a").all_inner_texts()
    return found


def points(page: Any, figure: str = "accuracy") -> int:
    """Markers that are drawn in a figure."""
    count: int = page.locator(f"#slot-{figure}:not([hidden]) .scatterlayer path.point").count()
    return count


def wait_for_points(page: Any, count: int, figure: str = "accuracy") -> None:
    script = f"document.querySelectorAll('#slot-{figure}:not([hidden]) .scatterlayer path.point').length >= {count}"
    until(page, script)


def expect(page: Any, where: str, text: str) -> None:
    playwright.expect(page.locator(where).first).to_contain_text(text, timeout=PATIENCE)


def test_the_list_is_found_filtered_and_sorted(page: Any) -> None:
    everything = names(page)
    assert len(everything) == 10
    page.get_by_label("Find").fill("fedavg seed=1")
    assert names(page) == ["good/fedavg-1"]
    expect(page, "#count", "1 of 10 runs")
    page.get_by_label("Find").fill("")
    page.get_by_label("Status").select_option("broken")
    assert names(page) == ["broken"]
    page.get_by_label("Status").select_option("")
    page.get_by_role("button", name="accuracy").click()
    assert names(page)[0] == "good/wecfl-2"
    assert page.locator("th[aria-sort]").inner_text().startswith("accuracy")
    page.get_by_role("button", name="accuracy").click()
    assert names(page)[:2] == ["half", "good/fedavg-0"]
    assert set(names(page)[-2:]) == {"broken", "empty"}  # what is unknown is last either way


def test_one_run_then_another_then_back(page: Any) -> None:
    page.get_by_role("link", name="good/wecfl-2").click()
    expect(page, "#about h2", "good/wecfl-2")
    wait_for_points(page, 6)
    assert page.url.endswith("?run=good/wecfl-2")
    for figure in ("sizes", "clients-similarity", "agreement", "traffic", "missing"):
        playwright.expect(page.locator(f"#slot-{figure} .main-svg").first).to_be_visible(timeout=PATIENCE)
    wait_for_points(page, boards.CLIENTS, "map")
    assert page.locator("#graph-missing .bars .point").count() == 6
    assert page.locator("#graph-clients-similarity .heatmaplayer image").count() == 1
    expect(page, "#words-accuracy", "to 92.0 % in round 6")
    expect(page, "#announce", "good/wecfl-2 is shown: done.")
    page.get_by_text("Configuration and versions").click()
    expect(page, "#settings", "method.name")
    page.get_by_role("link", name="good/fedavg-0").click()
    expect(page, "#words-accuracy", "to 60.0 % in round 6")
    page.go_back()
    expect(page, "#words-accuracy", "to 92.0 % in round 6")
    page.get_by_role("button", name="Clear selection").click()
    playwright.expect(page.locator("figure:visible")).to_have_count(0, timeout=PATIENCE)


def test_two_runs_and_more_are_compared(page: Any) -> None:
    page.get_by_role("link", name="good/wecfl-0").click()
    wait_for_points(page, 6)
    page.get_by_label("compare good/fedavg-0").check()
    expect(page, "#about h2", "2 runs compared")
    playwright.expect(page.locator("#graph-compare-accuracy .legend .traces")).to_have_count(2, timeout=PATIENCE)
    assert page.locator("#slot-accuracy").is_hidden()
    page.get_by_label("Find").fill("good/")
    page.get_by_role("button", name="Compare all listed").click()
    expect(page, "#about h2", "6 runs compared")
    expect(page, "#about table", "91.0 ± 1.0 %")
    expect(page, "#about table", "worse than the best (paired t-test, 3 seeds)")
    assert page.url.count("run=") == 6


def test_damaged_runs_are_shown_as_such(page: Any) -> None:
    page.get_by_role("link", name="broken").click()
    expect(page, "#about", "config.yaml cannot be read")
    page.get_by_role("link", name="empty").click()
    expect(page, "#about", "nothing to draw")
    page.get_by_role("link", name="half").click()
    expect(page, "#about", "2 / 6")
    wait_for_points(page, 2)
    page.get_by_role("link", name="<img src=x").click()
    expect(page, "#about h2", "<img src=x onerror=alert(1)>")
    expect(page, "#about dd", "<b>ifca</b>")
    wait_for_points(page, 6)
    assert page.locator("main img, #about b").count() == 0


def test_no_address_leads_out_of_the_directory(visit: Open, runs: Path) -> None:
    page = visit(f"?run=../../etc&run={runs.parent}&run=good/wecfl-0")
    expect(page, "#about", "There is no run '../../etc' here.")
    wait_for_points(page, 6)
    page.context.close()


def test_a_run_is_seen_to_advance_and_zoom_stays(page: Any, runs: Path) -> None:
    run = boards.begin(runs / "live", rounds=9)
    for number in range(1, 5):
        boards.add_round(run, number)
    boards.save_sketch(run, trained=4)
    page.get_by_role("link", name="live").click()
    wait_for_points(page, 4)
    expect(page, "#about h2", "under way")
    wait_for_points(page, 4, "map")
    page.evaluate("window.stayed = true")
    page.locator("#graph-accuracy").scroll_into_view_if_needed()
    box = page.locator("#graph-accuracy .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] - 20, steps=5)
    page.mouse.up()
    look = "document.querySelector('#graph-accuracy .js-plotly-plot').layout.xaxis"
    until(page, f"{look}.autorange === false")
    zoomed = page.evaluate(f"{look}.range")
    boards.add_round(run, 5)
    boards.save_sketch(run, trained=9)
    until(page, "document.querySelector('#words-accuracy').textContent.includes('in round 5')")
    length = "document.querySelector('#graph-accuracy .js-plotly-plot').calcdata.at(-1).length"
    until(page, f"{length} === 5")
    assert page.evaluate(f"{look}.range") == zoomed
    for number in range(6, 10):
        boards.add_round(run, number)
    boards.finish(run)
    until(page, f"{length} === 9")
    expect(page, "#about h2", "done")
    playwright.expect(page.locator("tr.selected")).to_contain_text("9/9", timeout=PATIENCE)
    wait_for_points(page, 9, "map")  # five clients more have trained: the map has grown
    assert page.evaluate("window.stayed") is True


def test_a_real_run_appears_and_is_followed_to_its_end(page: Any, runs: Path) -> None:
    code = """if True:
        import sys, time, numpy, coterie
        rng = numpy.random.default_rng(0)
        clients = [((x := rng.normal(size=(20, 2))), ((x[:, 0] > 0) != (c % 2)).astype(int)) for c in range(12)]
        coterie.run(coterie.WeCFL(k=2), clients, "linear", rounds=8, out=sys.argv[1],
                    checkpoint_every=2, listeners=[lambda event: time.sleep(0.5)])
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, str(runs / "real")], env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:
        page.get_by_role("link", name="real").click()
        wait_for_points(page, 1)
        before = points(page)
        wait_for_points(page, before + 1)
        assert process.wait(timeout=120) == 0
    wait_for_points(page, 8)
    expect(page, "#about h2", "done")
    playwright.expect(page.locator("#slot-map .main-svg").first).to_be_visible(timeout=PATIENCE)


def test_the_keyboard_is_enough(page: Any) -> None:
    first = page.locator("a, button, input, select, [tabindex]").first
    assert first.inner_text() == "Skip to the figures"
    first.focus()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("(e => e.id || e.getAttribute('aria-label') || e.textContent)(document.activeElement)")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
        if reached[-1] == "good/wecfl-1":
            break
    assert {"theme", "filter", "status", "accuracy", "compare good/wecfl-1"} <= set(reached)
    page.keyboard.press("Enter")
    wait_for_points(page, 6)
    expect(page, "#about h2", "good/wecfl-1")
    assert page.evaluate("document.activeElement.textContent") == "good/wecfl-1"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    expect(page, "#announce", "No run is selected.")


def test_a_phone_has_nothing_beyond_its_edge(visit: Open) -> None:
    page = visit("?run=good/wecfl-0", viewport={"width": 390, "height": 844})
    inside = "[...document.querySelectorAll('main *:not(svg *)')].filter(e => !e.closest('.js-plotly-plot'))"
    beyond = f"{inside}.filter(e => e.getBoundingClientRect().right > 390).map(e => e.outerHTML.slice(0, 80))"
    for title in ("good/wecfl-0", "2 runs compared"):
        expect(page, "#about h2", title)
        page.locator("figure:visible .main-svg").first.wait_for()
        page.locator("summary").click()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate(beyond) == []
        page.get_by_label("compare good/fedavg-0").check()
    page.context.close()


def test_light_and_dark(visit: Open) -> None:
    page = visit("?run=half", color_scheme="dark")
    wait_for_points(page, 2)
    paper = "getComputedStyle(document.querySelector('#graph-accuracy .main-svg')).backgroundColor"
    until(page, f"{paper} === 'rgb(23, 26, 31)'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 26, 31)"
    page.get_by_role("button", name="Switch to the light theme").click()
    until(page, f"{paper} === 'rgb(255, 255, 255)'")
    page.reload()
    wait_for_points(page, 2)
    until(page, f"{paper} === 'rgb(255, 255, 255)'")
    assert page.get_by_role("button", name="Switch to the dark theme").is_visible()
    page.context.close()


def test_what_a_screen_reader_meets(page: Any) -> None:
    page.get_by_role("link", name="good/wecfl-0").click()
    wait_for_points(page, 6)
    assert page.locator("html").get_attribute("lang") == "en"
    for role in ("banner", "main", "search"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("status").count() == 2
    assert page.get_by_role("region", name="Runs", exact=True).is_visible()
    figure = page.get_by_role("img", name=re.compile("Accuracy from .* in round 1 to 90.0 % in round 6"))
    assert figure.count() == 1
    nameless = """[...document.querySelectorAll('button, input, select, a[href], [role=img]')].filter(
        e => e.checkVisibility() && !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length
             || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent)).map(e => e.outerHTML)"""
    assert page.evaluate(nameless) == []


def test_an_empty_directory_says_how_to_begin_and_fills(visit: Open, tmp_path: Path) -> None:
    with boards.dashboard(tmp_path) as address:
        page = visit(at=address)
        expect(page, "#empty", "There are no runs here yet")
        expect(page, "#empty code", f"coterie run method.name=wecfl method.k=4 rounds=30 --out {tmp_path / 'first'}")
        boards.a_run(tmp_path / "first")
        page.get_by_role("link", name="first").click()
        wait_for_points(page, 6)
        assert page.locator("#empty").is_hidden()
        page.context.close()


def test_from_a_run_to_its_cluster_to_a_client_and_back(visit: Open) -> None:
    page = visit("?run=good/wecfl-1")
    with page.expect_download() as download:
        page.get_by_role("link", name="assignments.csv").click()
    assert download.value.path().read_text().startswith("client,name,cluster,")
    page.get_by_role("link", name="cluster 1 (4 clients)").click()
    expect(page, "h2", "Cluster 1 of good/wecfl-1")
    assert page.locator(".table tbody tr").count() == 4
    expect(page, ".problem", "has no checkpoint to load")  # it was written by hand
    page.locator(".table tbody a").first.click()
    expect(page, "h2", "Client 1 of good/wecfl-1")
    page.get_by_role("link", name="good/wecfl-1").click()
    expect(page, "#about h2", "good/wecfl-1")


def test_names_on_pages_are_text(visit: Open, address: str) -> None:
    page = visit("?run=" + "%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E")
    page.get_by_role("link", name="cluster 0 (4 clients)").click()
    expect(page, "h2", "Cluster 0 of <img src=x onerror=alert(1)>")
