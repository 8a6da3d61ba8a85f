"""Public data files: from the folder VERAX_DATA, or fetched once and checked."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

# Seconds to wait for a server.
_TIMEOUT = 60.0


def obtain(name: str, address: str, digest: str) -> bytes:
    """The bytes of a file with this SHA-256: from the folder, the cache, or its address.

    Args:
        name: its path below the folder, such as ``mnist/train-labels-idx1-ubyte.gz``.
        address: where it is published.
        digest: its SHA-256, in hexadecimal. Anything else is refused, and a damaged copy in the
            cache is fetched again.
    """
    folder = os.environ.get("VERAX_DATA")
    if folder:
        return checked(Path(folder) / name, digest)
    kept = _cache() / name
    if kept.exists():
        try:
            return checked(kept, digest)
        except ValueError:
            kept.unlink()
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            content: bytes = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise ValueError(
            f"{name} could not be fetched from {address} ({error}); put it into a folder and name "
            "that by VERAX_DATA"
        ) from error
    if not _has_digest(content, digest):
        raise ValueError(
            f"{name} as fetched from {address} is not the official file (its SHA-256 differs)"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, kept)
    return content


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verax"


def checked(path: Path, digest: str) -> bytes:
    """The bytes of a file that must have this SHA-256."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not _has_digest(content, digest):
        raise ValueError(f"{path} is not the official file (its SHA-256 differs)")
    return content


def _has_digest(content: bytes, digest: str) -> bool:
    return hashlib.sha256(content).hexdigest() == digest
