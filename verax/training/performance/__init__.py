"""The same numbers sooner: memory formats, allocation, pooling."""
