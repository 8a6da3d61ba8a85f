"""verax serve: the planner and the run viewer in a browser."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from verax.cli import output
from verax.cli.options import flat, option

TOKEN = "VERAX_TOKEN"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What ``verax serve`` is asked."""

    runs: Path | None = option("A folder whose ledgers are shown and followed.")
    diagnostics: bool = option(
        "Also show the diagnostics of runs, which no guarantee covers.",
        "--diagnostics",
        default=False,
    )
    host: str = option(
        f"Address to listen on; other than loopback asks for a token in {TOKEN}.",
        default="127.0.0.1",
    )
    port: int = option("Port to listen on; 0 for any that is free.", default=8321, min=0, max=65535)
    allow_host: list[str] | None = option(
        "A name besides localhost under which it may be called; may be repeated."
    )
    token_file: Path | None = option(f"A file with the token, in place of the variable {TOKEN}.")
    workers: int = option("Processes that compute.", default=3, min=2, max=64)
    seconds: float = option("How long one computation may take.", default=20.0)


@flat
def serve(options: ServeOptions) -> None:
    """Compare, plan, follow runs and read their statements in a browser, all on this machine.

    Example: verax serve --runs ledgers
    """
    try:
        from verax.web.app import create_app
        from verax.web.server import server
        from verax.web.settings import Settings
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"verax serve needs {error.name}, which comes with the extra web: pip install "
            "'verax[web]'"
        ) from error
    settings = Settings(
        host=options.host,
        token=_token(options.token_file),
        names=tuple(options.allow_host or ()),
        runs=options.runs,
        diagnostics=options.diagnostics,
        workers=options.workers,
        seconds=options.seconds,
    )
    listening = _listening(options.host, options.port)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    console = output.console()
    console.print(f"verax is at http://{shown}:{listening.getsockname()[1]}/ (Ctrl-C ends it)")
    if options.diagnostics:
        console.print(
            "It shows diagnostics that no guarantee covers, to everybody who can reach this "
            "address."
        )
    server(create_app(settings), settings).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise ValueError(
            f"--host and --port must be an address of this machine and a free port, got {host} and "
            f"{port}: {error.strerror}"
        ) from error


def _token(file: Path | None) -> str:
    """The token; never an option, because others can see the options of a process."""
    if file is None:
        return os.environ.get(TOKEN, "")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--token-file must be a text file that can be read, got {file}: {error}"
        ) from error
