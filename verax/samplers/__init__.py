"""Who is in each batch: one frozen description per family, each of which draws its own batches."""

from verax.samplers.allocation import RandomAllocation
from verax.samplers.base import Indices, Sampler
from verax.samplers.bins import BallsInBins
from verax.samplers.buffered import BufferedShuffle
from verax.samplers.deterministic import Deterministic
from verax.samplers.participation import RandomParticipation
from verax.samplers.poisson import Poisson
from verax.samplers.replacement import WithoutReplacement
from verax.samplers.shuffle import Shuffle
from verax.samplers.stream import Batches, resume
from verax.samplers.truncated import TruncatedPoisson

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
    "resume",
]
