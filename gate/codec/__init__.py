"""Canonical text and digests: strict parsing in, deterministic bytes out."""
