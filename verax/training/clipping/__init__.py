"""Clipped sums of a batch: of each record, of the whole batch, or of clip-groups."""
