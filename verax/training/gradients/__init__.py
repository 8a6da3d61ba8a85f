"""Per-example gradients: layer rules, hooks that watch a forward pass, and norms and sums from factored gradients."""
