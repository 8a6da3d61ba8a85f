"""verax: DP-SGD for people who must be able to defend the epsilon they report.

>>> from verax import Mechanism, Poisson
>>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
>>> run.guarantee().epsilon(delta=1e-5).upper < 1.83
True
"""

from importlib import import_module
from typing import TYPE_CHECKING

from verax.checks import NoGuarantee
from verax.mechanism import Batch, Individual, Mechanism, Mixed, Phases
from verax.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    Poisson,
    RandomAllocation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)

if TYPE_CHECKING:
    from verax.privacy import calibrate
    from verax.privacy.guarantee import Bracket, Guarantee

__version__ = "0.1.0"

__all__ = [
    "BallsInBins",
    "Batch",
    "Bracket",
    "BufferedShuffle",
    "Deterministic",
    "Guarantee",
    "Individual",
    "Mechanism",
    "Mixed",
    "NoGuarantee",
    "Phases",
    "Poisson",
    "RandomAllocation",
    "Shuffle",
    "TruncatedPoisson",
    "WithoutReplacement",
    "__version__",
    "calibrate",
]


def __getattr__(name: str) -> object:
    """Import the accountant, and scipy with it, when it is first asked for: describing and drawing need neither."""
    if name == "calibrate":
        return import_module("verax.privacy.calibrate")
    if name in ("Bracket", "Guarantee"):
        return getattr(import_module("verax.privacy.guarantee"), name)
    raise AttributeError(f"module 'verax' has no attribute {name!r}")
