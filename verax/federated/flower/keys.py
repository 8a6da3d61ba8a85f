"""Keys by which a server knows its clients, and certificates by which they know the server."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from cryptography.x509.oid import NameOID

AnyPath = str | os.PathLike[str]
_DAYS = 365


def new_key(path: AnyPath) -> None:
    """Write a new private key for a SuperNode, and its public half to a file with ``.pub`` added.

    The same as ``ssh-keygen -t ecdsa -b 384``. Only the owner can read the private key.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     new_key(f"{folder}/client.key")
    ...     len(read_public_keys(f"{folder}/client.key.pub"))
    1
    """
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    Path(f"{os.fspath(path)}.pub").write_bytes(public + b"\n")


def read_public_keys(path: AnyPath) -> list[bytes]:
    """The public keys of clients 0, 1, ... in a file, in the form in which Flower names them.

    Args:
        path: a file with the contents of their ``.pub`` files, a key a line.
    """
    lines = [line for line in Path(path).read_bytes().splitlines() if line.strip()]
    try:
        keys = [load_ssh_public_key(line) for line in lines]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"{os.fspath(path)} must hold a public key a line, such as ssh-keygen writes: {error}"
        ) from error
    return [key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in keys]


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
