"""Files for the start of a run; the launcher copies each to its place in the run's folder."""
