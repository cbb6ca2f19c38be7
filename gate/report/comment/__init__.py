"""What GitHub shows: the comment, the summary, outputs and status."""
