"""Declared data: where it lies, what was listed of it, and how it moved."""
