"""Operators without a deterministic form, refused or counted, with the line that called them."""
