"""'How private is DP-SGD?' (Chua et al., ICML 2024, arXiv 2403.17673): figures and numbers."""

from verax.papers.how_private.figures import reproduce

__all__ = ["reproduce"]
