"""Certificates for the server and a key for every client, in one directory. No private key is replaced unasked.

    DIR/ca.crt  ca.key  server.pem  server.key      stay with the server; ca.key may be kept somewhere safer
    DIR/clients/NAME/NAME  NAME.pub  ca.crt  valid-until    is what client NAME is given, and all it is given

The server proves itself by a certificate that ca.crt vouches for, a client by its key: the server has its public half.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.errors import CoterieError, suggest
from coterie.core.files import writing

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
    need_cryptography()
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
        hosts_of(certificate),
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
    ca = authority(_key(directory, stage, "ca.key"), now, now + timedelta(days=CA_DAYS))
    _write(stage / "ca.crt", certificate_pem(ca), 0o644)
    return ca


def _server(
    directory: Path, stage: Path, ca: x509.Certificate, wanted: list[str], renew: bool, now: datetime, until: datetime
) -> bool:
    """Issue the server's certificate where there is none, where a host is new, or where asked to."""
    file = directory / "server.pem"
    held = hosts_of(_certificate(file)) if file.exists() else ()
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
    issued = server_certificate(ca, ca_key, key.public_key(), hosts, now, until)
    _write(stage / "server.pem", certificate_pem(issued), 0o644)
    return True


def _client(stage: Path, name: str, ca: x509.Certificate, until: datetime) -> None:
    """All that the client is handed: its key, until when it is valid, and the CA to know the server by."""
    private, public = ssh_key_pair()
    home = stage / "clients" / name
    home.mkdir(mode=0o700, parents=True)
    _write(home / name, private, 0o600)
    _write(home / f"{name}.pub", public + f" {name}\n".encode(), 0o644)
    _write(home / "ca.crt", certificate_pem(ca), 0o644)
    _write(home / UNTIL, f"{until.isoformat(timespec='seconds')}\n".encode(), 0o644)


def _key(directory: Path, stage: Path, file: str) -> ec.EllipticCurvePrivateKey:
    """The key there is, or a new one."""
    held = next((home / file for home in (directory, stage) if (home / file).exists()), None)
    if held is None:
        made = new_key()
        _write(stage / file, key_pem(made), 0o600)
        return made
    try:
        return read_key(held.read_bytes())
    except ValueError:
        raise CoterieError(
            f"{held}: not a key that coterie certs has made; let it make a directory of its own",
            code="certificate-invalid",
        ) from None


def _certificate(file: Path) -> x509.Certificate:
    try:
        return read_certificate(file.read_bytes())
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


SKEW = timedelta(hours=1)  # clients whose clock is a little behind still accept a new certificate


def need_cryptography() -> None:
    """Says which extra brings it."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise CoterieError(
            "coterie certs needs cryptography: pip install 'coterie[flower]'", code="extra-missing"
        ) from None


def new_key() -> ec.EllipticCurvePrivateKey:
    """For a CA or a server: P-256, small and fast, and accepted everywhere."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """As PKCS #8 without a password: what keeps it safe is the file's mode."""
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Back again; ValueError for anything else."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = form.load_pem_private_key(pem, None)
    except TypeError:
        raise ValueError("has a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key")
    return key


def ssh_key_pair() -> tuple[bytes, bytes]:
    """A private key and its public half, as `ssh-keygen -t ecdsa -b 384 -N ''` writes them (without comment)."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    return private, key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)


def authority(key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime) -> x509.Certificate:
    """A CA that vouches for servers only. The same key gives the same name: one can stand in for the other."""
    from cryptography import x509

    mark = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = _common_name(f"Coterie CA {mark.digest.hex()[:8]}")
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(signs_certificates=True), True),
        (mark, False),
    ]
    return _sign(key, name, name, key.public_key(), extensions, now, until)


def server_certificate(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    public: ec.EllipticCurvePublicKey,
    hosts: Sequence[str],
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    """For a server at any of these hosts, never longer than the CA itself lasts."""
    from cryptography import x509

    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
    ]
    until = min(until, ca.not_valid_after_utc)
    return _sign(ca_key, ca.subject, _common_name("Coterie server"), public, extensions, now, until)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """As everyone reads it."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def read_certificate(pem: bytes) -> x509.Certificate:
    """Back again; ValueError for anything else."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem)


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses it is for."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))


def _sign(
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - SKEW).not_valid_after(until)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def public_pem(public: Path) -> str:
    """An OpenSSH public key as PEM, which is how a SuperLink names it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    try:
        key = load_ssh_public_key(public.read_bytes())
    except (ValueError, UnsupportedAlgorithm, OSError) as error:
        raise CoterieError(f"{public}: not an OpenSSH public key ({error})", code="certificate-invalid") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode().strip()


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"


def host_name(host: str) -> str:
    """As a certificate names it: an IP address in its usual form, or a host name in lower case."""
    try:
        return str(ipaddress.IPv6Address(host) if ":" in host and "%" not in host else ipaddress.IPv4Address(host))
    except ValueError:
        pass
    labels = host.lower().split(".")
    if len(host) > 253 or labels[-1].isdigit() or not all(re.fullmatch(LABEL, label) for label in labels):
        raise CoterieError(
            f"--host {host}: write a host name or an IP address, without port, like fl.example.org",
            code="option-invalid",
        )
    return host.lower()


def file_name(name: str) -> str:
    """The name of a client, which is also that of its files."""
    if not re.fullmatch(NAME, name) or name.endswith(".pub") or name == "ca.crt":
        raise CoterieError(
            f"--client {name}: write at most 64 letters, digits, '.', '_' or '-', a letter or digit first, "
            "not ca.crt and not ending in .pub",
            code="option-invalid",
        )
    return name


UNTIL = "valid-until"  # beside a client's key; without it (made by an earlier version) a key does not expire
OTHERS = stat.S_IRWXO | stat.S_IWGRP  # a group may read: that is how containers are given their keys


def check_private(secret: Path, what: str = "a private key") -> Path:
    """Refuse a secret that others can read or replace; returns it."""
    if os.name != "nt" and stat.S_IMODE(secret.stat().st_mode) & OTHERS:
        raise CoterieError(
            f"{secret}: {what} that others can read or replace is not used; chmod 600 {secret}, and make a new one if "
            "somebody may have read it",
            code="file-exposed",
        )
    return secret


def check_not_shared(directory: Path) -> None:
    """Refuse a directory that everybody can write to: who replaces a checkpoint or members.json replaces the models."""
    if os.name != "nt" and directory.is_dir() and directory.stat().st_mode & stat.S_IWOTH:
        raise CoterieError(
            f"{directory}: everybody on this machine can write to it; chmod o-w {directory}, or choose another place",
            code="file-exposed",
        )


@contextmanager
def private_files() -> Iterator[None]:
    """What this process creates meanwhile is not for others: a narrower umask of the user stays as it is."""
    before = os.umask(0o077)
    os.umask(before | 0o027)
    try:
        yield
    finally:
        os.umask(before)


def valid_until(public: Path) -> datetime | None:
    """The end of a client's key; None where it has none."""
    file = public.parent / UNTIL
    try:
        found = datetime.fromisoformat(file.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CoterieError(
            f"{file}: does not say until when the key is valid ({error}); write a time such as "
            "2028-01-31T00:00:00+00:00, or make a new key",
            code="certificate-invalid",
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def has_expired(public: Path, now: datetime | None = None) -> bool:
    """Whether a client's key is over."""
    until = valid_until(public)
    return until is not None and until <= (now or datetime.now(UTC))
