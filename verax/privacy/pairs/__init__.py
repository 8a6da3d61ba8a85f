"""Dominating pairs: two distributions of what an attacker sees of a round, whose privacy loss bounds the true one's."""
