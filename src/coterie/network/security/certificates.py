"""Certificates for the server and a key for every client, in one directory. No private key is replaced unasked.

    DIR/ca.crt  ca.key  server.pem  server.key      stay with the server; ca.key may be kept somewhere safer
    DIR/clients/NAME/NAME  NAME.pub  ca.crt  valid-until    is what client NAME is given, and all it is given

The server proves itself by a certificate that ca.crt vouches for, a client by its key: the server has its public half.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.errors import CoterieError, suggest
from coterie.core.files import writing
from coterie.network.security import issuing
from coterie.network.security.checked_names import file_name, host_name
from coterie.network.security.key_files import UNTIL, check_private, has_expired, valid_until

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

ALWAYS = ("localhost", "127.0.0.1", "::1")
DAYS = 825
CA_DAYS = 3650
SOON = timedelta(days=30)


@dataclass(frozen=True)
class ServerFiles:
    """What a server needs of DIR: its certificate and key, the CA that clients check it by, and who may come."""

    ca: Path
    certificate: Path
    key: Path
    clients: tuple[tuple[str, Path], ...]  # name and public key, by name; without those whose key has expired


@dataclass(frozen=True)
class ClientFiles:
    """What a client was given."""

    name: str
    key: Path
    public: Path
    ca: Path


@dataclass(frozen=True)
class Standing:
    """What is in DIR after a call, and what this call has made."""

    directory: Path
    hosts: tuple[str, ...]
    until: datetime  # of the server's certificate
    ca_until: datetime
    issued: bool  # the server's certificate is new
    made: tuple[str, ...]  # clients whose key is new
    clients: tuple[tuple[str, Path], ...]  # name and public key, by name
    warnings: tuple[str, ...]


def server_files(directory: Path) -> ServerFiles:
    """Finds them, or says what is missing. Clients' private keys may have been taken away: their .pub is enough."""
    clients = tuple((name, public) for name, public in _clients_of(directory) if not has_expired(public))
    files = ServerFiles(directory / "ca.crt", directory / "server.pem", directory / "server.key", clients)
    for file in (files.ca, files.certificate, files.key):
        if not file.is_file():
            raise CoterieError(
                f"{file}: not there; make certificates with: coterie certs {directory} --host NAME",
                code="certificate-missing",
            )
    check_private(files.key)
    return files


def client_files(directory: Path) -> ClientFiles:
    """The one key in a directory that was handed over, whatever the directory is called now."""
    publics = sorted(directory.glob("*.pub"))
    if len(publics) != 1:
        found = "no key" if not publics else f"{len(publics)} keys"
        raise CoterieError(
            f"{directory}: {found} there; name the directory that the server handed over (clients/NAME)",
            code="certificate-missing",
        )
    files = ClientFiles(publics[0].stem, publics[0].with_suffix(""), publics[0], directory / "ca.crt")
    for file in (files.key, files.ca):
        if not file.is_file():
            raise CoterieError(
                f"{file}: not there; ask for the whole directory again (NAME, NAME.pub and ca.crt)",
                code="certificate-missing",
            )
    check_private(files.key)
    if has_expired(files.public):
        raise CoterieError(
            f"{files.key}: this key has expired on {valid_until(files.public):%Y-%m-%d}; ask the server's operator for "
            "a new one",
            code="certificate-expired",
        )
    return files


def fingerprint(public: Path) -> str:
    """Of a public key, as `ssh-keygen -lf` prints it: to compare over the telephone."""
    words = public.read_text(encoding="utf-8").split()
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (IndexError, ValueError):
        raise CoterieError(f"{public}: not an OpenSSH public key", code="certificate-invalid") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def provide(
    directory: Path,
    hosts: Sequence[str] = (),
    clients: Sequence[str] = (),
    *,
    renew: bool = False,
    days: int = DAYS,
    now: datetime | None = None,
) -> Standing:
    """Make what is missing: the CA and the server's certificate at first, later further hosts and clients.

    With `renew` the server's certificate is issued again (for the same key), and clients named get a new key. What is
    new is valid for so many days.
    """
    issuing.need_cryptography()
    now = now or datetime.now(UTC)
    wanted, names = [host_name(host) for host in hosts], list(dict.fromkeys(file_name(name) for name in clients))
    for name in names:
        if not renew and (directory / "clients" / name).exists():
            raise CoterieError(
                f"--client {name}: has a key in {directory} already; leave it out, or replace the key with --renew",
                code="certificate-exists",
            )
    with _staging(directory) as stage:
        ca = _authority(directory, stage, now)
        issued = _server(directory, stage, ca, wanted, renew, now, now + timedelta(days=days))
        for name in names:
            _client(stage, name, ca, now + timedelta(days=days))
        _move(stage, directory)
    certificate = _certificate(directory / "server.pem")
    return Standing(
        directory,
        issuing.hosts_of(certificate),
        certificate.not_valid_after_utc,
        ca.not_valid_after_utc,
        issued,
        tuple(names),
        _clients_of(directory),
        tuple(_warnings(directory, certificate, ca, now)),
    )


def revoke(directory: Path, names: Sequence[str]) -> list[Path]:
    """Take the keys of these clients from those that the server knows; returns where they are kept.

    A server that is running reads the keys again before every round.
    """
    known = dict(_clients_of(directory))
    for name in names:
        if name not in known:
            raise CoterieError(
                f"--revoke {name}: has no key in {directory}.{suggest(name, known)}", code="certificate-missing"
            )
    kept = []
    with writing(directory):
        (directory / "revoked").mkdir(mode=0o700, exist_ok=True)
        for name in dict.fromkeys(names):
            number = 1
            while (place := directory / "revoked" / f"{name}-{number}").exists():
                number += 1
            kept.append(known[name].parent.rename(place))
    return kept


def _authority(directory: Path, stage: Path, now: datetime) -> x509.Certificate:
    """The CA as it is, or a new one. Where only the certificate was lost, the key makes one that is as good."""
    if (directory / "ca.crt").exists():
        return _certificate(directory / "ca.crt")
    if (directory / "server.pem").exists() and not (directory / "ca.key").exists():
        raise CoterieError(
            f"{directory}: has a server.pem but no ca.crt; put ca.crt back, or choose a new directory",
            code="certificate-missing",
        )
    ca = issuing.authority(_key(directory, stage, "ca.key"), now, now + timedelta(days=CA_DAYS))
    _write(stage / "ca.crt", issuing.certificate_pem(ca), 0o644)
    return ca


def _server(
    directory: Path, stage: Path, ca: x509.Certificate, wanted: list[str], renew: bool, now: datetime, until: datetime
) -> bool:
    """Issue the server's certificate where there is none, where a host is new, or where asked to."""
    file = directory / "server.pem"
    held = issuing.hosts_of(_certificate(file)) if file.exists() else ()
    hosts = list(dict.fromkeys([*held, *wanted, *ALWAYS]))
    if set(hosts) == set(held) and (directory / "server.key").exists() and not renew:
        return False
    if ca.not_valid_after_utc <= now:
        raise CoterieError(
            f"{directory / 'ca.crt'}: has expired; make a new directory and hand out its clients/ anew",
            code="certificate-expired",
        )
    if (directory / "ca.crt").exists() and not (directory / "ca.key").exists():
        raise CoterieError(
            f"{directory / 'ca.key'}: not there; put it back to issue a certificate for the server",
            code="certificate-missing",
        )
    ca_key = _key(directory, stage, "ca.key")
    if ca_key.public_key() != ca.public_key():
        raise CoterieError(
            f"{directory / 'ca.key'}: is not the key of ca.crt; put the right one back", code="certificate-invalid"
        )
    key = _key(directory, stage, "server.key")
    issued = issuing.server_certificate(ca, ca_key, key.public_key(), hosts, now, until)
    _write(stage / "server.pem", issuing.certificate_pem(issued), 0o644)
    return True


def _client(stage: Path, name: str, ca: x509.Certificate, until: datetime) -> None:
    """All that the client is handed: its key, until when it is valid, and the CA to know the server by."""
    private, public = issuing.ssh_key_pair()
    home = stage / "clients" / name
    home.mkdir(mode=0o700, parents=True)
    _write(home / name, private, 0o600)
    _write(home / f"{name}.pub", public + f" {name}\n".encode(), 0o644)
    _write(home / "ca.crt", issuing.certificate_pem(ca), 0o644)
    _write(home / UNTIL, f"{until.isoformat(timespec='seconds')}\n".encode(), 0o644)


def _key(directory: Path, stage: Path, file: str) -> ec.EllipticCurvePrivateKey:
    """The key there is, or a new one."""
    held = next((home / file for home in (directory, stage) if (home / file).exists()), None)
    if held is None:
        made = issuing.new_key()
        _write(stage / file, issuing.key_pem(made), 0o600)
        return made
    try:
        return issuing.read_key(held.read_bytes())
    except ValueError:
        raise CoterieError(
            f"{held}: not a key that coterie certs has made; let it make a directory of its own",
            code="certificate-invalid",
        ) from None


def _certificate(file: Path) -> x509.Certificate:
    try:
        return issuing.read_certificate(file.read_bytes())
    except ValueError:
        raise CoterieError(
            f"{file}: not a certificate; put the right file back, or choose a new directory", code="certificate-invalid"
        ) from None


def _clients_of(directory: Path) -> tuple[tuple[str, Path], ...]:
    publics = sorted((directory / "clients").glob("*/*.pub"))
    return tuple((public.stem, public) for public in publics if public.stem == public.parent.name)


def _warnings(directory: Path, certificate: x509.Certificate, ca: x509.Certificate, now: datetime) -> Iterator[str]:
    for file, until, cure in (
        ("server.pem", certificate.not_valid_after_utc, f"coterie certs {directory} --renew"),
        ("ca.crt", ca.not_valid_after_utc, "make a new directory and hand out its clients/ anew"),
        *(
            (f"clients/{name}", valid_until(public), f"coterie certs {directory} --renew --client {name}")
            for name, public in _clients_of(directory)
        ),
    ):
        if until is not None and until <= now + SOON:
            verb = "has expired" if until <= now else "expires"
            yield f"{directory / file} {verb} on {until:%Y-%m-%d}; {cure}"


def _write(file: Path, content: bytes, mode: int) -> None:
    """Private from the first moment: the mode is given when the file is made, and a umask can only narrow it."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A place in the same directory, for this user only, to write everything before anything is moved."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".making-", dir=directory))
    except OSError as error:
        raise CoterieError(
            f"{directory}: cannot be written ({error.strerror}); choose another directory", code="disk-write"
        ) from None
    try:
        yield stage
    except OSError as error:
        raise CoterieError(
            f"{error.filename or directory}: {error.strerror}; nothing half-written is left", code="disk-write"
        ) from None
    finally:
        shutil.rmtree(stage)


def _move(stage: Path, directory: Path) -> None:
    """Keys before certificates: what an interruption leaves out is completed by the next call."""
    for file in ("ca.key", "ca.crt", "server.key", "server.pem"):
        if (stage / file).exists():
            (stage / file).replace(directory / file)
    for made in sorted((stage / "clients").glob("*")):
        (directory / "clients").mkdir(mode=0o700, exist_ok=True)
        place, old = directory / "clients" / made.name, stage / f"old-{made.name}"
        if place.exists():
            place.rename(old)
        try:
            made.rename(place)
        except BaseException:
            if old.exists():
                old.rename(place)
            raise
