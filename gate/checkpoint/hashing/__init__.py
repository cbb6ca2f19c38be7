"""Digests of leaves and of states."""
