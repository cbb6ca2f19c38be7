"""Frozen data that the packages exchange."""
