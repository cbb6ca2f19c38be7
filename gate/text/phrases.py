"""Phrases that every sentence for a reader is made of: a number with its noun, a list of words."""

from __future__ import annotations

from collections.abc import Iterable


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 tensor`, `2,048 tensors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def joined(words: Iterable[str]) -> str:
    """`a, b and c`; of one word that word."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last
