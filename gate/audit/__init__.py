"""Audits: what a number is based on, in a repository or a package."""
