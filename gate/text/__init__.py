"""Strict parsers of JSON, YAML and TOML, digests, and untrusted text made safe to show."""
