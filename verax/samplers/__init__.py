"""Who is in each batch: one frozen description per sampler, each of which draws its own batches."""

from verax.samplers.base import Indices, Sampler

# Samplers are listed everywhere in the order in which they are registered here.
# isort: off
from verax.samplers.poisson import Poisson
from verax.samplers.balls_in_bins import BallsInBins
from verax.samplers.random_allocation import RandomAllocation
from verax.samplers.truncated_poisson import TruncatedPoisson
from verax.samplers.without_replacement import WithoutReplacement
from verax.samplers.shuffle import Shuffle
from verax.samplers.buffered_shuffle import BufferedShuffle
from verax.samplers.deterministic import Deterministic
from verax.samplers.random_participation import RandomParticipation
# isort: on

from verax.samplers.registry import planned, register
from verax.samplers.stream import Batches, resume

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
