"""A SuperLink and SuperNodes as processes on this host."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import verax
from verax.federated.flower.keys import new_certificates, new_key, read_public_keys

_HOST = "127.0.0.1"
START = 600.0  # seconds that processes may take to start, or to answer
_STOP = 10.0  # seconds that they get to end in
_RESTARTS = 8  # of SuperNodes, after which something else is wrong than a port that is taken
_LINK = "local"  # the SuperLink's name in Flower's configuration
_TAIL = 2000  # characters of a log that an error shows
# no telemetry, no look for updates; and shorter waits for work where Flower's are configurable
_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}


@dataclass
class LocalFederation:
    """A SuperLink and a SuperNode for each client on this host, over TLS, known by their keys.

    Started by :func:`local_federation`, as Flower's documentation starts them.
    """

    folder: Path
    clients: int
    port: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: int = 0

    @property
    def keys(self) -> list[bytes]:
        """The public keys of the clients."""
        return read_public_keys(self.folder / "clients.pub")

    def socket(self, client: int) -> str:
        """The address at which a client is expected to serve."""
        return os.fspath(self.folder / f"{client}.sock")

    def start(self) -> None:
        """Start all processes, and register the keys of the SuperNodes."""
        new_certificates(self.folder, [_HOST])
        for client in range(self.clients):
            new_key(self.folder / f"{client}.key")
        keys = [(self.folder / f"{client}.key.pub").read_bytes() for client in range(self.clients)]
        (self.folder / "clients.pub").write_bytes(b"".join(keys))
        self.start_superlink()
        for client in range(self.clients):
            self._flwr("supernode", "register", f"{client}.key.pub", _LINK)
        for client in range(self.clients):
            self.start_supernode(client)

    def start_superlink(self) -> None:
        """Start a SuperLink that knows no SuperNode yet, and wait until it can be reached."""
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            self.port = _free_port()
            self._start(
                "superlink",
                *("flower-superlink", "--host", _HOST, "--port", str(self.port)),
                *("--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"),
                *("--ssl-ca-certfile", "ca.pem", "--enable-supernode-auth"),
                "--disable-runtime-dependency-installation",
            )
            while self.processes["superlink"].poll() is None and time.monotonic() < deadline:
                if _reachable(self.port):
                    (self.folder / "home").mkdir(exist_ok=True)
                    (self.folder / "home" / "config.toml").write_text(
                        f"[superlink.{_LINK}]\n"
                        f'address = "{_HOST}:{self.port}"\n'
                        f"root-certificates = {json.dumps(os.fspath(self.folder / 'ca.pem'))}\n"
                    )
                    return
                time.sleep(0.1)
        raise RuntimeError(f"no SuperLink could be started: {self.log('superlink')}")

    def start_supernode(self, client: int, key: str | None = None) -> None:
        """Start the SuperNode of a client, with its own key or the one in another file."""
        self._start(
            f"supernode-{client}",
            *("flower-supernode", "--superlink", f"{_HOST}:{self.port}"),
            *("--root-certificates", "ca.pem"),
            *("--auth-supernode-private-key", key or f"{client}.key"),
            *("--host", _HOST, "--port", str(_free_port())),
            *("--node-config", f"client={json.dumps(self.socket(client))}"),
        )

    def run(self, project: Path, **settings: str | int | float | bool) -> subprocess.Popen[bytes]:
        """Start a project's run; the process returned prints its log, and ends with it."""
        given = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        config = ["--run-config", given] if given else []
        return self._start("run", "flwr", "run", os.fspath(project), _LINK, "--stream", *config)

    def check(self) -> None:
        """Raise if SuperLink or run have ended; start SuperNodes anew that have."""
        for name, process in list(self.processes.items()):
            if process.poll() is None:
                continue
            if not name.startswith("supernode") or self.restarts >= _RESTARTS:
                raise RuntimeError(f"the {name} has ended too early: {self.log(name)}")
            self.restarts += 1
            self.start_supernode(int(name.removeprefix("supernode-")))  # its port was taken

    def log(self, name: str) -> str:
        """What a process has printed last."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-_TAIL:]

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + _STOP
        for process in self.processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, command: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = self.processes[name] = subprocess.Popen(
                self._command(command, *words),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return process

    def _command(self, name: str, *words: str) -> list[str]:
        return [shutil.which(name, path=self._environment()["PATH"]) or name, *words]

    def _flwr(self, *words: str) -> None:
        done = subprocess.run(
            self._command("flwr", *words),
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START,
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(words)} failed: {done.stdout}{done.stderr}")

    def _environment(self) -> dict[str, str]:
        # SuperLink and SuperNodes start others of Flower's commands by their names; and the apps
        # are to import this very package, whatever else is installed
        first = {
            "PATH": sysconfig.get_path("scripts"),
            "PYTHONPATH": os.fspath(Path(verax.__file__).parents[1]),
        }
        paths = {
            name: os.pathsep.join(filter(None, [folder, os.environ.get(name)]))
            for name, folder in first.items()
        }
        return {**os.environ, **_SETTINGS, "FLWR_HOME": os.fspath(self.folder / "home"), **paths}


@contextmanager
def local_federation(folder: str | os.PathLike[str], clients: int) -> Iterator[LocalFederation]:
    """Start a SuperLink and SuperNodes in a folder, and end them afterwards."""
    federation = LocalFederation(Path(folder), clients)
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as door:
        found: int = door.getsockname()[1]
        return found


def _reachable(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True
