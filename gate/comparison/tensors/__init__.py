"""Saved tensors against each other, by their bytes and by their numbers."""
