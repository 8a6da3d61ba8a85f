"""'Privacy amplification via random participation' (Hasircioglu, Gündüz): figures, numbers."""

from verax.papers.random_participation.figures import reproduce

__all__ = ["reproduce"]
