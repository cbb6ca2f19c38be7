"""Pickles interpreted as data: nothing is imported, nothing is called."""
