"""The git repository, by its own program."""
