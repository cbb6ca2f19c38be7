"""The keys of a trust file for a terminal of 80 columns: one row a key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from gate.package.seal_records import KeyStatus, TrustedKey, TrustedKeys
from gate.report.escape import clean
from gate.text.untrusted_text import safe_line

HEADINGS: Final = ("id", "algorithm", "state", "since (UTC)", "comment")
ALGORITHMS: Final = {"PKIX_ECDSA_P256_SHA_256": "P-256", "PKIX_ED25519": "Ed25519"}
SHOWN_ID_CHARACTERS = 16
WIDTH = 80
# Cells that a comment gets however long the ids are.
MIN_COMMENT_CELLS = 10


def keys_view(document: TrustedKeys) -> Text:
    """Keys by id; of an id as much as tells it from the others, of the texts what fits."""
    if not document.keys:
        return Text("No keys.")
    length = _id_length([key.key_id for key in document.keys])
    keys = sorted(document.keys, key=lambda each: each.key_id)
    rows = [HEADINGS, *(_row(key, length) for key in keys)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(HEADINGS) - 1)]
    return Text("\n").join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> Text:
    *facts, comment = row
    line = "".join(f"{fact:<{width}}  " for fact, width in zip(facts, widths, strict=True))
    shown = Text(comment)
    # in cells, of which a character of Chinese takes two
    shown.truncate(max(WIDTH - len(line), MIN_COMMENT_CELLS), overflow="ellipsis")
    return Text((line + shown.plain).rstrip())


def _row(key: TrustedKey, length: int) -> tuple[str, ...]:
    texts = (clean(text) for text in (key.comment, key.reason) if text)
    return (
        key.key_id[:length],
        ALGORITHMS[key.key_details],
        key.status.value,
        datetime.fromisoformat(_since(key)).astimezone(UTC).strftime("%Y-%m-%d %H:%M"),
        # whoever wrote them: a terminal and the log of a job obey nothing of them
        safe_line("; ".join(texts)),
    )


def _since(key: TrustedKey) -> str:
    """The time at which the key came into its state."""
    if key.status is KeyStatus.REVOKED:
        return key.revoked_at or key.added_at
    return key.retired_at or key.added_at


def _id_length(ids: list[str]) -> int:
    """As many characters as tell every two ids apart, 16 at least."""
    lengths = range(SHOWN_ID_CHARACTERS, max(map(len, ids)) + 1)
    return next(n for n in lengths if len({one[:n] for one in ids}) == len(ids))
