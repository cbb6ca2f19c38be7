"""The committed baseline: choose an entry, compare its provenance, render it."""
