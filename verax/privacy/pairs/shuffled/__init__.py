"""One epoch of shuffled batches: a pair that dominates it, and attacks (docs/shuffle.md)."""
