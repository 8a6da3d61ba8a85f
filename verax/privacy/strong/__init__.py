"""Adversary A1 of "shuffling and batch clipping", who knows where the group's records fell."""

from verax.privacy.strong.curve import StrongAnalysis, StrongCurve, strong_analysis, strong_tradeoff

__all__ = ["StrongAnalysis", "StrongCurve", "strong_analysis", "strong_tradeoff"]
