"""Read any saved state as named leaves, and compute their digests; a library of its own."""
