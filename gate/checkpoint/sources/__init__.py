"""Bytes of untrusted files, read within bounds."""
