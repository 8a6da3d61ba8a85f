"""Privacy loss distributions: discretised, composed by convolution, bounded without it."""
