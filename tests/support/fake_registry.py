"""A fake container registry on this machine: manifests by digest, public or behind a login."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"


class FakeRegistry:
    """The registry: its manifests, which of them are public, and requests without a token."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.private: set[str] = set()
        self.address = ""
        self.asked: list[str] = []
        # planned answers, a status and a body, in place of the regular ones
        self.broken: tuple[int, bytes] | None = None
        self.challenge = 'Bearer realm="http://{address}/token",service="here",scope="{scope}"'

    def put(self, name: str, platforms: tuple[str, ...]) -> str:
        """Add an index of images for these platforms; return its name by digest."""
        manifests = [
            {
                "digest": f"sha256:{'0' * 64}",
                "platform": dict(zip(("os", "architecture"), parts, strict=True)),
            }
            for parts in (platform.split("/") for platform in platforms)
        ]
        body = json.dumps({"mediaType": INDEX, "name": name, "manifests": manifests}).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[f"/v2/{name}/manifests/{digest}"] = body
        return f"{self.address}/{name}@{digest}"

    def answer(self, path: str, token: str) -> tuple[int, bytes, str]:
        """Return status, body and authentication challenge for a request."""
        self.asked.append(path)
        if self.broken:
            return (*self.broken, "")
        url = urlsplit(path)
        if url.path == "/token":
            (scope,) = parse_qs(url.query)["scope"]
            if scope.split(":")[1] in self.private:
                return 403, b'{"errors": [{"code": "DENIED"}]}', ""
            return 200, json.dumps({"token": f"for {scope}"}).encode(), ""
        name = path.removeprefix("/v2/").partition("/manifests/")[0]
        scope = f"repository:{name}:pull"
        if token != f"Bearer for {scope}":
            return 401, b"{}", self.challenge.format(address=self.address, scope=scope)
        body = self.manifests.get(path)
        return (404, b"{}", "") if body is None else (200, body, "")


@contextmanager
def registry() -> Iterator[FakeRegistry]:
    """Run a registry that answers at `address` until the end of the block."""
    state = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization", "")
            status, body, challenge = state.answer(self.path, token)
            self.send_response(status)
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing into the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
