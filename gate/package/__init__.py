"""Reproducibility packages: archive, statements, seals, keys and verification."""
