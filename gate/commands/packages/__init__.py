"""Verbs about packages that were made already."""
