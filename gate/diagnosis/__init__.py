"""The first divergence and its cause."""
