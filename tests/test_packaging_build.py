"""Wheels: with or without a compiler, from the repository or from the source distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import verax

pytest.importorskip("hatchling")
pytest.importorskip("setuptools")

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE")
COMPILED = (".so", ".pyd")


@pytest.fixture
def source(tmp_path):
    """A copy of what a wheel is made from: the build compiles in place."""
    copy = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "verax", copy / "verax", ignore=ignored)
    for name in SOURCES:
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(source: Path, kind: str, to: Path, **variables: str) -> tuple[Path, str]:
    """The wheel or source distribution, and what was said meanwhile."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(to)]
    settings = {"cwd": source, "env": os.environ | variables, "timeout": 300}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    assert done.returncode == 0, done.stderr
    (built,) = to.iterdir()
    return built, done.stderr.replace(f"{built}\n", "")


def unpack(packed: Path, to: Path) -> Path:
    """The folder in a source distribution. ``extractall(filter=)`` is new in Python 3.11.4."""
    with tarfile.open(packed) as file:
        for member in filter(tarfile.TarInfo.isfile, file):
            path = to / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.extractfile(member).read())
    (folder,) = to.iterdir()
    return folder


def contents(wheel: Path) -> dict[str, bytes]:
    """Of a wheel, without what the compiler makes and the list of sums, which has its sum."""
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if not name.endswith(("/RECORD", *COMPILED))]
        return {name: file.read(name) for name in names}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def test_without_a_compiler_the_wheel_is_built_and_one_line_says_what_is_missing(source, tmp_path):
    wheel, said = build(source, "wheel", tmp_path / "dist", CC=str(tmp_path / "no-compiler"))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in names(wheel) if name.endswith(COMPILED)]
    assert said.startswith("no compiled noise, numpy does it instead")
    assert "no-compiler" in said
    assert said.count("\n") == 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_with_a_compiler_one_wheel_serves_every_python(source, tmp_path):
    wheel, said = build(source, "wheel", tmp_path / "dist")
    if "Python.h" in said:
        pytest.skip("the headers of Python are not installed")
    assert wheel.name.startswith(f"verax-{verax.__version__}-cp311-abi3-")
    assert [name for name in names(wheel) if name.endswith(COMPILED)]


def test_the_source_distribution_makes_the_same_wheel(source, tmp_path):
    packed, _ = build(source, "sdist", tmp_path / "sdist")
    unpacked = unpack(packed, tmp_path / "unpacked")
    direct, _ = build(source, "wheel", tmp_path / "direct")
    again, _ = build(unpacked, "wheel", tmp_path / "again")
    assert again.name == direct.name
    assert names(again) == names(direct)
    assert contents(again) == contents(direct)
