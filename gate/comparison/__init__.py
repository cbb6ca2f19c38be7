"""Two results compared; levels, cost and noise."""
