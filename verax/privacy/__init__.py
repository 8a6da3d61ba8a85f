"""What a run costs: proved brackets on its privacy. numpy and scipy only."""

from verax.privacy import samplers

__all__ = ["samplers"]  # importing it registers what every sampler costs
