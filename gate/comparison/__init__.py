"""Two results in, differences out: values, never verdicts."""
