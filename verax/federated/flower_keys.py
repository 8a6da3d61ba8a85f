"""Keys by which a server knows its clients, and certificates by which clients know their server."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import NameOID

AnyPath = str | os.PathLike[str]
_DAYS = 365


def new_key(path: AnyPath) -> bytes:
    """Write a new private key to a file that only its owner can read; return the public one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     public = new_key(f"{folder}/client.key")
    ...     public == public_key(read_key(f"{folder}/client.key"))
    True
    """
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return public_key(key)


def read_key(path: AnyPath) -> Any:
    """The private key in a file of :func:`new_key`."""
    try:
        key = load_ssh_private_key(Path(path).read_bytes(), None)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"key must be a file with a private key of OpenSSH, got {os.fspath(path)}: {error}"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(
            f"key must be on an elliptic curve, such as new_key makes, got {type(key).__name__}"
        )
    return key


def public_key(key: Any) -> bytes:
    """The public half of a private key, in the form in which a server is told it."""
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def read_public_keys(path: AnyPath) -> list[bytes]:
    """The public keys of clients 0, 1, ... that :func:`new_key` returned, from one file."""
    end = b"-----END PUBLIC KEY-----\n"
    pieces = Path(path).read_bytes().split(end)[:-1]
    try:
        return [
            load_pem_public_key(piece + end).public_bytes(
                Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
            )
            for piece in pieces
        ]
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} must hold public keys in PEM form: {error}") from error


def new_certificates(folder: AnyPath, hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> None:
    """Make ``ca.pem`` for the clients, ``server.pem`` and ``server.key`` for the server.

    The authority's own key is thrown away, so that nothing else can be signed with it.

    Args:
        folder: where the files go.
        hosts: names and addresses of the server.
    """
    place = Path(folder)
    authority, own = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "verax federation")])
    root = _certificate(
        issuer, issuer, authority, authority, x509.BasicConstraints(ca=True, path_length=0)
    )
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    signed = _certificate(issuer, subject, authority, own, names)
    (place / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
    (place / "server.pem").write_bytes(signed.public_bytes(Encoding.PEM))
    _write_secret(
        place / "server.key", own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


def _certificate(issuer: Any, subject: Any, signer: Any, owner: Any, extension: Any) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(owner.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(owner.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )


def _host(name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_secret(path: AnyPath, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
