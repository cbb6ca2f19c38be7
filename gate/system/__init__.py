"""Files, git, GitHub, HTTP, clock, console: the machine and the services, and nothing of a gate."""
