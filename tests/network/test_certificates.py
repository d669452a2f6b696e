"""Certificates and keys: who gets what, who is believed, and that no key is lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.network import certificates
from coterie.tools.cli.certs import certs as command

pytest.importorskip("cryptography", reason="comes with coterie[flower]")

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A server at fl.example.org and 10.0.0.5 with two clients."""
    certificates.provide(tmp_path / "certs", ["fl.example.org", "10.0.0.5"], ["a", "b"])
    return tmp_path / "certs"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below, hidden ones too."""
    return {str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*") if f.is_file()}


def handshake(server: Path, ca: Path, host: str) -> str:
    """Over a real socket on loopback; what the client reads after it, or its complaint."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server / "server.pem", server / "server.key")
    theirs = ssl.create_default_context(cafile=str(ca))
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            connection.settimeout(20)
            try:
                with ours.wrap_socket(connection, server_side=True) as secure:
                    secure.sendall(b"welcome")
            except OSError:
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=20) as plain,
                theirs.wrap_socket(plain, server_hostname=host) as secure,
            ):
                return secure.recv(7).decode()
        except ssl.SSLCertVerificationError as error:
            return str(error.verify_message)
        finally:
            thread.join()


def test_layout_and_nobody_else_reads_a_private_key(tmp_path: Path, open_umask: None) -> None:
    where = tmp_path / "new" / "certs"
    standing = certificates.provide(where, ["fl.example.org"], ["a", "b"])
    assert sorted(contents(where)) == [
        *("ca.crt", "ca.key", "clients/a/a", "clients/a/a.pub", "clients/a/ca.crt", "clients/a/valid-until"),
        *("clients/b/b", "clients/b/b.pub", "clients/b/ca.crt", "clients/b/valid-until", "server.key", "server.pem"),
    ]
    for key in ("ca.key", "server.key", "clients/a/a", "clients/b/b"):
        assert stat.S_IMODE((where / key).stat().st_mode) == 0o600
    for directory in (where, where / "clients", where / "clients" / "a"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert standing.made == ("a", "b")
    assert standing.issued
    assert standing.warnings == ()


def test_private_keys_are_private_from_the_first_byte(
    tmp_path: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {}
    plain = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        descriptor = plain(path, flags, mode, **more)
        modes[Path(path).name] = stat.S_IMODE(os.fstat(descriptor).st_mode)
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    certificates.provide(tmp_path / "certs", clients=["a"])
    assert {modes[name] for name in ("ca.key", "server.key", "a")} == {0o600}


def test_no_two_keys_are_alike_and_clients_share_only_the_ca(made: Path) -> None:
    files = contents(made)
    assert len({files[f] for f in ("ca.key", "server.key", "clients/a/a", "clients/b/b")}) == 4
    assert files["clients/a/ca.crt"] == files["clients/b/ca.crt"] == files["ca.crt"]


@pytest.mark.parametrize("host", ["fl.example.org", "FL.example.org", "10.0.0.5", "localhost", "127.0.0.1", "::1"])
def test_a_client_believes_the_server_under_every_host(made: Path, host: str) -> None:
    assert handshake(made, made / "clients" / "a" / "ca.crt", host) == "welcome"


def test_another_ca_or_another_host_is_not_believed(made: Path, tmp_path: Path) -> None:
    certificates.provide(tmp_path / "other", ["fl.example.org"])
    assert "self-signed" in (said := handshake(made, tmp_path / "other" / "ca.crt", "localhost")) or "unable" in said
    assert "mismatch" in handshake(made, made / "ca.crt", "fl.example.com").lower()
    assert "mismatch" in handshake(made, made / "ca.crt", "10.0.0.6").lower()


def test_the_servers_key_cannot_vouch_for_others(made: Path) -> None:
    from cryptography import x509

    def rights(file: str) -> x509.BasicConstraints:
        certificate = x509.load_pem_x509_certificate((made / file).read_bytes())
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value

    assert rights("ca.crt") == x509.BasicConstraints(ca=True, path_length=0)
    assert rights("server.pem") == x509.BasicConstraints(ca=False, path_length=None)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_openssl_agrees(made: Path) -> None:
    words = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "fl.example.org"]
    said = subprocess.run([*words, "-CAfile", made / "ca.crt", made / "server.pem"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen on this machine")
def test_ssh_keygen_reads_the_keys(made: Path) -> None:
    files = certificates.client_files(made / "clients" / "a")
    shown = subprocess.run(["ssh-keygen", "-lf", files.public], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["384", certificates.fingerprint(files.public), "a", "(ECDSA)"]
    half = subprocess.run(["ssh-keygen", "-yf", files.key], capture_output=True, text=True, check=True).stdout
    assert half.split()[:2] == files.public.read_text().split()[:2]


def test_a_clients_key_is_p384_without_a_password(made: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    files = certificates.client_files(made / "clients" / "b")
    key = serialization.load_ssh_private_key(files.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    assert key.public_key() == serialization.load_ssh_public_key(files.public.read_bytes())


def test_more_clients_change_nothing_that_was_there(made: Path) -> None:
    before = contents(made)
    standing = certificates.provide(made, clients=["c"])
    after = contents(made)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {f"clients/c/{file}" for file in ("c", "c.pub", "ca.crt", "valid-until")}
    assert not standing.issued
    assert [name for name, _ in standing.clients] == ["a", "b", "c"]


def test_a_new_host_reissues_the_certificate_for_the_same_keys(made: Path) -> None:
    before = contents(made)
    standing = certificates.provide(made, ["fl.example.net", "10.0.0.5"])
    after = contents(made)
    assert {name for name in after if after[name] != before.get(name)} == {"server.pem"}
    assert set(standing.hosts) == {*certificates.ALWAYS, "fl.example.org", "10.0.0.5", "fl.example.net"}
    assert handshake(made, made / "clients" / "a" / "ca.crt", "fl.example.net") == "welcome"
    assert handshake(made, made / "clients" / "a" / "ca.crt", "fl.example.org") == "welcome"


def test_a_known_host_changes_nothing(made: Path) -> None:
    before = contents(made)
    assert not certificates.provide(made, ["FL.EXAMPLE.ORG", "localhost"]).issued
    assert contents(made) == before


def test_a_key_is_not_replaced_unasked(made: Path) -> None:
    before = contents(made)
    with raises("certificate-exists", match=r"--client a: has a key in .* --renew"):
        certificates.provide(made, ["new.example.org"], ["c", "a"])
    assert contents(made) == before


def test_renew_replaces_the_key_of_the_client_named_and_the_certificate(made: Path) -> None:
    before = contents(made)
    standing = certificates.provide(made, clients=["a"], renew=True)
    after = contents(made)
    changed = {name for name in after if after[name] != before[name]}
    assert set(after) == set(before)
    # The end of the key's time is written to the second.
    assert changed - {"clients/a/valid-until"} == {"clients/a/a", "clients/a/a.pub", "server.pem"}
    assert standing.issued


def test_validity_and_its_warnings(tmp_path: Path) -> None:
    where = tmp_path / "certs"
    standing = certificates.provide(where, days=100, now=NOW)
    assert standing.until == NOW + timedelta(days=100)
    assert certificates.provide(where, now=NOW + timedelta(days=69)).warnings == ()
    (soon,) = certificates.provide(where, now=NOW + timedelta(days=70)).warnings
    assert "server.pem expires on 2030-04-11; coterie certs" in soon
    assert "--renew" in soon
    (late,) = certificates.provide(where, now=NOW + timedelta(days=100)).warnings
    assert "has expired on 2030-04-11" in late
    renewed = certificates.provide(where, renew=True, days=100, now=NOW + timedelta(days=100))
    assert renewed.until == NOW + timedelta(days=200)
    assert renewed.warnings == ()


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    where = tmp_path / "certs"
    standing = certificates.provide(where, now=NOW)
    late = certificates.provide(where, renew=True, now=standing.ca_until - timedelta(days=10))
    assert late.until == standing.ca_until
    assert len(late.warnings) == 2
    with raises("certificate-expired"):
        certificates.provide(where, renew=True, now=standing.ca_until)


def test_the_ca_key_may_be_locked_away(made: Path) -> None:
    (made / "ca.key").rename(made.parent / "safe")
    assert certificates.provide(made, clients=["c"]).made == ("c",)
    with raises("certificate-missing"):
        certificates.provide(made, ["new.example.org"])
    certificates.provide(made.parent / "other")
    shutil.copy(made.parent / "other" / "ca.key", made / "ca.key")
    with raises("certificate-invalid"):
        certificates.provide(made, ["new.example.org"])


def test_a_lost_ca_certificate_is_made_again_and_clients_need_not_care(made: Path) -> None:
    held = made / "clients" / "a" / "ca.crt"
    (made / "ca.crt").unlink()
    certificates.provide(made, ["new.example.org"])
    assert handshake(made, held, "new.example.org") == "welcome"
    for file in ("ca.crt", "ca.key"):
        (made / file).unlink()
    with raises("certificate-missing"):
        certificates.provide(made)


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_full_disk_leaves_nothing_half_written(made: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    before, plain, done = contents(made), certificates._write, iter(range(100))

    def failing(file: Path, content: bytes, mode: int) -> None:
        if next(done) + 1 >= writes:
            file.write_bytes(content[:10])
            raise OSError(28, "No space left on device", str(file))
        plain(file, content, mode)

    monkeypatch.setattr(certificates, "_write", failing)
    with raises("disk-write", match="No space left on device"):
        certificates.provide(made, ["new.example.org"], ["c", "d"])
    assert contents(made) == before
    assert not list(made.glob(".*"))


@pytest.mark.parametrize("moves", range(6))
def test_an_interruption_is_completed_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    where, done = tmp_path / "certs", iter(range(100))
    for move in ("replace", "rename"):
        plain = getattr(Path, move)

        def stopping(self: Path, target: Path, plain: Any = plain) -> Any:
            if next(done) == moves:
                raise KeyboardInterrupt
            return plain(self, target)

        monkeypatch.setattr(Path, move, stopping)
    with pytest.raises(KeyboardInterrupt):
        certificates.provide(where, clients=["a", "b"])
    kept = contents(where)
    missing = [name for name in ("a", "b") if not (where / "clients" / name).exists()]
    assert not any(name.startswith(".") for name in kept)
    assert certificates.provide(where, clients=missing).made == tuple(missing)
    assert {name: content for name, content in contents(where).items() if name in kept} == kept
    assert handshake(where, where / "clients" / "b" / "ca.crt", "localhost") == "welcome"


def test_an_interrupted_renewal_keeps_the_old_key(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, plain, calls = contents(made), Path.rename, iter(range(100))

    def stopping(self: Path, target: Path) -> Path:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return plain(self, target)

    monkeypatch.setattr(Path, "rename", stopping)
    with pytest.raises(KeyboardInterrupt):
        certificates.provide(made, clients=["a"], renew=True)
    assert {name: content for name, content in contents(made).items() if name != "server.pem"} == {
        name: content for name, content in before.items() if name != "server.pem"
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".x", "é", "a b", "x" * 65, "ca.crt", "a.pub", "a\n"])
def test_names_that_are_no_file_names(tmp_path: Path, name: str) -> None:
    with raises("option-invalid", match="--client"):
        certificates.provide(tmp_path / "certs", clients=["fine", name])
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("name", ["x" * 64, "0", "Hospital_A-1.example"])
def test_names_that_are_good(tmp_path: Path, name: str) -> None:
    certificates.provide(tmp_path / "certs", clients=[name, name])
    assert certificates.client_files(tmp_path / "certs" / "clients" / name).name == name


@pytest.mark.parametrize(
    "host", ["", "a:8000", "https://a", "10.0.0.300", "a..b", "-a.org", "a b", "*.example.org", "fe80::1%eth0", "[::1]"]
)
def test_hosts_that_are_none(tmp_path: Path, host: str) -> None:
    with raises("option-invalid", match=r"--host .* without port"):
        certificates.provide(tmp_path / "certs", [host])
    assert not (tmp_path / "certs").exists()


def test_addresses_are_held_in_their_usual_form(tmp_path: Path) -> None:
    hosts = certificates.provide(tmp_path / "certs", ["2001:DB8:0:0::1", "flower_server"]).hosts
    assert hosts == ("2001:db8::1", "flower_server", *certificates.ALWAYS)


def test_what_is_not_ours_is_not_touched(made: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with raises("disk-write", match="file: cannot be written"):
        certificates.provide(tmp_path / "file")
    (made / "server.pem").write_text("x")
    with raises("certificate-invalid"):
        certificates.provide(made)
    (made / "server.pem").unlink()
    (made / "server.key").write_text("x")
    with raises("certificate-invalid"):
        certificates.provide(made)
    assert (made / "server.key").read_text() == "x"


def test_a_lost_server_key_is_replaced_with_its_certificate(made: Path) -> None:
    (made / "server.key").unlink()
    assert certificates.provide(made).issued
    assert handshake(made, made / "ca.crt", "fl.example.org") == "welcome"


def test_files_for_the_server(made: Path) -> None:
    (made / "clients" / "a" / "a").unlink()  # handed over, and not kept
    files = certificates.server_files(made)
    assert (files.ca, files.certificate, files.key) == (made / "ca.crt", made / "server.pem", made / "server.key")
    assert files.clients == tuple((name, made / "clients" / name / f"{name}.pub") for name in "ab")
    files.key.unlink()
    with raises("certificate-missing"):
        certificates.server_files(made)


def test_files_for_the_server_from_a_mounted_secret(made: Path, tmp_path: Path) -> None:
    """Kubernetes shows a secret's files as links into a directory whose name begins with two dots."""
    mount = tmp_path / "mount"
    (mount / "..2030_01_01").mkdir(parents=True)
    (mount / "..data").symlink_to("..2030_01_01")
    for name in ("ca.crt", "server.pem", "server.key", "clients"):
        (made / name).rename(mount / "..2030_01_01" / name)
        (mount / name).symlink_to(f"..data/{name}")
    assert [name for name, _ in certificates.server_files(mount).clients] == ["a", "b"]
    client = mount / "clients" / "a"
    assert certificates.client_files(client) == certificates.ClientFiles(
        "a", client / "a", client / "a.pub", client / "ca.crt"
    )


def test_files_for_a_client(made: Path) -> None:
    handed = made.parent / "from the server"
    shutil.copytree(made / "clients" / "a", handed)
    assert certificates.client_files(handed) == certificates.ClientFiles(
        "a", handed / "a", handed / "a.pub", handed / "ca.crt"
    )
    shutil.copy(made / "clients" / "b" / "b.pub", handed)
    with raises("certificate-missing"):
        certificates.client_files(handed)
    with raises("certificate-missing"):
        certificates.client_files(made)
    (handed / "b.pub").unlink()
    (handed / "ca.crt").unlink()
    with raises("certificate-missing"):
        certificates.client_files(handed)


def test_without_cryptography_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with raises("extra-missing", match=r"pip install 'coterie\[flower\]'"):
        certificates.provide(tmp_path / "certs")
    assert not (tmp_path / "certs").exists()


def invoke(*words: object) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_says_who_gets_what(tmp_path: Path) -> None:
    where = tmp_path / "certs"
    said = invoke(where, "--host", "fl.example.org", "--client", "a")
    assert said.exit_code == 0, said.output
    assert f"give a the directory {where}/clients/a, privately" in said.stdout
    assert f"coterie server CONFIG --certs {where}" in said.stdout
    assert "--server fl.example.org:8000" in said.stdout
    assert "privately" not in invoke(where).stdout
    assert "No client has a key yet" in invoke(tmp_path / "empty").stdout
    again = invoke(where, "--client", "a")
    assert isinstance(again.exception, CoterieError)


def test_the_command_as_json(tmp_path: Path) -> None:
    where = tmp_path / "certs"
    invoke(where, "--client", "a", "--days", "20")
    said = invoke(where, "--client", "b", "--json")
    told = json.loads(said.stdout)
    assert told["server"] | {"valid_until": ""} == {"hosts": list(certificates.ALWAYS), "valid_until": "", "new": False}
    assert [(c["name"], c["new"], c["directory"]) for c in told["clients"]] == [
        ("a", False, str(where / "clients" / "a")),
        ("b", True, str(where / "clients" / "b")),
    ]
    assert all(c["fingerprint"].startswith("SHA256:") for c in told["clients"])
    assert len(told["warnings"]) == 2
    assert said.stderr.startswith("warning: ")


# ---------------------------------------------------------------------------------------------------- revoking


def test_a_revoked_key_is_not_among_those_of_the_server_any_more(made: Path) -> None:
    (kept,) = certificates.revoke(made, ["a"])
    assert [name for name, _ in certificates.server_files(made).clients] == ["b"]
    assert kept == made / "revoked" / "a-1"
    assert (kept / "a.pub").is_file()
    certificates.provide(made, [], ["a"])  # a new key for the same client
    certificates.revoke(made, ["a"])
    assert (made / "revoked" / "a-2" / "a.pub").is_file()
    with raises("certificate-missing", "Did you mean 'b'|Known: b"):
        certificates.revoke(made, ["a"])


def test_the_command_revokes(made: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    found = CliRunner().invoke(app, [str(made), "--revoke", "b"])
    assert found.exit_code == 0, found.output
    assert "revoked" in found.stderr
    assert "client   b" not in found.stdout
