"""Keys and X.509 certificates as values: nothing here knows a directory. cryptography is imported when it is used."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

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
