"""Verdicts of all gates: their history, service levels and metrics."""
