"""Files: read without trust, written without following a link."""
