"""Phrases that many sentences share: a number with its noun, a list of words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 tensor`, `2,048 tensors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


MOST_RANKS = 4


def without_pydantic(message: str) -> str:
    """What pydantic says of a value, for whoever typed it."""
    plain = message.replace("Value error, ", "").replace("Input should be", "must be")
    return plain.partition(", unable to parse ")[0]


def rank_words(ranks: Sequence[int]) -> str:
    """Return `rank 1`, `ranks 1 and 3`, or the first of many: `ranks 1, 2, 3, 4 and 12 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    rest = len(ranks) - MOST_RANKS
    shown = [str(rank) for rank in ranks[:MOST_RANKS]] + ([f"{rest} more"] if rest > 0 else [])
    return f"ranks {joined(shown)}"


def joined(words: Iterable[str]) -> str:
    """Return `a, b and c`; a single word stays as it is. `words` must not be empty."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def key_path(location: tuple[str | int, ...]) -> str:
    """Return a key's path as messages show it: `a.b[0].c`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part[:80]}"
    return text.removeprefix(".") or "(the whole file)"
