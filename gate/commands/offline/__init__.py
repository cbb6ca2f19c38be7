"""Commands that look at what is there, and run nothing of it."""
