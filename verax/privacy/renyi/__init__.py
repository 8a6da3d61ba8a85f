"""Rényi divergences: an accountant certified at every real order, and the privacy filter."""

from verax.privacy.renyi.accountant import (
    Renyi,
    delta_from_rdp,
    epsilon_from_rdp,
    log_moment,
    rdp_poisson,
    renyi_divergence,
)

__all__ = [
    "Renyi",
    "delta_from_rdp",
    "epsilon_from_rdp",
    "log_moment",
    "rdp_poisson",
    "renyi_divergence",
]
