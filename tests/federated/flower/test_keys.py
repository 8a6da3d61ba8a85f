"""Keys and certificates."""

import ssl

import pytest

pytest.importorskip("cryptography")

from verax.federated.flower import new_certificates, new_key, read_public_keys


def test_keys(tmp_path):
    for i in range(2):
        new_key(tmp_path / str(i))
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o600
    lines = [(tmp_path / f"{i}.pub").read_bytes() for i in range(2)]
    assert all(line.startswith(b"ecdsa-sha2-nistp384 ") for line in lines)
    (tmp_path / "keys").write_bytes(lines[0].strip() + b" somebody@there\n\n" + lines[1])
    first, second = read_public_keys(tmp_path / "keys")
    assert read_public_keys(tmp_path / "0.pub") == [first]
    assert first != second
    assert first.startswith(b"-----BEGIN PUBLIC KEY-----\n")  # as Flower names a SuperNode's
    with pytest.raises(FileExistsError):
        new_key(tmp_path / "0")
    with pytest.raises(ValueError, match="must hold a public key a line"):
        read_public_keys(tmp_path / "0")


def test_certificates(tmp_path):
    new_certificates(tmp_path, ["localhost", "127.0.0.1"])
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
