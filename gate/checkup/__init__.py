"""What `repro-gate doctor` makes of the facts: pure functions from facts to findings."""
