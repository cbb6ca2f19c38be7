"""The body of an answer, up to a size and within a time, however slowly it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from urllib3 import BaseHTTPResponse

from gate.errors import GateError


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyLimits:
    """How much of a body is taken, and what to raise for one that is larger or slower.

    `decoded`: the size counts what a compressed body becomes; else bytes are taken as they were
    sent.
    """

    piece_bytes: int
    max_bytes: int
    seconds: float
    monotonic: Callable[[], float]
    too_large: Callable[[], GateError]
    too_slow: Callable[[], GateError]
    decoded: bool = True


def bounded_pieces(response: BaseHTTPResponse, limits: BodyLimits) -> Iterator[bytes]:
    """The body in pieces; raises what `limits` says, and urllib3's `HTTPError` when cut off."""
    end = limits.monotonic() + limits.seconds
    taken = 0
    while piece := response.read1(limits.piece_bytes, decode_content=limits.decoded):
        taken += len(piece)
        if taken > limits.max_bytes:
            raise limits.too_large()
        # a body that drips in byte by byte is never silent, so no time limit of a socket ends it
        if limits.monotonic() > end:
            raise limits.too_slow()
        yield piece
