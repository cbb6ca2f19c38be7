"""Runs of one call in their places: begun, let go together or ahead, ended."""
