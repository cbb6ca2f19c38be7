"""A real HTTP server of Git LFS that serves objects.

https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class LfsServer:
    """A server on a free port; `asked` has path and Authorization header of each request."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.asked: list[tuple[str, str]] = []
        handler = type("Bound", (_Answer,), {"server_of_test": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answer(BaseHTTPRequestHandler):
    server_of_test: LfsServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._note()
        self._answer(self.server_of_test.objects[self.path.rpartition("/")[2]])

    def do_POST(self) -> None:
        self._note()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server_of_test
        rows = [
            {
                "oid": row["oid"],
                "size": row["size"],
                "actions": {"download": {"href": f"{server.url}/stored/{row['oid']}"}},
            }
            for row in asked["objects"]
        ]
        self._answer(json.dumps({"transfer": "basic", "objects": rows}).encode())

    def _note(self) -> None:
        self.server_of_test.asked.append((self.path, self.headers.get("Authorization", "")))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.git-lfs+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
