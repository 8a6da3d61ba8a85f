"""What each sampler costs, one sampler a file; importing this package registers them all."""

from verax.privacy.samplers import (
    balls_in_bins,
    buffered_shuffle,
    deterministic,
    poisson,
    random_allocation,
    random_participation,
    shuffle,
    truncated_poisson,
    without_replacement,
)

__all__ = [
    "balls_in_bins",
    "buffered_shuffle",
    "deterministic",
    "poisson",
    "random_allocation",
    "random_participation",
    "shuffle",
    "truncated_poisson",
    "without_replacement",
]
