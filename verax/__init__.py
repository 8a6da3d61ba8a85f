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
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)

if TYPE_CHECKING:
    from verax.privacy import calibrate
    from verax.privacy.guarantee import Bracket, Guarantee
    from verax.privacy.renyi.filter import Budget, OverBudget
    from verax.privacy.tuning import PoissonTrials, TruncatedNegativeBinomial, tuned

__version__ = "0.1.0"

__all__ = [
    "BallsInBins",
    "Batch",
    "Bracket",
    "Budget",
    "BufferedShuffle",
    "Deterministic",
    "Guarantee",
    "Individual",
    "Mechanism",
    "Mixed",
    "NoGuarantee",
    "OverBudget",
    "Phases",
    "Poisson",
    "PoissonTrials",
    "RandomAllocation",
    "RandomParticipation",
    "Shuffle",
    "TruncatedNegativeBinomial",
    "TruncatedPoisson",
    "WithoutReplacement",
    "__version__",
    "calibrate",
    "tuned",
]

_LATER = {
    "Bracket": "guarantee",
    "Budget": "renyi.filter",
    "Guarantee": "guarantee",
    "OverBudget": "renyi.filter",
    "PoissonTrials": "tuning",
    "TruncatedNegativeBinomial": "tuning",
    "tuned": "tuning",
}
"""Names of the accountant's, and the modules of ``verax.privacy`` they live in."""


def __getattr__(name: str) -> object:
    """Import the accountant, and scipy with it, when it is first asked for.

    Describing a run and drawing its batches need neither.
    """
    if name == "calibrate":
        return import_module("verax.privacy.calibrate")
    if name in _LATER:
        return getattr(import_module(f"verax.privacy.{_LATER[name]}"), name)
    raise AttributeError(f"module 'verax' has no attribute {name!r}")
