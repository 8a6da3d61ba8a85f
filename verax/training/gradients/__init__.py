"""Per-example gradients: layer rules, hooks, and norms and sums of factored gradients."""
