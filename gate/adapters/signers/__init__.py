"""Signing keys that are elsewhere: in a token, in a vault, behind a program."""
