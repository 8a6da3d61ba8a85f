"""'Optimal group privacy for DP-SGD' (Mahloujifar et al., IEEE Data Eng. Bull.): its claims."""

from verax.papers.group_privacy.figures import reproduce

__all__ = ["reproduce"]
