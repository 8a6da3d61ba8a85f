"""verax: DP-SGD for people who must be able to defend the epsilon they report.

>>> from verax import Mechanism, Poisson
>>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
>>> run.guarantee().epsilon(delta=1e-5).upper < 1.83
True
"""

from verax.checks import NoGuarantee
from verax.mechanism import Batch, Individual, Mechanism, Mixed, Phases
from verax.privacy import calibrate
from verax.privacy.guarantee import Bracket, Guarantee
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
