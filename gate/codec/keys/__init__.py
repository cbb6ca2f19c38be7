"""The forms of keys: where one is, and the bytes of its file."""
