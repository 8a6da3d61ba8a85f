"""``pip install verax`` in an empty environment, the newest of everything, and the commands in it.

This needs the package index. Where that cannot be reached the tests are skipped, and say so; an
installation that fails for any other reason fails here. On an idle machine all of it takes about
two minutes, most of them pip's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.index

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
# As variables, which the pip that builds a wheel passes on to the pip that fetches the build tools.
PATIENCE = {"PIP_DEFAULT_TIMEOUT": "15", "PIP_RETRIES": "1"}
SECONDS = 300  # for one call of pip; on an idle machine it takes 20
PROBE = "packaging"  # small, and on every index that has what verax needs
# What pip prints when an index that answered before is out of reach, and when the fault is ours.
UNREACHABLE = re.compile(
    "NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ConnectionResetError|ProtocolError"
    "|NameResolutionError|ProxyError|Max retries exceeded|Network is unreachable"
    "|connection to .* timed out|Read timed out|Failed to establish a new connection"
)
OURS = re.compile("ResolutionImpossible|requires a different Python")
RUN = "--rate 0.01 --steps 100"
COMMANDS = {
    "--version": "verax 0.",
    "--help": "account",
    "train --help": "--epsilon",
    f"account -z 1 {RUN} --delta 1e-5": "epsilon at delta = 1e-05",
    f"account -z 1 {RUN} --delta 1e-5 --json": '"epsilon"',
    f"calibrate --epsilon 1 --delta 1e-5 {RUN}": "noise multiplier",
    f"group -z 1 {RUN} --delta 1e-5": "epsilon",
    "compare -z 1 --batches 100 --delta 1e-5": "epsilon at delta = 1e-05",
    "plan --records 900 --epsilon 1 --delta 1e-5 --epochs 2": "noise",
}
REFUSED = {
    f"account -z 1 {RUN} --delta 2": "delta",
    f"account -z one {RUN}": "--noise-multiplier",
    "account --no-such-option": "--no-such-option",
    "no-such-command": "no-such-command",
}


def environment() -> dict[str, str]:
    """Ours, without what would bring in this repository, constraints or another installation."""
    ours = ("PYTHONPATH", "PYTHONHOME", "PIP_CONSTRAINT", "PIP_REQUIREMENT", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | PATIENCE


def run(command: list[str], where: Path, seconds: float = 900) -> subprocess.CompletedProcess[str]:
    settings = {"cwd": where, "env": environment(), "timeout": seconds}
    return subprocess.run(command, capture_output=True, text=True, check=False, **settings)


class Index:
    """The package index, as pip is set up to reach it; once it is down nothing waits for it."""

    def __init__(self, where: Path) -> None:
        """Fetch something small that exists: where that fails, it is not verax that is at fault."""
        self.down = ""
        command = self._command(Path(sys.executable), "download", "--no-deps", PROBE)
        try:
            done = run(command, where, SECONDS)
        except subprocess.TimeoutExpired:
            self.down = f"pip did not end within {SECONDS} seconds"
        else:
            if done.returncode:
                known = UNREACHABLE.search(done.stdout + done.stderr)
                self.down = known[0] if known else done.stderr.strip().rpartition("\n")[2]

    def pip(self, python: Path, *words: str, where: Path) -> None:
        """Run pip. Skip the test if that fails because the index is out of reach, and only then."""
        if not self.down:
            self.down = self._trouble(self._command(python, *words), where)
        if self.down:
            pytest.skip(f"the package index cannot be reached ({self.down}): NOT TESTED")

    @staticmethod
    def _command(python: Path, *words: str) -> list[str]:
        return [str(python), "-m", "pip", "--no-input", *words]

    @staticmethod
    def _trouble(command: list[str], where: Path) -> str:
        try:
            done = run(command, where, SECONDS)
        except subprocess.TimeoutExpired:
            return f"pip did not end within {SECONDS} seconds"
        said = done.stdout + done.stderr
        unreachable = UNREACHABLE.search(said)
        if done.returncode and (OURS.search(said) or not unreachable):
            pytest.fail(f"{' '.join(command)} failed:\n{said}")
        return unreachable[0] if done.returncode else ""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index(tmp_path_factory.mktemp("probe"))


def interpreter(version: str) -> str:
    """An interpreter of this version on the path. A launcher that finds none is not one."""
    for folder in os.get_exec_path():
        program = shutil.which(f"python{version}", path=folder)
        if program and run([program, "-c", "import venv, ensurepip"], Path(folder)).returncode == 0:
            return program
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    pytest.skip(f"there is no python{version} on the path")


@pytest.fixture(scope="module")
def wheel(index: Index) -> Iterator[Path]:
    """Built with the newest build tools, from a copy: the build compiles in place."""
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "source"), Path(folder, "built")
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
        shutil.copytree(ROOT / "verax", source / "verax", ignore=ignored)
        for name in SOURCES:
            shutil.copy(ROOT / name, source / name)
        python = Path(sys.executable)
        index.pip(python, "wheel", "--no-deps", "-w", str(built), str(source), where=Path(folder))
        yield next(built.glob("verax-*.whl"))


@contextmanager
def environment_with(index: Index, version: str, requirement: str) -> Iterator[Path]:
    """The programs of a new environment with this, and what it declares, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        made = run([interpreter(version), "-m", "venv", folder], Path(folder))
        assert made.returncode == 0, made.stderr
        programs = Path(folder, "bin")
        index.pip(programs / "python", "install", requirement, where=Path(folder))
        yield programs


@pytest.fixture(scope="module", params=PYTHONS)
def plain(request: pytest.FixtureRequest, index: Index, wheel: Path) -> Iterator[Path]:
    """No extras: they would bring what the plain installation must declare itself."""
    with environment_with(index, request.param, str(wheel)) as programs:
        yield programs


@pytest.fixture(scope="module")
def extended(index: Index, wheel: Path) -> Iterator[Path]:
    """With the extras that are small enough to install here."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with environment_with(index, version, f"{wheel}[figures,web]") as programs:
        yield programs


@pytest.fixture
def verax(plain: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *words: run([str(plain / "verax"), *words], tmp_path)


def test_the_commands_run_with_the_newest_of_everything(verax):
    for words, expected in COMMANDS.items():
        done = verax(*words.split())
        assert (done.returncode, done.stderr) == (0, ""), words
        assert expected in done.stdout, words


def test_bad_input_is_refused_in_words(verax):
    for words, expected in REFUSED.items():
        done = verax(*words.split())
        assert done.returncode == 2, words
        assert expected in done.stderr, words
        assert "Traceback" not in done.stderr, words


def test_with_its_extra_a_figure_is_drawn(extended, tmp_path):
    words = "compare -z 1 --batches 100 --delta 1e-5 --figure drawn.png"
    done = run([str(extended / "verax"), *words.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_with_its_extra_the_server_answers(extended, tmp_path):
    command = [str(extended / "verax"), "serve", "--port", "0"]
    with (tmp_path / "said").open("w") as said:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=said, text=True
        )
    try:
        address = re.search(r"http://\S+?/(?= )", server.stdout.readline())
        assert address, (tmp_path / "said").read_text()
        with urllib.request.urlopen(address[0], timeout=60) as answer:
            assert b"verax" in answer.read()
    finally:
        server.terminate()
        server.communicate(timeout=60)
