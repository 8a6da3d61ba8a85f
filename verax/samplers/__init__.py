"""Who is in each batch: one frozen description per sampler, each of which draws its own batches."""

from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.base import Indices, Sampler
from verax.samplers.buffered_shuffle import BufferedShuffle
from verax.samplers.deterministic import Deterministic

# isort: off  (samplers are listed in the order in which they are registered here)
from verax.samplers.poisson import Poisson
from verax.samplers.random_allocation import RandomAllocation
from verax.samplers.random_participation import RandomParticipation

# isort: on
from verax.samplers.registry import planned, register
from verax.samplers.shuffle import Shuffle
from verax.samplers.stream import Batches, resume
from verax.samplers.truncated_poisson import TruncatedPoisson
from verax.samplers.without_replacement import WithoutReplacement

__all__ = [
    "BallsInBins",
    "Batches",
    "BufferedShuffle",
    "Deterministic",
    "Indices",
    "Poisson",
    "RandomAllocation",
    "RandomParticipation",
    "Sampler",
    "Shuffle",
    "TruncatedPoisson",
    "WithoutReplacement",
    "planned",
    "register",
    "resume",
]
