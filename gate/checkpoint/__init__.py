"""Any saved state as named leaves and their digests: a library of its own."""
