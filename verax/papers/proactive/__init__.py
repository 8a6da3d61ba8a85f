"""'Proactive DP' (van Dijk et al.): tables 6 to 11, next to ours, and why they differ."""

from verax.papers.proactive.tables import reproduce

__all__ = ["reproduce"]
