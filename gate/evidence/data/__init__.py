"""Declared data in the confined process: pointers of a commit, and simple statistics."""
