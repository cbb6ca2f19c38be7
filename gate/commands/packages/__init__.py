"""Verbs about packages, their keys, and what a repository's numbers rest on."""
