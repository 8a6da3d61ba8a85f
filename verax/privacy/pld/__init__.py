"""Privacy loss distributions: discretise a pair's loss, compose rounds by convolution, and bounds that need none."""
