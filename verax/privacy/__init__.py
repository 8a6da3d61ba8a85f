"""What a run costs: proved brackets on its privacy. numpy and scipy only."""
