"""Words and tables about what was measured."""
