"""Declared data: pointers, fetch, list, statistics."""
