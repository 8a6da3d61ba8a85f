"""Secret randomness for private runs: noise and sampling from a cryptographic generator."""

from verax.randomness.source import Source

__all__ = ["Source"]
