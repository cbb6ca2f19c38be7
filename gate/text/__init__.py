"""Strict JSON and YAML, digests, untrusted text."""
