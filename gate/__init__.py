"""repro-gate: a reproducibility gate for training code on pull requests."""
