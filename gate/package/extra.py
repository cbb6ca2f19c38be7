"""The extra `repro-gate[sigstore]`."""

from __future__ import annotations

from importlib.util import find_spec


def has_sigstore() -> bool:
    """Whether it is installed."""
    return find_spec("sigstore") is not None
