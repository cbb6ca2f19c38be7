"""Any saved training state as named leaves, and their digests, without running any of it."""
