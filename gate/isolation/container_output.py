"""What a container prints, taken apart: the engine sends both streams through one socket."""

from __future__ import annotations

from collections.abc import Iterator

HEADER_BYTES = 8


class Frames:
    """Output without the headers of the engine's stream; a header or its data may come in pieces.

    A header is one byte for the stream, three of zero, and the length of its data, big endian
    (Engine API, `POST /containers/{id}/attach`).
    """

    def __init__(self) -> None:
        self._header = b""
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The output in the next piece of the stream, in order."""
        at = 0
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                self._missing -= len(piece)
                yield piece
            else:
                piece = data[at : at + HEADER_BYTES - len(self._header)]
                self._header += piece
            at += len(piece)
            if len(self._header) == HEADER_BYTES:
                self._missing = int.from_bytes(self._header[4:], "big")
                self._header = b""
