"""The ways from a request to a result; each reads top to bottom."""
