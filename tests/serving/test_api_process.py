"""`coterie api` as a process: a real socket, chunks without a length, signals, and what it refuses to start with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import api_calls as calls
import httpx
import pytest
from typer.testing import CliRunner

import coterie
from conftest import raises
from coterie.serving.api.token import read_token
from coterie.tools.cli.main import app as cli

ROWS = [[3.0, 0.0], [-3.0, 0.0]]
PATIENCE = 60.0


def wecfl() -> Any:
    return coterie.WeCFL(k=2, local=calls.LOCAL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    calls.train(path, wecfl(), calls.federation([0, 0, 1, 1]))
    return path


def raw(address: str, data: bytes) -> bytes:
    """What is answered to these bytes, until the other side closes."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        parts = []
        while part := sock.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_requests_over_a_socket(run: Path) -> None:
    with calls.service(run, "--body", "5000", "--reload", "0") as (address, _):
        with httpx.Client(base_url=address, timeout=PATIENCE) as client:
            assert client.get("healthz").json() == {"status": "ok"}
            said = client.post("predict", json={"client": 0, "rows": ROWS}).json()
            assert said["predictions"] == [1, 0]
        head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
        body = json.dumps({"client": 0, "rows": ROWS}).encode()
        assert b'"predictions":[1,0]' in raw(address, chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        large = b"".join(b"400\r\n" + b" " * 1024 + b"\r\n" for _ in range(8))
        assert raw(address, chunked + large + b"0\r\n\r\n").startswith(b"HTTP/1.1 413")
        assert raw(address, head + b"Content-Length: 5001\r\n\r\n").startswith(b"HTTP/1.1 413")
        assert raw(address, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_body_in_chunks_is_not_read_far_past_its_limit(run: Path) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with calls.service(run, "--body", "5000", "--reload", "0") as (address, _):
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            sent = 0
            try:
                for _ in range(1000):
                    sock.sendall(chunk)
                    sent += len(chunk)
            except OSError:  # the other side has closed
                pass
            assert sent < 16 << 20, "a body may have 5,000 bytes"


@pytest.mark.skipif(os.name == "nt", reason="there are no limits of files there")
def test_idle_connections_do_not_end_the_service(run: Path) -> None:
    """More than it may have files: it answers, and writes nothing."""
    import resource

    words = [sys.executable, "-m", "coterie.tools.cli.main", "api", str(run), "--port", "0"]
    process = subprocess.Popen(
        words,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)),
    )
    with process, ExitStack() as idle:
        assert process.stderr is not None
        address = urlsplit(re.findall(rb"http://[^/ ]+/", process.stderr.readline())[0].decode())
        where = (str(address.hostname), int(address.port or 0))
        try:
            lines = [idle.enter_context(socket.create_connection(where, timeout=PATIENCE)) for _ in range(260)]
            assert httpx.get(f"http://{where[0]}:{where[1]}/healthz", timeout=PATIENCE).status_code == 200
            assert lines[0].recv(1) == b"", "the oldest have given way"
        finally:
            process.terminate()
            said = process.communicate(timeout=PATIENCE)[1]
    assert b"accept" not in said
    assert len(said) < 2000, said[:2000]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
@pytest.mark.parametrize("how", ["signal", "newer checkpoint"])
def test_another_state_is_served_without_a_lost_request(run: Path, tmp_path: Path, how: str) -> None:
    live, new = tmp_path / "live", tmp_path / "new"
    shutil.copytree(run, live)
    calls.train(new, wecfl(), calls.federation([1, 1, 0, 0]), rounds=5)
    answers: list[tuple[int, tuple[int, ...]]] = []
    ended = threading.Event()

    def ask(address: str) -> None:
        with httpx.Client(base_url=address, timeout=PATIENCE) as client:
            while not ended.is_set():
                response = client.post("predict", json={"client": 0, "rows": ROWS})
                answers.append((response.status_code, tuple(response.json().get("predictions", ()))))

    with calls.service(live, "--reload", "0" if how == "signal" else "0.1") as (address, process):
        threads = [threading.Thread(target=ask, args=(address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(answers) < 20:
            time.sleep(0.01)
        shutil.rmtree(live)
        shutil.copytree(new, live)
        if how == "signal":
            process.send_signal(signal.SIGHUP)
        end = time.monotonic() + PATIENCE
        while (200, (0, 1)) not in answers[-4:]:
            assert time.monotonic() < end
            time.sleep(0.01)
        ended.set()
        for thread in threads:
            thread.join()
    assert {status for status, _ in answers} == {200}
    assert answers[0][1] == (1, 0)
    assert {said for _, said in answers} == {(1, 0), (0, 1)}


def test_beyond_this_machine_a_token_is_required(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_API_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "10.1.2.3", "example.org"):
        with raises("option-missing", match="COTERIE_API_TOKEN"):
            read_token(host, None, {})
    for host in ("127.0.0.1", "localhost", "::1"):
        assert read_token(host, None, {}) is None
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    if os.name != "nt":
        for mode in (0o644, 0o604, 0o660):
            file.chmod(mode)
            with raises("file-exposed", match=f"chmod 600 {file}"):
                read_token("0.0.0.0", file, {})
    file.chmod(0o640)  # a group may read: that is how containers are given secrets
    assert read_token("0.0.0.0", file, {}) == "0123456789abcdef"
    assert read_token("0.0.0.0", None, {"COTERIE_API_TOKEN": "fedcba9876543210"}) == "fedcba9876543210"
    for short in ("", "short", "with spaces in between it", "ü" * 20):
        with raises("option-invalid", match="16"):
            read_token("127.0.0.1", None, {"COTERIE_API_TOKEN": short})
    with raises("option-invalid", match="cannot be read"):
        read_token("127.0.0.1", tmp_path / "none", {})
    ended = CliRunner().invoke(cli, ["api", str(run), "--host", "0.0.0.0"])
    assert isinstance(ended.exception, coterie.CoterieError)
    assert ended.exception.code == "option-missing"


def test_a_service_with_a_token(run: Path) -> None:
    token = "0123456789abcdef"
    with (
        calls.service(run, "--host", "0.0.0.0", env={"COTERIE_API_TOKEN": token}) as (address, _),
        httpx.Client(base_url=address, timeout=PATIENCE) as client,
    ):
        assert client.get("clusters").status_code == 401
        right = {"authorization": f"Bearer {token}"}
        assert client.get("clusters", headers=right).status_code == 200
        for scheme in ("bearer", "BEARER", "Bearer "):
            assert client.get("clusters", headers={"authorization": f"{scheme} {token}"}).status_code == 200
        for wrong in (token, f"Basic {token}", f"Bearer {token[:-1]}", f"Bearer{token}", "Bearer"):
            assert client.get("clusters", headers={"authorization": wrong}).status_code == 401
        assert client.get("clusters", headers=right | {"host": "models.example"}).status_code == 200


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["api", "nowhere"], "run-not-found"),
        (["api", "RUN", "--tls-cert", "x"], "option-conflict"),
        (["api", "RUN", "RUN"], "option-conflict"),
        (["api", "RUN", "--host", "256.256.256.256", "--token-file", "TOKEN"], "address-unavailable"),
    ],
)
def test_what_cannot_be_started(run: Path, tmp_path: Path, words: list[str], code: str) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o600)
    places = {"RUN": str(run), "TOKEN": str(tmp_path / "token")}
    ended = CliRunner().invoke(cli, [places.get(word, word) for word in words])
    assert isinstance(ended.exception, coterie.CoterieError)
    assert ended.exception.code == code


def test_the_extra_is_named_where_it_is_missing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    ended = CliRunner().invoke(cli, ["api", str(run)])
    assert "pip install 'coterie[serve]'" in str(ended.exception)
