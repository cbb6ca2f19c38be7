"""The committed baseline: entries, selection, acceptance."""
