"""Output: bounded in memory and in lines, and never changed otherwise."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gate.isolation.training_output import LINE_LIMIT_BYTES, LineFeed, OutputCapture


@given(st.lists(st.binary(max_size=50)), st.integers(2, 64))
def test_what_is_kept_is_the_head_and_the_tail(pieces: list[bytes], limit: int) -> None:
    capture = OutputCapture(limit)
    for piece in pieces:
        capture.feed(piece)
    whole = b"".join(pieces)
    cut = len(whole) - limit
    marker = b"\n[... %d bytes left out ...]\n" % cut
    tail = whole[limit // 2 + max(cut, 0) :]
    assert capture.total_bytes == len(whole)
    assert capture.content() == (whole[: limit // 2] + marker + tail if cut > 0 else whole)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_lines_do_not_depend_on_how_they_come(text: bytes, cuts: list[int]) -> None:
    shown: list[bytes] = []
    feed = LineFeed(shown.append)
    adapters = sorted({0, *cuts, len(text)})
    for start, end in pairwise(adapters):
        feed.feed(text[start:end])
    feed.finish()
    expected = [line for line in text.replace(b"\r", b"\n").split(b"\n") if line][:200]
    assert shown[: len(expected)] == expected[:200]


def test_a_long_line_is_cut() -> None:
    shown: list[bytes] = []
    feed = LineFeed(shown.append)
    for _ in range(10):
        feed.feed(b"x" * 3000)
    feed.feed(b"\nnext\n")
    feed.finish()
    assert shown == [b"x" * LINE_LIMIT_BYTES, b"next"]


def test_lines_come_again_when_the_flood_is_over() -> None:
    shown: list[bytes] = []
    times = iter([0.0, 0.0, 0.0, 10.0])
    feed = LineFeed(shown.append, clock=lambda: next(times))
    feed.feed(b"a\n" * 250)
    feed.feed(b"b\n" * 5)
    feed.feed(b"c\n")
    assert shown[199:] == [b"a", b"[... 55 lines not shown ...]", b"c"]


def test_empty_lines_are_not_shown(lines: list[bytes]) -> None:
    feed = LineFeed(lines.append)
    feed.feed(b"\n\r\n\na\r\n\r\nb")
    feed.finish()
    feed.finish()
    assert lines == [b"a", b"b"]
