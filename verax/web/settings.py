"""How a server is set up: who may ask, and how much one question may cost."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from verax import checks

LOOPBACK_NAMES = ("localhost",)
SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Settings:
    """Who may ask, and how much one question may cost.

    Args:
        host: the address that is listened on; anything but a loopback address needs a token.
        token: a secret of at least 16 characters that every request must show; empty for none.
        names: host names besides localhost under which the server may be called.
        runs: a folder whose ledgers are shown.
        diagnostics: whether to show what runs wrote down for the owners of the data only, to
            everybody who can reach the server.
        workers: processes that compute.
        seconds: how long one computation may take.
        stream_seconds: how long one request may take.
        memory: bytes that a computing process may use.
        requests: how many requests may compute or wait at the same time.
        upload: the largest ledger, in bytes.
        header_seconds: in which the head of a request must have come.
        idle_connections: how many connections from one address may be open without a whole request;
            of more than these the oldest is closed.

    >>> Settings(host="0.0.0.0")
    Traceback (most recent call last):
    ValueError: token must be given to listen on '0.0.0.0', which others can reach...
    """

    host: str = "127.0.0.1"
    token: str = ""
    names: tuple[str, ...] = ()
    runs: Path | None = None
    diagnostics: bool = False
    workers: int = 3
    seconds: float = 20.0
    stream_seconds: float = 120.0
    memory: int = 3 * 2**30
    requests: int = 16
    upload: int = 32 * 2**20
    header_seconds: float = 10.0
    idle_connections: int = 32

    def __post_init__(self) -> None:
        checks.count("workers", self.workers, minimum=2, maximum=64)
        checks.positive("seconds", self.seconds)
        checks.positive("stream_seconds", self.stream_seconds)
        checks.count("requests", self.requests)
        checks.count("upload", self.upload)
        checks.positive("header_seconds", self.header_seconds)
        checks.count("idle_connections", self.idle_connections)
        checks.count("memory", self.memory, minimum=2**28)
        if self.token and (len(self.token) < SHORTEST_TOKEN or not self.token.isascii()):
            raise ValueError(
                f"token must have at least {SHORTEST_TOKEN} ASCII characters, got {len(self.token)}"
            )
        if not self.token and not is_loopback(self.host):
            raise ValueError(
                f"token must be given to listen on {self.host!r}, which others can reach; "
                "or use a loopback address such as 127.0.0.1"
            )
        if self.runs is not None and not self.runs.is_dir():
            raise ValueError(f"runs must be a folder that exists, got {str(self.runs)!r}")

    def answers_to(self, name: str) -> bool:
        """Whether a request for this host name is meant for us.

        Addresses always are: another site that points its *name* at our address cannot be asked for
        by address.
        """
        return (
            name in LOOPBACK_NAMES
            or name in self.names
            or name == self.host
            or _address(name) is not None
        )


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach the address."""
    address = _address(host)
    return host in LOOPBACK_NAMES if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
