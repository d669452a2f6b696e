"""Official downloads over http(s), which go on where they were cut.

What has come lies in a `.part` file with a note of its address, size and version beside it. A later attempt asks for
the rest only; if the server has another version, or does not serve parts, it starts over.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.download.sources import Make, Members, Progress, Room, unpack

SILENCE = 8.0  # seconds to wait for a connection, and for more of an answer before asking for the rest of it
ATTEMPTS = 5
CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """One file on a server; `members` are what is kept of it (a member of its own name: the file itself)."""

    url: str
    members: Members
    md5: str | None = None  # of the file as served

    @property
    def name(self) -> str:
        """The name of the file on the server."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.url).path).rpartition("/")[2]


@dataclass(frozen=True)
class Download:
    """The data set's own server."""

    remotes: tuple[Remote, ...]
    make: Make | None = None

    @property
    def title(self) -> str:
        """The first address."""
        more = f" and {len(self.remotes) - 1} more" if len(self.remotes) > 1 else ""
        return f"official download {self.remotes[0].url}{more}"

    def put(self, room: Room) -> None:
        """Download what is not yet there, check it and take the members out."""
        room.parts.mkdir(parents=True, exist_ok=True)
        for remote in self.remotes:
            archive = room.parts / remote.name
            if not archive.exists():
                download(remote.url, archive, room.tell)
            try:
                self.take(remote, archive, room.into)
            except CoterieError:
                archive.unlink()  # what is wrong now would be wrong again
                raise

    def take(self, remote: Remote, archive: Path, into: Path) -> None:
        """The members of a file that is here, if it is the one published."""
        if remote.md5 is not None:
            with archive.open("rb") as stream:
                found = hashlib.file_digest(stream, "md5").hexdigest()
            if found != remote.md5:
                raise CoterieError(
                    f"{archive.name} is damaged or another version: MD5 {found}, not {remote.md5}",
                    code="download-damaged",
                )
        unpack(archive, remote.members, into, self.make)


@dataclass(frozen=True)
class Note:
    """What a partial file is a part of."""

    url: str
    total: int | None
    version: str | None  # its ETag, or else its date

    @staticmethod
    def read(path: Path, url: str) -> Note | None:
        """The note beside a part of this address, if there is one that can be read."""
        try:
            note = Note(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return note if note.url == url else None


def download(url: str, target: Path, tell: Progress) -> None:
    """Fetch one file, going on from an earlier attempt; `target` appears when it is complete."""
    part, note = target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")
    for _ in range(ATTEMPTS):
        before = _size(part)
        if _attempt(url, part, note, tell):
            part.replace(target)
            note.unlink(missing_ok=True)
            return
        if _size(part) == before:
            break
    known = Note.read(note, url)
    whole = f" of {known.total:,}" if known and known.total else ""
    raise CoterieError(
        f"cut after {_size(part):,}{whole} bytes; they are kept, run it again to go on from there",
        code="download-cut-short",
    )


def _attempt(url: str, part: Path, note: Path, tell: Progress) -> bool:
    """Whether the file is now complete; if not, there may be more of it."""
    known = Note.read(note, url)
    start = _size(part) if known else 0
    if known and start and start == known.total:
        return True
    headers = {"User-Agent": "coterie"}
    if known and start:
        headers["Range"] = f"bytes={start}-"
        if known.version and not known.version.startswith("W/"):  # a weak tag may not be used for this
            headers["If-Range"] = known.version
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the file has become shorter than what is here
            return _afresh(url, part, note, tell)
        raise CoterieError(f"the server says {error.code} {error.reason}", code="download-failed") from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise CoterieError(
            f"cannot be reached: {getattr(why, 'strerror', None) or why}", code="download-failed"
        ) from None
    with answer:
        offered = Note(url, *_offered(answer))
        if answer.status == 206:
            first = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
            if not start or not first or int(first[1]) != start or offered != known:
                return _afresh(url, part, note, tell)
        else:  # the whole file, asked for or not
            start = 0
            part.unlink(missing_ok=True)
            note.write_text(json.dumps(asdict(offered)), "utf-8")
        with part.open("ab") as out:
            while chunk := _more(answer):
                out.write(chunk)
                start += len(chunk)
                tell(part.name.removesuffix(".part"), start, offered.total)
        return chunk is not None and offered.total in (None, start)


def _more(answer: http.client.HTTPResponse) -> bytes | None:
    """What has come since; None: the connection is lost, and the next attempt asks for the rest."""
    try:
        return answer.read1(CHUNK)
    except (OSError, http.client.HTTPException):
        return None


def _afresh(url: str, part: Path, note: Path, tell: Progress) -> bool:
    if not _size(part):
        raise CoterieError("the server sends a part of the file where the whole was asked for", code="download-failed")
    part.unlink()
    note.unlink(missing_ok=True)
    return _attempt(url, part, note, tell)


def _offered(answer: http.client.HTTPResponse) -> tuple[int | None, str | None]:
    """The size of the whole file and its version."""
    size = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        size = answer.headers.get("Content-Range", "").rpartition("/")[2]
    return int(size) if size.isdigit() else None, answer.headers.get("ETag") or answer.headers.get("Last-Modified")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
