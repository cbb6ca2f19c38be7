"""Interpret pickles as data: nothing is imported and nothing is called."""
