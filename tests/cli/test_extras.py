"""Commands whose extra is not installed say which one it is."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from verax.cli.extras import EXTRAS

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
WITHOUT_EXTRAS = f"""
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {set(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from verax.cli import main
main()
"""
COMMANDS = {
    "train --data digits --epsilon 3": "train",
    "federate --data digits --clients 36 --epsilon 4": "train",
    "audit canaries --data digits -z 1": "train",
    "plan utility --data digits --public": "train",
    "serve": "web",
    "compare -z 1 --batches 100 --delta 1e-5 --figure drawn.png": "figures",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_names_the_extra_it_needs(words, tmp_path):
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *words.split()]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("verax: ")
    assert done.stderr.endswith(f"pip install 'verax[{COMMANDS[words]}]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", EXTRAS)
def test_the_extra_that_is_named_brings_the_module(module):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = project["optional-dependencies"][EXTRAS[module]]
    distribution = DISTRIBUTIONS.get(module, module)
    assert any(line.startswith(f"{distribution}>=") for line in brought)
