"""`coterie dashboard`: the list of runs, pages that follow their files, addresses, and the command."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boards
import pytest
from filelock import FileLock

from conftest import raises
from coterie.tools.cli.report import dashboard
from coterie.tools.report import live
from coterie.tools.report.live import Runs, make_app
from coterie.tools.report.record import FRESH, RunSummary, read_summary
from coterie.training import status

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

EVIL = "<img src=x onerror=alert(1)>"


def ask(directory: Path, address: str, host: str = "127.0.0.1", bound: str = "127.0.0.1") -> Any:
    """The answer to a browser that calls this machine by the name `host`."""
    httpx = pytest.importorskip("httpx")

    async def get() -> Any:
        transport = httpx.ASGITransport(make_app(directory, bound))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.get(address)

    return asyncio.run(get())


# ------------------------------------------------------------------------------------------- the list of runs


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of runs as they are read."""
    names: list[str] = []

    def noted(path: Path) -> RunSummary:
        names.append(path.name)
        return read_summary(path)

    monkeypatch.setattr(live, "read_summary", noted)
    return names


def test_only_what_changed_is_read_again(tmp_path: Path, read: list[str]) -> None:
    for name in "abc":
        boards.a_run(tmp_path / name)
    runs = Runs(tmp_path)
    first = runs.look()
    assert read == ["a", "b", "c"]
    assert runs.look() == first
    assert read == ["a", "b", "c"]
    boards.add_round(tmp_path / "b", 7, 0.5)
    assert runs.look()["b"][0].accuracy == 0.5
    assert read == ["a", "b", "c", "b"]
    log = tmp_path / "a" / "rounds.jsonl"
    log.write_text(log.read_text().replace("0.9", "0.8"))  # of the same size
    os.utime(log, ns=(0, log.stat().st_mtime_ns + 1))
    runs.look()
    assert read[-1] == "a"
    for file in (tmp_path / "c").iterdir():
        file.unlink()
    assert list(runs.look()) == ["a", "b"]


def test_a_run_that_stands_still_is_stopped_though_no_file_changed(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    boards.add_round(boards.begin(tmp_path / "a"), 1)
    runs = Runs(tmp_path)
    assert runs.look()["a"][0].status == "running"
    before, now = runs.page(["a"])[0], time.time()
    monkeypatch.setattr(time, "time", lambda: now + FRESH + 1)
    assert runs.look()["a"][0].status == "stopped"
    assert runs.page(["a"])[0] != before
    assert read == ["a"]


def test_a_run_whose_process_is_gone_has_failed_though_no_file_changed(tmp_path: Path) -> None:
    run = boards.begin(tmp_path / "a")
    boards.add_round(run, 1)
    runs = Runs(tmp_path)
    with FileLock(run / status.LOCK):
        status.write(run, "running")
        os.utime(run / "rounds.jsonl", (1, 1))
        os.utime(run / "config.yaml", (1, 1))
        assert runs.look()["a"][0].status == "running"  # a long round
    found = runs.look()["a"][0]
    assert found.status == "failed"
    assert "ended without a message" in str(found.problem)


def test_damaged_runs_are_lines_and_pages_too(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.yaml").write_text("{{{:")
    half = boards.begin(tmp_path / "half")
    boards.add_round(half, 1)
    with (half / "rounds.jsonl").open("a") as log:
        log.write('{"round": 2, "acc')
    boards.a_run(tmp_path / EVIL, "<b>ifca</b>")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "rounds.jsonl").touch()
    found = Runs(tmp_path).look()
    assert list(found) == [EVIL, "bad", "blank", "half"]
    assert (found["bad"][0].status, found["half"][0].rounds_done) == ("broken", 1)
    for address in ("/", *(f"/?run={key}" for key in ("bad", "blank", "half")), "/?run=bad&run=half"):
        answer = ask(tmp_path, address)
        assert answer.status_code == 200
        assert "<img" not in answer.text
        assert "<b>ifca" not in answer.text


def test_an_empty_directory_says_how_to_begin(tmp_path: Path) -> None:
    assert "coterie run --out" in ask(tmp_path, "/").text


# ------------------------------------------------------------------------------------------- over HTTP


def test_a_page_says_what_has_changed_since(tmp_path: Path) -> None:
    boards.add_round(boards.begin(tmp_path / "a"), 1, 0.25)
    page = ask(tmp_path, "/?run=a").text
    assert "25.0 %" in page
    assert '<script src="plotly.js">' in page
    first = ask(tmp_path, "/live?run=a").json()
    assert "25.0 %" in first["main"]
    assert "run-accuracy" in first["figures"]
    assert first["state"] in page  # as the page that was sent
    assert ask(tmp_path, f"/live?run=a&seen={first['state']}").json() == {"state": first["state"]}
    boards.add_round(tmp_path / "a", 2, 0.75)
    second = ask(tmp_path, f"/live?run=a&seen={first['state']}").json()
    assert second["state"] != first["state"]
    assert "75.0 %" in second["main"]
    assert len(json.loads(json.dumps(second["figures"]))["run-accuracy"]["data"]) > 1


def test_runs_are_compared_and_no_address_leads_out_of_the_directory(tmp_path: Path) -> None:
    for name in ("a", "b"):
        boards.a_run(tmp_path / "in" / name, seed=ord(name))
    boards.a_run(tmp_path / "out")
    page = ask(tmp_path / "in", "/?run=a&run=b&run=../out&run=%2e%2e/out").text
    assert "2 runs, 1 configuration" in page
    assert page.count("There is no run") == 2  # both spell the same key
    assert ask(tmp_path / "in", "/templates/page.css").status_code == 404
    assert ask(tmp_path / "in", "/../out/config.yaml").status_code == 404


@pytest.mark.parametrize(
    ("host", "bound", "code"),
    [
        ("localhost:8050", "127.0.0.1", 200),
        ("[::1]:8050", "::1", 200),
        ("evil.example", "127.0.0.1", 403),
        ("127.0.0.1.evil.example", "localhost", 403),
        ("board.example", "0.0.0.0", 200),
    ],
)
def test_a_local_page_answers_to_local_names(tmp_path: Path, host: str, bound: str, code: int) -> None:
    for address in ("/", "/live"):
        answer = ask(tmp_path, address, host, bound)
        assert answer.status_code == code
    if code == 200:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = ask(tmp_path, "/", host, bound).text
        assert "default-src 'none'; script-src 'unsafe-inline' 'self';" in policy


# ------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if not Path("/usr/bin/chromium").exists():
        pytest.skip("there is no /usr/bin/chromium")
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.exhaustive
def test_a_run_is_chosen_from_the_list_and_seen_to_advance(browser: Any, tmp_path: Path) -> None:
    boards.a_run(tmp_path / "done")
    boards.add_round(boards.begin(tmp_path / "going"), 1, 0.25)
    said: list[str] = []
    with boards.dashboard(tmp_path) as address:
        page = browser.new_page()
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        page.get_by_label("compare going").check()
        page.get_by_role("button", name="Show the selected runs").click()
        page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        chart = page.locator("#run-accuracy").element_handle()
        assert page.locator("dl.key dd").first.text_content() == "25.0 %"
        boards.add_round(tmp_path / "going", 2, 0.75)
        page.locator("dl.key dd", has_text="75.0 %").first.wait_for(timeout=60_000)
        points = "document.getElementById('run-accuracy')._fullData.map(one => one._length)"
        for _ in range(100):
            if 2 in page.evaluate(points):
                break
            page.wait_for_timeout(200)
        assert 2 in page.evaluate(points)
        assert chart.is_visible()  # the same element, so that a zoom is kept
        page.close()
    assert said == []


# ------------------------------------------------------------------------------------------- the command


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with raises("run-not-found"):
        dashboard(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with raises("run-not-found"):
        dashboard(tmp_path / "file")


def test_without_starlette_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    with raises("extra-missing", match=r"pip install 'coterie\[dashboard\]'"):
        dashboard(tmp_path)


def test_a_port_in_use_is_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with boards.start(tmp_path, "--port", str(port)) as process:
            out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err == f"error: --port {port}: in use by another program; choose another, or 0 for any that is free\n"


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with raises("address-unavailable", match=r"--host 203\.0\.113\.7: no address of this machine"):
        dashboard(tmp_path, host="203.0.113.7", port=0)
    with raises("address-unavailable", match="--host not a host: there is no such address"):
        dashboard(tmp_path, host="not a host", port=0)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_a_wider_host_is_warned_about(
    host: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(directory: Path, sock: socket.socket, host: str) -> None:
        sock.close()

    monkeypatch.setattr(live, "serve", serve)
    dashboard(tmp_path, host=host, port=0)
    said = capsys.readouterr().err
    assert ("there is no password" in said) is warned
    assert "http://" in said
    assert "http://0.0.0.0" not in said  # no browser goes there
