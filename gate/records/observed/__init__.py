"""What was seen of a run: evidence, fingerprints, overrides, operators, subprocesses."""
