"""A real HTTP server on this machine, whose answers a test chooses and may break."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import urlsplit

FOREVER: Final = 10**6


@dataclass
class Fault:
    """A planned answer to the next `times` requests with this method and this part of the path."""

    method: str
    part: str
    act: Callable[[Handler], None]
    times: int = FOREVER


@dataclass(frozen=True)
class Asked:
    """A request as the server received it."""

    method: str
    path: str
    authorization: str
    cookie: str = ""


class Handler(BaseHTTPRequestHandler):
    """Handles one request, which the double's `serve` answers."""

    double: WebDouble
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing into the test's output."""

    def handle(self) -> None:
        """Handle the connection; ignore a client that disconnects during an endless answer."""
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_any(self) -> None:
        double = self.double
        token = self.headers.get("Authorization", "")
        cookie = self.headers.get("Cookie", "")
        double.asked.append(Asked(self.command, self.path, token, cookie))
        self.close_connection = True
        for fault in double.faults:
            if fault.times and fault.method == self.command and fault.part in self.path:
                fault.times -= 1
                fault.act(self)
                return
        double.serve(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_any  # noqa: N815 - http.server's names

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Send a complete answer."""
        self.begin(status, **{"Content_Length": str(len(content)), **headers})
        if self.command != "HEAD":
            self.wfile.write(content)

    def begin(self, status: int, **headers: str) -> None:
        """Send the status line and the headers of an answer."""
        self.send_response(status)
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


class WebDouble:
    """A server on a free port; `asked` has all requests, and `faults` precede regular answers."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        bound = type("Bound", (Handler,), {"double": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True
        )
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.address}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, handler: Handler) -> None:
        """Answer one request; each double overrides this."""
        handler.answer(404)

    def paths(self, method: str) -> list[str]:
        """Return the paths that were requested with a method, in order."""
        return [urlsplit(one.path).path for one in self.asked if one.method == method]


def status(number: int, content: bytes = b"", **headers: str) -> Callable[[Handler], None]:
    """Return a fault that answers with a status and a body."""

    def act(handler: Handler) -> None:
        handler.body()
        handler.answer(number, content, **headers)

    return act


def cut(handler: Handler) -> None:
    """Send fewer bytes than the answer's Content-Length promises."""
    handler.body()
    handler.begin(200, Content_Length="1000")
    handler.wfile.write(b"begun")


def endless(handler: Handler) -> None:
    """Send an answer that never ends."""
    handler.body()
    handler.begin(200)
    while True:
        handler.wfile.write(b"x" * 65536)


def dripping(handler: Handler) -> None:
    """Send an endless answer byte by byte, so that no time-out between bytes applies."""
    handler.body()
    handler.begin(200)
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.01)


def leading(location: str) -> Callable[[Handler], None]:
    """Return a fault that redirects to `location`, with a cookie and an endless body."""

    def act(handler: Handler) -> None:
        handler.begin(302, Location=location, Set_Cookie="session=hush; Path=/")
        while True:
            handler.wfile.write(b"x" * 65536)

    return act


def silent(released: threading.Event) -> Callable[[Handler], None]:
    """Return a fault that does not answer until the test sets `released`."""

    def act(handler: Handler) -> None:
        released.wait(60)
        handler.answer(503)

    return act
