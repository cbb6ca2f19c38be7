"""A real HTTP server with one file, which can cut, refuse, falsify or delay its answers."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

_FIRST: Final = re.compile(r"bytes=(\d+)-\Z")


class FileServer:
    """A server on a free port of this machine; `asked` has all requests.

    Each request uses the next of `behaviours`. When none is left, the file is sent.
    """

    def __init__(self, content: bytes, *, ranges: bool = True, tag: str = '"one"') -> None:
        self.content = content
        self.ranges = ranges
        self.tag = tag
        self.behaviours: deque[Behaviour] = deque()
        self.asked: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}/sets/mini.bin"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Answer(BaseHTTPRequestHandler):
    """One answer, with words for what servers do."""

    server_of_test: FileServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing into the test's output."""

    def do_GET(self) -> None:
        server = self.server_of_test
        server.asked.append({name.lower(): value for name, value in self.headers.items()})
        behaviour = server.behaviours.popleft() if server.behaviours else whole
        behaviour(self)
        self.close_connection = True

    def begin(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def serve(self, content: bytes, *, most: int | None = None) -> None:
        """Send the requested range of the file, cut after `most` bytes."""
        server = self.server_of_test
        found = _FIRST.match(self.headers.get("Range", ""))
        same = self.headers.get("If-Range", server.tag) == server.tag
        first = int(found[1]) if found and server.ranges and same else 0
        rest = content[first:]
        if first:
            span = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self.begin(206, len(rest), ETag=server.tag, Content_Range=span)
        else:
            self.begin(200, len(rest), ETag=server.tag)
        self.wfile.write(rest[:most])


Behaviour = Callable[[Answer], None]


def whole(answer: Answer) -> None:
    """Send what was requested."""
    answer.serve(answer.server_of_test.content)


def cut_after(size: int) -> Behaviour:
    """Return a behaviour that ends the connection after `size` bytes."""
    return lambda answer: answer.serve(answer.server_of_test.content, most=size)


def with_bytes(content: bytes) -> Behaviour:
    """Return a behaviour that sends other content."""
    return lambda answer: answer.serve(content)


def status(number: int, **headers: str) -> Behaviour:
    """Return a behaviour that sends a status instead of the file."""
    return lambda answer: answer.begin(number, 0, **headers)


def of_unknown_length(content: bytes) -> Behaviour:
    """Return a behaviour that sends no length, so that the content ends with the connection."""

    def behaviour(answer: Answer) -> None:
        answer.begin(200, None)
        answer.wfile.write(content)

    return behaviour


def _handler(server: FileServer) -> type[Answer]:
    return type("Bound", (Answer,), {"server_of_test": server})
