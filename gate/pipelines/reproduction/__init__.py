"""A package is run again, and judged by its own numbers."""
