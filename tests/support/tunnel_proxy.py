"""An HTTPS proxy that connects two ends (CONNECT, RFC 9110) and records its requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Self


class TunnelProxy:
    """A proxy on a free port of this machine; with `refuses` it denies every request."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.heads: list[str] = []
        members = {"heads": self.heads, "refuses": refuses}
        self._server = ThreadingTCPServer(("127.0.0.1", 0), type("Handler", (_Handler,), members))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The proxy's address, as in HTTPS_PROXY."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Handler(StreamRequestHandler):
    heads: list[str]
    refuses: bool

    def handle(self) -> None:
        head = b""
        while line := self.rfile.readline(4096).strip():
            head += line + b"\n"
        self.heads.append(head.decode())
        if self.refuses:
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
            back.start()
            _pump(self.connection, far)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes from one socket to the other until either is closed."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
