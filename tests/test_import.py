"""``import verax`` needs numpy and scipy's special functions and transforms, nothing heavier."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "matplotlib",
    "typer",
    "rich",
    "scipy.optimize",
    "scipy.stats",
    "flwr",
    "fastapi",
    "pandas",
    "mpmath",
)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Modules that a fresh interpreter holds after ``import verax`` and one guarantee."""
    code = (
        "import sys, verax\n"
        "verax.Mechanism(verax.Poisson(0.01, 100), 1.0).guarantee().epsilon(1e-5)\n"
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_the_listing_works(loaded):
    assert {"verax", "numpy", "scipy", "verax.privacy.analysis"} <= loaded


@pytest.mark.parametrize("module", HEAVY)
def test_heavy_modules_stay_out(loaded, module):
    assert module not in loaded


def test_public_names_exist():
    import verax

    for name in verax.__all__:
        assert hasattr(verax, name), name
