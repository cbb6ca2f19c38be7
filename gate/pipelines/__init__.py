"""The data flows, each to be read from top to bottom."""
