"""The numbers that a run logged, from the harness and from the script's own files."""
