"""Fetching into the cache: from a server of our own on this machine, and from package managers that are scripts."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data import download as download_module
from coterie.data.download import (
    AptDownload,
    DatasetSpec,
    Download,
    Members,
    NpmPack,
    Present,
    Remote,
    RemoteFile,
    Source,
    cache_directory,
    get,
    opened,
    where,
)

CONTENT = bytes(range(256)) * 4096  # 1 MiB
HALF = len(CONTENT) // 2


class Server(ThreadingHTTPServer):
    """Files by name; notes every request; can be told to ignore ranges, to cut an answer short, or to be slow."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"data.bin": CONTENT}
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True
        self.cuts = 0  # answers that end in the middle
        self.delay = 0.0
        self.tag = '"one"'

    def url(self, name: str = "data.bin") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what some tests are spec."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        name = self.path.strip("/").partition("?")[0]
        server.asked.append((name, wanted))
        content = server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = 0
        if wanted and server.ranges and self.headers.get("If-Range", server.tag) == server.tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", server.tag)
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            body = body[: len(body) // 2]
        for at in range(0, len(body), 1 << 16):
            self.wfile.write(body[at : at + (1 << 16)])
            self.wfile.flush()
            time.sleep(server.delay)

    def log_message(self, format: str, *args: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        made.daemon_threads = True
        made.block_on_close = False
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def spec(*sources: Source, file: RemoteFile | None = None) -> DatasetSpec:
    """A data set of one file."""
    kept = file or RemoteFile("data.bin", md5(CONTENT), len(CONTENT))
    return DatasetSpec("toy", "a toy", "bytes", 2, 1, 1, "none", "https://example.org", (kept,), sources)


def of(server: Server, name: str = "data.bin", members: Members | None = None, sum_: str | None = None) -> Download:
    return Download((Remote(server.url(name), members or ((name, "data.bin"),), sum_),))


def left_in(cache: Path) -> set[str]:
    """Everything but the lock."""
    return {path.name for path in cache.iterdir() if not path.name.endswith(".lock")}


def leave_part(cache: Path, content: bytes, **note: object) -> None:
    """As a download that was cut leaves it."""
    parts = cache / ".toy.parts"
    parts.mkdir(parents=True)
    (parts / "data.bin.part").write_bytes(content)
    (parts / "data.bin.part.json").write_text(json.dumps(note))


class TestDownload:
    def test_fresh_then_at_once(self, server: Server, cache: Path) -> None:
        told: list[tuple[str, int, int | None]] = []
        toy = spec(of(server))
        assert where(toy) is None
        found = get(toy, lambda *word: told.append(word))
        assert found == cache / "toy" == where(toy)
        assert (found / "data.bin").read_bytes() == CONTENT
        assert told[-1] == ("data.bin", len(CONTENT), len(CONTENT))
        assert get(toy) == found
        assert server.asked == [("data.bin", None)]
        assert left_in(cache) == {"toy"}

    def test_resumes_where_it_was_cut(self, server: Server, cache: Path) -> None:
        leave_part(cache, CONTENT[:HALF], url=server.url(), total=len(CONTENT), version=server.tag)
        found = get(spec(of(server)))
        assert (found / "data.bin").read_bytes() == CONTENT
        assert server.asked == [("data.bin", f"bytes={HALF}-")]
        assert left_in(cache) == {"toy"}

    def test_cut_answer_is_continued_within_one_call(self, server: Server) -> None:
        server.cuts = 2
        assert (get(spec(of(server))) / "data.bin").read_bytes() == CONTENT
        asked = [wanted for _, wanted in server.asked]
        assert asked == [None, f"bytes={HALF}-", f"bytes={HALF + HALF // 2}-"]

    def test_complete_part_needs_no_request(self, server: Server, cache: Path) -> None:
        leave_part(cache, CONTENT, url=server.url(), total=len(CONTENT), version=server.tag)
        assert (get(spec(of(server))) / "data.bin").read_bytes() == CONTENT
        assert server.asked == []

    @pytest.mark.parametrize("version", ['"another"', None])
    def test_part_of_another_version_is_not_continued(self, server: Server, cache: Path, version: str | None) -> None:
        leave_part(cache, b"x" * HALF, url=server.url(), total=len(CONTENT) - (version is None), version=version)
        assert (get(spec(of(server))) / "data.bin").read_bytes() == CONTENT
        # A server that knows the version asked for sends the new one at once; otherwise we ask again.
        assert len(server.asked) == (2 if version is None else 1)

    def test_part_of_another_address_or_without_a_note_is_not_continued(self, server: Server, cache: Path) -> None:
        leave_part(cache, b"x" * HALF, url="http://elsewhere/data.bin", total=len(CONTENT), version=server.tag)
        assert (get(spec(of(server))) / "data.bin").read_bytes() == CONTENT
        assert server.asked == [("data.bin", None)]

    def test_server_without_ranges_starts_over(self, server: Server, cache: Path) -> None:
        server.ranges = False
        leave_part(cache, b"x" * HALF, url=server.url(), total=len(CONTENT), version=server.tag)
        assert (get(spec(of(server))) / "data.bin").read_bytes() == CONTENT
        assert len(server.asked) == 1

    def test_always_cut_keeps_what_came(self, server: Server, cache: Path) -> None:
        server.cuts = 99
        with raises("download-failed"):
            get(spec(of(server)))
        assert left_in(cache) == {".toy.parts"}
        server.cuts, server.asked = 0, []
        assert (get(spec(of(server))) / "data.bin").read_bytes() == CONTENT
        assert server.asked[0][1] is not None

    def test_wrong_checksum_is_refused_and_not_kept(self, server: Server, cache: Path) -> None:
        server.files["data.bin"] = CONTENT[:-1] + b"?"
        with raises("download-failed", match=f"data.bin is damaged or another file: MD5 .*, not {md5(CONTENT)}"):
            get(spec(of(server)))
        assert left_in(cache) == set()

    def test_wrong_size_is_told(self, server: Server) -> None:
        server.files["data.bin"] = CONTENT[:-1]
        with raises("download-failed"):
            get(spec(of(server)))

    def test_wrong_archive_checksum_tries_the_next_source(self, server: Server, cache: Path) -> None:
        first, second = of(server, sum_="0" * 32), of(server)
        assert (get(spec(first, second)) / "data.bin").read_bytes() == CONTENT
        assert len(server.asked) == 2  # the first file was thrown away
        assert left_in(cache) == {"toy"}

    def test_404_tries_the_next_source(self, server: Server) -> None:
        assert (get(spec(of(server, "nothing"), of(server))) / "data.bin").read_bytes() == CONTENT
        assert [name for name, _ in server.asked] == ["nothing", "data.bin"]

    def test_all_reasons_in_one_error(self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        toy = spec(
            Present(str(tmp_path / "no"), ("data.bin",)),
            of(server, "nothing"),
            Download((Remote("http://127.0.0.1:9/data.bin", (("data.bin", "data.bin"),)),)),
            Download((Remote("http://name.invalid/data.bin", (("data.bin", "data.bin"),)),)),
            NpmPack("toy@1.0.0", (("package/data.bin", "data.bin"),)),
            AptDownload("toy", (("data.bin", "data.bin"),)),
        )
        with raises("download-failed") as caught:
            get(toy)
        said = str(caught.value)
        for reason in (
            "no data.bin or data.bin.gz there",
            "the server says 404 Not Found",
            "Connection refused",
            "http://name.invalid/data.bin: cannot be reached",
            "'npm' is not installed",
            "'apt-get' is not installed",
            f"By hand: download {server.url('nothing')}",
            f"into {tmp_path / 'cache' / 'toy'}",
        ):
            assert reason in said
        assert said.count("\n  - ") == 6

    def test_a_silent_server_is_given_up(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(download_module, "SILENCE", 0.2)
        server.delay = 2.0
        with raises("download-failed"):
            get(spec(of(server)))

    def test_interrupted_by_the_user(self, server: Server, cache: Path) -> None:
        def interrupt(what: str, done: int, total: int | None) -> None:
            if done > HALF:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            get(spec(of(server)), interrupt)
        assert left_in(cache) == {".toy.parts"}
        assert (get(spec(of(server))) / "data.bin").read_bytes() == CONTENT
        assert server.asked[1][1] is not None


class TestArchives:
    def zipped(self, name: str, content: bytes) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr(name, content)
            archive.writestr("../../evil", b"no")
        return made.getvalue()

    def tarred(self) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name, content in (("../evil", b"no"), ("folder/data.bin", CONTENT)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return made.getvalue()

    def test_gz(self, server: Server) -> None:
        server.files["data.bin.gz"] = gzip.compress(CONTENT)
        made = get(spec(of(server, "data.bin.gz")))
        assert (made / "data.bin").read_bytes() == CONTENT

    def test_zip_and_zip_in_zip_give_the_named_member_only(self, server: Server, cache: Path) -> None:
        server.files["a.zip"] = self.zipped("folder/data.bin.gz", gzip.compress(CONTENT))
        server.files["b.zip"] = self.zipped("a.zip", server.files["a.zip"])
        for name in ("a.zip", "b.zip"):
            toy = replace(spec(of(server, name, (("folder/data.bin.gz", "data.bin"),))), name=name)
            assert {p.name for p in get(toy).iterdir()} == {"data.bin", ".checked.json"}
        assert left_in(cache) == {"a.zip", "b.zip"}
        assert not list(cache.parent.glob("**/*evil*"))

    def test_tar(self, server: Server, cache: Path) -> None:
        server.files["a.tar.gz"] = self.tarred()
        found = get(spec(of(server, "a.tar.gz", (("folder/data.bin", "data.bin"),))))
        assert {p.name for p in found.iterdir()} == {"data.bin", ".checked.json"}
        assert not list(cache.parent.glob("**/*evil*"))

    @pytest.mark.parametrize("name", ["data.bin.gz", "a.zip", "a.tar.gz"])
    @pytest.mark.parametrize("damage", ["cut", "changed", "other"])
    def test_damaged(self, server: Server, cache: Path, name: str, damage: str) -> None:
        makes = {"data.bin.gz": gzip.compress(CONTENT), "a.zip": self.zipped("data.bin", CONTENT)}
        whole = bytearray(makes.get(name) or self.tarred())
        if damage == "cut":
            del whole[len(whole) // 2 :]
        elif damage == "changed":
            whole[len(whole) // 3 : len(whole) // 3 + 64] = b"\xff" * 64
        server.files[name] = b"<html>no such page</html>" if damage == "other" else bytes(whole)
        member = {"data.bin.gz": name, "a.zip": "data.bin", "a.tar.gz": "folder/data.bin"}[name]
        with raises("download-failed"):
            get(spec(of(server, name, ((member, "data.bin"),))))
        assert left_in(cache) <= {".toy.parts"}
        assert not list(cache.glob(".toy.parts/*"))

    def test_missing_member(self, server: Server) -> None:
        server.files["a.tar.gz"] = self.tarred()
        with raises("download-failed", match=r"a.tar.gz has no member 'nothing'"):
            get(spec(of(server, "a.tar.gz", (("nothing", "data.bin"),))))


class TestCache:
    def test_where_it_is(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert cache_directory() == tmp_path / "cache"
        monkeypatch.delenv("COTERIE_DATA")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        assert cache_directory().parts[-2:] == ("coterie", "data")

    @pytest.mark.parametrize("damage", [b"short", CONTENT[:-1] + b"?", None])
    def test_damage_is_noticed_and_mended(
        self, server: Server, caplog: pytest.LogCaptureFixture, damage: bytes | None
    ) -> None:
        toy = spec(of(server))
        file = get(toy) / "data.bin"
        file.unlink() if damage is None else file.write_bytes(damage)
        assert where(toy) is None
        with caplog.at_level(logging.WARNING):
            get(toy)
        assert "fetching it again" in caplog.text
        assert file.read_bytes() == CONTENT
        assert len(server.asked) == 2

    def test_damage_without_a_source_is_refused(self, server: Server) -> None:
        file = get(spec(of(server))) / "data.bin"
        file.write_bytes(CONTENT[:-1] + b"?")
        with raises("download-failed"):
            get(spec())
        assert file.exists()

    def test_file_without_published_checksum_is_held_to_its_own(self, server: Server) -> None:
        toy = spec(of(server), file=RemoteFile("data.bin"))
        file = get(toy) / "data.bin"
        file.write_bytes(CONTENT[:-1] + b"?")
        assert where(toy) is None
        get(toy)
        assert file.read_bytes() == CONTENT

    def test_touched_or_copied_files_are_checked_once_more(self, server: Server) -> None:
        toy = spec(of(server))
        found = get(toy)
        os.utime(found / "data.bin", (1, 1))
        (found / ".checked.json").write_text("not json")
        assert get(toy) == found
        assert json.loads((found / ".checked.json").read_text())["data.bin"]["md5"] == md5(CONTENT)
        assert len(server.asked) == 1

    @pytest.mark.parametrize("how", ["plain", "gz", "archive"])
    def test_put_there_by_hand(self, server: Server, cache: Path, how: str) -> None:
        there = cache / "toy"
        there.mkdir(parents=True)
        (there / "notes.txt").write_text("mine")
        name = {"plain": "data.bin", "gz": "data.bin.gz", "archive": "b.gz"}[how]
        (there / name).write_bytes(CONTENT if how == "plain" else gzip.compress(CONTENT))
        toy = spec(of(server, "b.gz"))
        assert (get(toy) / "data.bin").read_bytes() == CONTENT
        assert (there / "notes.txt").exists()
        assert server.asked == []

    def test_cache_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "file" / "cache"))
        with raises("disk-write", match="set COTERIE_DATA to a directory that can be written"):
            get(spec())

    def test_data_path(self, server: Server, tmp_path: Path) -> None:
        toy = spec(of(server))
        (tmp_path / "my.bin").write_bytes(CONTENT)
        with opened(toy, str(tmp_path / "my.bin")) as files:
            assert files == {"data.bin": tmp_path / "my.bin"}
        (tmp_path / "data.bin.gz").write_bytes(gzip.compress(CONTENT))
        with opened(toy, str(tmp_path)) as files:
            assert files["data.bin"].read_bytes() == CONTENT
        (tmp_path / "my.bin").write_bytes(CONTENT[:5])
        for path in ("my.bin", "nowhere"):
            with (
                pytest.raises(CoterieError, match=r"data.path: .*leave data.path out"),
                opened(toy, str(tmp_path / path)),
            ):
                pass
        assert server.asked == []


ELSEWHERE = """
import sys
from coterie.data.download import Download, Remote
from coterie.data.download import DatasetSpec, RemoteFile, get
url, md5 = sys.argv[1:]
source = Download((Remote(url, (("data.bin", "data.bin"),)),))
get(DatasetSpec("toy", "", "", 2, 1, 1, "", "", (RemoteFile("data.bin", md5),), (source,)))
assert "torch" not in sys.modules
"""


class TestProcesses:
    def start(self, server: Server) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", ELSEWHERE, server.url(), md5(CONTENT)]
        return subprocess.Popen(command, stderr=subprocess.PIPE)

    def test_two_at_once_fetch_once(self, server: Server, cache: Path) -> None:
        server.delay = 0.05
        both = [self.start(server), self.start(server)]
        assert [process.communicate(timeout=60)[1] for process in both] == [b"", b""]
        assert [process.returncode for process in both] == [0, 0]
        assert server.asked == [("data.bin", None)]
        assert left_in(cache) == {"toy"}

    def test_killed_in_the_middle(self, server: Server, cache: Path) -> None:
        server.delay = 0.2
        part = cache / ".toy.parts" / "data.bin.part"
        process = self.start(server)
        until = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        toy = spec(of(server))
        assert where(toy) is None
        assert not (cache / "toy").exists()
        assert list(cache.glob(".toy-*.tmp"))  # the killed process could not clean up
        server.delay = 0.0
        assert (get(toy) / "data.bin").read_bytes() == CONTENT
        assert server.asked[-1][1] is not None  # it went on, it did not start over
        assert left_in(cache) == {"toy"}


def program(folder: Path, name: str, script: str) -> None:
    """An executable of this name."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!{sys.executable}\n{script}")
    (folder / name).chmod(0o755)


NPM = """
import io, sys, tarfile
assert "--ignore-scripts" in sys.argv and sys.argv[-1] == "toy@1.0.0"
folder = sys.argv[sys.argv.index("--pack-destination") + 1]
with tarfile.open(folder + "/toy-1.0.0.tgz", "w:gz") as archive:
    member = tarfile.TarInfo("package/data.bin")
    content = bytes(range(256)) * 4096
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
"""
NPM_FAILS = r"""
import sys
sys.exit("npm error code ETARGET\nnpm error notarget No matching version.\nnpm error A complete log is in x")
"""
DPKG = """
import gzip, pathlib, sys
folder = pathlib.Path(sys.argv[3], "usr/share")
folder.mkdir(parents=True)
(folder / "data.bin.gz").write_bytes(gzip.compress(bytes(range(256)) * 4096))
"""


class TestPackageManagers:
    npm = NpmPack("toy@1.0.0", (("package/data.bin", "data.bin"),))
    apt = AptDownload("toy", (("usr/share/data.bin.gz", "data.bin"),))

    @pytest.fixture(autouse=True)
    def programs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        return tmp_path / "bin"

    def test_npm(self, programs: Path, cache: Path) -> None:
        program(programs, "npm", NPM)
        assert (get(spec(self.npm)) / "data.bin").read_bytes() == CONTENT
        assert left_in(cache) == {"toy"}

    def test_npm_made_into_something_else(self, programs: Path, cache: Path) -> None:
        program(programs, "npm", NPM)

        def double(raw: Path, into: Path) -> None:
            (into / "double.bin").write_bytes((raw / "data.bin").read_bytes() * 2)

        toy = spec(replace(self.npm, make=double), file=RemoteFile("double.bin", md5(CONTENT * 2)))
        assert {p.name for p in get(toy).iterdir()} == {"double.bin", ".checked.json"}

    def test_npm_says_why(self, programs: Path) -> None:
        program(programs, "npm", NPM_FAILS)
        with raises("download-failed", match="'npm pack' failed: notarget No matching version"):
            get(spec(self.npm))

    def test_apt(self, programs: Path, cache: Path) -> None:
        program(programs, "apt-get", "open('toy_1_all.deb', 'w').close()")
        program(programs, "dpkg-deb", DPKG)
        assert (get(spec(self.apt)) / "data.bin").read_bytes() == CONTENT
        assert left_in(cache) == {"toy"}

    def test_apt_says_why(self, programs: Path) -> None:
        program(programs, "apt-get", "import sys; sys.exit('W: a warning\\nE: Unable to locate package toy')")
        with raises("download-failed", match="'apt-get download' failed: E: Unable to locate package toy"):
            get(spec(self.apt))

    def test_a_client_that_brings_nothing(self, programs: Path) -> None:
        program(programs, "apt-get", "")
        with raises("download-failed"):
            get(spec(self.apt))

    def test_installed_files_need_no_client(self, tmp_path: Path) -> None:
        (tmp_path / "data.bin.gz").write_bytes(gzip.compress(CONTENT))
        toy = spec(Present(str(tmp_path), ("data.bin",)))
        assert (get(toy) / "data.bin").read_bytes() == CONTENT
