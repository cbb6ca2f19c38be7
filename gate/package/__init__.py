"""Packages: statement, seals, keys, verification."""
