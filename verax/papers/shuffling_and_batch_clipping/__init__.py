"""'Generalizing DP-SGD with shuffling and batch clipping' (van Dijk et al.): tables and errata."""

from verax.papers.shuffling_and_batch_clipping.tables import reproduce

__all__ = ["reproduce"]
