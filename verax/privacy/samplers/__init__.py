"""Everything that prices a sampler, one family a file; importing this package registers them all."""

from verax.privacy.pricing import price, refuse_unknown
from verax.privacy.samplers import (
    allocation,
    fixed_batches,
    poisson,
    random_participation,
    truncated_poisson,
    without_replacement,
)

__all__ = [
    "allocation",
    "fixed_batches",
    "poisson",
    "price",
    "random_participation",
    "refuse_unknown",
    "truncated_poisson",
    "without_replacement",
]
