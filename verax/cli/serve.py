"""verax serve: the planner and the run viewer in a browser."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

TOKEN = "VERAX_TOKEN"


def serve(
    runs: Annotated[
        Path | None, typer.Option(help="A folder whose ledgers are shown and followed.")
    ] = None,
    diagnostics: Annotated[
        bool,
        typer.Option(
            "--diagnostics", help="Also show the diagnostics of runs, which no guarantee covers."
        ),
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            help=f"Address to listen on; other than loopback asks for a token in {TOKEN}."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")
    ] = 8321,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name besides localhost under which it may be called; may be repeated."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"A file with the token, in place of the variable {TOKEN}.")
    ] = None,
    workers: Annotated[int, typer.Option(min=2, max=64, help="Processes that compute.")] = 3,
    seconds: Annotated[float, typer.Option(help="How long one computation may take.")] = 20.0,
) -> None:
    """Compare, plan, follow runs and read their statements in a browser; everything stays on this machine.

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
        host=host,
        token=_token(token_file),
        names=tuple(allow_host or ()),
        runs=runs,
        diagnostics=diagnostics,
        workers=workers,
        seconds=seconds,
    )
    listening = _listening(host, port)
    shown = f"[{host}]" if ":" in host else host
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"verax is at http://{shown}:{listening.getsockname()[1]}/ (Ctrl-C ends it)")
    if diagnostics:
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
