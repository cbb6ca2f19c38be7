"""The effects: processes, git, files, GitHub, the clock, the console."""
