"""Adversary A1 of "shuffling and batch clipping", who is told where the group's records fell."""

from verax.privacy.strong.curve import Strong, StrongCurve, Who, strong, strong_tradeoff

__all__ = ["Strong", "StrongCurve", "Who", "strong", "strong_tradeoff"]
