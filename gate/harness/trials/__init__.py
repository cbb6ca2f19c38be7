"""What the harness does in a run that tries one setting, for a diagnosis."""
