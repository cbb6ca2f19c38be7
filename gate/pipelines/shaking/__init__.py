"""What a result depends on that it should not: one thing varied in each run."""
