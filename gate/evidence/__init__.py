"""Read the files that a run left, as untrusted bytes, and turn them into records."""
