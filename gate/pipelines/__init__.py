"""The pipelines from a request to a result; each reads top to bottom."""
