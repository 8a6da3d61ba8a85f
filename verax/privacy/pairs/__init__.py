"""Dominating pairs: two distributions whose privacy loss bounds that of a round."""
