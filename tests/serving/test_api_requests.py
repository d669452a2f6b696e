"""Requests that are refused: each with its status, its code and the field that is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import api_calls as calls
import pytest

import coterie
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.served_run import ServedRun

ROWS = [[1.0, 2.0]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    calls.train(path, coterie.WeCFL(k=2, local=calls.LOCAL), calls.federation([0, 0, 1, 1]))
    return path


@pytest.fixture(scope="module")
def app(run: Path) -> Any:
    return calls.app_of(run, limits=ApiLimits(body=2000, rows=20))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"rows": ROWS}, (422, "request-invalid", "client")),
        ({"client": 0, "cluster": 0, "rows": ROWS}, (422, "request-invalid", "client")),
        ({"client": 0}, (422, "request-invalid", "rows")),
        ({"client": 0, "rows": ROWS, "prob": True}, (422, "request-invalid", "prob")),
        ({"client": 0, "rows": ROWS, "proba": 1}, (422, "request-invalid", "proba")),
        ({"client": True, "rows": ROWS}, (422, "request-invalid", "client")),
        ({"client": 0, "rows": [[True, 2.0]]}, (422, "data-type", "rows")),
        ({"client": 1.5, "rows": ROWS}, (422, "request-invalid", "client")),
        ({"client": 4, "rows": ROWS}, (422, "client-unknown", "client")),
        ({"client": -1, "rows": ROWS}, (422, "client-unknown", "client")),
        ({"client": "Ada", "rows": ROWS}, (422, "client-unknown", "client")),
        ({"cluster": 2, "rows": ROWS}, (422, "cluster-unknown", "cluster")),
        ({"cluster": "0", "rows": ROWS}, (422, "request-invalid", "cluster")),
        ({"client": 0, "rows": []}, (422, "data-empty", "rows")),
        ({"client": 0, "rows": {}}, (422, "request-invalid", "rows")),
        ({"client": 0, "rows": 3}, (422, "request-invalid", "rows")),
        ({"client": 0, "rows": [1.0, 2.0]}, (422, "data-shape", "rows")),
        ({"client": 0, "rows": [[1.0]]}, (422, "data-shape", "rows")),
        ({"client": 0, "rows": [[1.0, 2.0], [1.0]]}, (422, "data-type", "rows")),
        ({"client": 0, "rows": [["a", "b"]]}, (422, "data-type", "rows")),
        ({"client": 0, "rows": [[1.0, None]]}, (422, "data-type", "rows")),
        ({"client": 0, "rows": [[{}, 1]]}, (422, "data-type", "rows")),
        ({"client": 0, "rows": [[10**300, 1]]}, (422, "data-not-finite", "rows")),
        ({"client": 0, "rows": [[1e300, 1]]}, (422, "data-not-finite", "rows")),
        ({"client": 0, "rows": ROWS * 21}, (413, "request-too-large", "rows")),
        ({"client": 0, "rows": ROWS, "run": "other"}, (404, "run-not-found", "run")),
        ({"client": 0, "rows": ROWS, "run": 1}, (422, "request-invalid", "run")),
        ([1, 2], (400, "request-malformed", None)),
    ],
)
def test_what_is_wrong_is_named(app: Any, body: object, expected: tuple[int, str, str | None]) -> None:
    assert calls.problem(calls.ask(app, "/predict", body)) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe\xfd",
        b'{"client": 0, "rows": [[NaN, 1]]}',
        b'{"client": 0, "rows": [[Infinity, 1]]}',
        b'{"client": 0, "client": 1, "rows": [[1, 1]]}',
        b"[" * 1900,
    ],
)
def test_what_is_not_json_is_malformed(app: Any, raw: bytes) -> None:
    assert calls.problem(calls.ask(app, "/predict", raw=raw)) == (400, "request-malformed", None)


def test_a_number_beyond_single_precision_is_not_finite(app: Any) -> None:
    response = calls.ask(app, "/predict", raw=b'{"client": 0, "rows": [[1e999, 1]]}')
    assert calls.problem(response) == (422, "data-not-finite", "rows")


@pytest.mark.parametrize("number", [b"1.0000000000000002e+30", b"-2E30", b"1" + b"0" * 31, b"1" + b"0" * 400])
def test_a_number_larger_than_described_is_refused(app: Any, number: bytes) -> None:
    """The OpenAPI description has a largest number; one that is hardly larger may still give finite outputs."""
    for rows in (b"[[%s, 1]]", b"[[1, 2], [1, %s]]"):
        response = calls.ask(app, "/predict", raw=b'{"client": 0, "rows": ' + rows % number + b"}")
        assert calls.problem(response) == (422, "data-not-finite", "rows")


def test_exponents_of_ordinary_numbers_are_read(app: Any) -> None:
    plain = calls.ask(app, "/predict", raw=b'{"client": 0, "rows": [[20, 0.001]]}')
    assert plain.status_code == 200
    assert calls.ask(app, "/predict", raw=b'{"client": 0, "rows": [[0.2e+02, 1e-03]]}').json() == plain.json()


def test_only_json_is_read(app: Any) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = calls.ask(app, "/predict", {"client": 0, "rows": ROWS}, headers={"content-type": kind})
        assert calls.problem(response) == (415, "request-media-type", None)
    response = calls.ask(
        app, "/predict", {"client": 0, "rows": ROWS}, headers={"content-type": "application/json; charset=utf-8"}
    )
    assert response.status_code == 200


def test_large_bodies_are_refused_whether_or_not_their_length_is_announced(app: Any) -> None:
    assert calls.problem(calls.ask(app, "/predict", raw=b" " * 2001)) == (413, "request-too-large", None)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 100

    response = calls.ask(app, "/assign", raw=pieces())
    assert "content-length" not in response.request.headers
    assert calls.problem(response) == (413, "request-too-large", None)


def test_a_body_that_comes_too_slowly_is_given_up(run: Path) -> None:
    app = calls.app_of(run, limits=ApiLimits(seconds=0.05))

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    assert calls.problem(calls.ask(app, "/predict", raw=trickle())) == (408, "request-too-slow", None)


def test_an_answer_that_takes_too_long_is_given_up(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServedRun, "assign", lambda *_: time.sleep(0.5))
    app = calls.app_of(run, limits=ApiLimits(seconds=0.05))
    response = calls.ask(app, "/assign", {"rows": ROWS, "labels": [1]})
    assert calls.problem(response) == (503, "request-too-slow", None)


def test_addresses_that_are_not_there(app: Any) -> None:
    assert calls.problem(calls.ask(app, "/other")) == (404, "request-not-found", None)
    assert calls.problem(calls.ask(app, "/predict")) == (405, "request-not-found", None)
    assert calls.problem(calls.ask(app, "/runs/other/clusters")) == (404, "run-not-found", "run")
    assert calls.problem(calls.ask(app, "/clusters?members=perhaps")) == (422, "request-invalid", "members")


def test_an_error_of_ours_is_json_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(ServedRun, "predict", broken)
    response = calls.ask(calls.app_of(run), "/predict", {"client": 0, "rows": ROWS})
    assert calls.problem(response) == (500, "unspecified", None)
    assert "secret" not in response.text


def test_the_token_is_required_of_all_but_the_health(run: Path) -> None:
    app = calls.app_of(run, token="0123456789abcdef", local=False)
    assert calls.ask(app, "/healthz").json() == {"status": "ok"}
    for path in ("/clusters", "/runs", "/metrics", "/docs", "/openapi.json", "/other"):
        response = calls.ask(app, path)
        assert calls.problem(response) == (401, "request-unauthorized", None)
        assert response.headers["www-authenticate"] == "Bearer"
    for wrong in ("Bearer 0123456789abcdeg", "Bearer ", "bearer", "Basic 0123456789abcdef", "0123456789abcdef"):
        assert calls.ask(app, "/clusters", headers={"authorization": wrong}).status_code == 401
    right = {"authorization": "Bearer 0123456789abcdef"}
    assert calls.ask(app, "/clusters", headers=right).status_code == 200
    assert calls.ask(app, "/predict", {"client": 0, "rows": ROWS}, headers=right).status_code == 200


def test_a_local_service_answers_to_local_names_only(run: Path, app: Any) -> None:
    for name in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"):
        assert calls.ask(app, "/clusters", headers={"host": name}).status_code == 200, name
    for name in ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", ""):
        response = calls.ask(app, "/clusters", headers={"host": name})
        assert calls.problem(response) == (403, "request-refused", None), name
