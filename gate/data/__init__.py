"""Declared data: read pointers, fetch, list, and compute statistics."""
