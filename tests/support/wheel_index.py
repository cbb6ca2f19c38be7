"""A package index over real HTTP that demands a login, and packages for it."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

SYMLINK = 0o120777


def wheel(
    name: str, version: str, members: Mapping[str, str], links: Mapping[str, str] | None = None
) -> bytes:
    """Return a wheel of pure Python; `links` are members that are marked as symbolic links."""
    about = f"{name}-{version}.dist-info"
    files = {
        **members,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        for path, target in (links or {}).items():
            entry = zipfile.ZipInfo(path)
            entry.create_system, entry.external_attr = 3, SYMLINK << 16
            archive.writestr(entry, target)
    return made.getvalue()


def sdist(name: str, version: str, setup: str) -> bytes:
    """Return a source archive, whose `setup.py` runs when it is built."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in (
            ("setup.py", setup),
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
        ):
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def sha256_of(data: bytes) -> str:
    """Return the hash of a file as lock files write it."""
    return hashlib.sha256(data).hexdigest()


class WheelIndex:
    """An index on a free port, with `files` by name; `asked` has the path of each request.

    `login` is `user:password`, or empty for an index without a login.
    """

    def __init__(self, files: Mapping[str, bytes], login: str = "") -> None:
        self.files = files
        self.login = login
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True
        )
        self.port = self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, login: str = "") -> str:
        """Return the address of the index, containing the login if one is given."""
        return f"http://{login}{'@' if login else ''}127.0.0.1:{self.port}/simple"


def _handler(index: WheelIndex) -> type[BaseHTTPRequestHandler]:
    wanted = "Basic " + base64.b64encode(index.login.encode()).decode()

    class Answer(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Log nothing into the test's output."""

        def do_GET(self) -> None:
            if index.login and self.headers.get("Authorization") != wanted:
                index.asked.append(f"refused {self.path}")
                self._send(401, b"", "text/plain")
                return
            index.asked.append(self.path)
            kind, name = [*self.path.strip("/").split("/"), "", ""][:2]
            if kind == "simple":
                links = (
                    f'<a href="/files/{file}#sha256={sha256_of(data)}">{file}</a>'
                    for file, data in index.files.items()
                    if file.startswith(f"{name}-")
                )
                self._send(200, "\n".join(links).encode(), "text/html")
            elif kind == "files" and name in index.files:
                self._send(200, index.files[name], "application/octet-stream")
            else:
                self._send(404, b"", "text/plain")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.end_headers()
            self.wfile.write(body)

    return Answer
