"""What of the environment moved, in one phrase for a first sentence or a table's cell."""

from __future__ import annotations

from gate.comparison.differences import Comparison


def moved_words(comparison: Comparison | None, most: int) -> str:
    """The first `most` things by name, and how many of the packages they are.

    Packages stand last, so that their number follows them; what a part and a package say alike is
    said once.
    """
    if comparison is None:
        return ""
    changes = sorted(comparison.environment, key=lambda change: bool(change.details))
    packages = {words for change in changes for words in change.details}
    parts = (words for change in changes if not change.details for words in change.described)
    named = [
        *(words for words in dict.fromkeys(parts) if words not in packages),
        *(words for change in changes for words in change.details),
    ]
    rest = len(named) - most
    text = ", ".join(named[:most]) + (f" and {rest} more" if rest > 0 else "")
    share = "; ".join(change.share for change in changes if change.share)
    return f"{text} ({share})" if share else text
