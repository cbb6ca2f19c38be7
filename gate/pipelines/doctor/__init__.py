"""The checks behind `repro-gate doctor`."""
