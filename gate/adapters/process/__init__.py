"""A child process: how it starts, what confines it, how it ends."""
