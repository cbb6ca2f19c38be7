"""GitHub's issue comments, played by a real HTTP server on this machine.

It keeps comments, pages them with Link headers, and fails when told to:

    with FakeGitHub() as github:
        github.fail_next("POST", Failure.REFUSED)
        GitHubComments(api_url=github.api_url, repository="org/repo", number=7, token=github.token)
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import SplitResult, parse_qs, urlsplit

TOKEN: Final = "a-token-of-the-test"
BOT: Final = "github-actions[bot]"
MAX_BODY_CHARACTERS: Final = 65_536
LIST_PATH = re.compile(r"/repos/(?P<repository>[^/]+/[^/]+)/issues/(?P<number>\d+)/comments")
PULLS_PATH = re.compile(r"/repos/[^/]+/[^/]+/pulls")
ONE_PATH = re.compile(r"/repos/[^/]+/[^/]+/issues/comments/(?P<id>\d+)")


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """An answer told beforehand; status 0 cuts the connection without one.

    `stores` carries the request out first. `silent_seconds` lets the client wait.
    """

    status: int = 0
    content: object = None
    headers: tuple[tuple[str, str], ...] = ()
    stores: bool = False
    silent_seconds: float = 0.0


class Failure(Enum):
    """What can go wrong, as GitHub or the network does it."""

    UNAUTHORISED = Scripted(status=401, content={"message": "Bad credentials"})
    REFUSED = Scripted(status=403, content={"message": "Resource not accessible by integration"})
    QUOTA_EMPTY = Scripted(status=403, headers=(("X-RateLimit-Remaining", "0"),))
    NOT_FOUND = Scripted(status=404, content={"message": "Not Found"})
    GONE = Scripted(status=410, content={"message": "Issues are disabled for this repo"})
    TEAPOT = Scripted(status=418, content={"message": ["no", "text"]})
    TEAPOT_LIST = Scripted(status=418, content=["no", "object"])
    TEAPOT_TEXT = Scripted(status=418, content="no JSON")
    RATE_LIMITED = Scripted(status=429, headers=(("Retry-After", "0"),))
    SERVER_ERROR = Scripted(status=500, content={"message": "Server Error"})
    BAD_GATEWAY_AFTER_STORING = Scripted(status=502, stores=True)
    CUT = Scripted()
    CUT_AFTER_STORING = Scripted(stores=True)
    SILENT = Scripted(silent_seconds=0.3)
    MOVED_HERE = Scripted(status=307, headers=(("Location", "{path}"),))
    MOVED_TO_ANOTHER_HOST = Scripted(
        status=301, headers=(("Location", "http://elsewhere.invalid/repos"),)
    )
    NOT_JSON = Scripted(status=200, content="<html>a page to sign in</html>")
    SAME_PAGE_AGAIN = Scripted(status=200, content=[], headers=(("Link", '<{url}>; rel="next"'),))


@dataclass(kw_only=True)
class StoredComment:
    """A comment as the server keeps it."""

    comment_id: int
    number: int
    author: str | None
    body: str


@dataclass(frozen=True, kw_only=True)
class SeenRequest:
    """A request that came in."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class _State:
    token: str
    prefix: str
    comments: list[StoredComment] = field(default_factory=list)
    pulls: list[object] = field(default_factory=list)
    failures: dict[str, deque[Failure]] = field(default_factory=dict)
    requests: list[SeenRequest] = field(default_factory=list)
    next_id: int = 1001
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeGitHub:
    """A server on a free port of this machine; `prefix` plays an Enterprise server's path."""

    def __init__(self, *, prefix: str = "", token: str = TOKEN, address: str = "127.0.0.1") -> None:
        self._state = _State(token=token, prefix=prefix)
        handler = type("Handler", (_Handler,), {"state": self._state})
        self._address = address
        self._server = ThreadingHTTPServer((address, 0), handler)
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
    def api_url(self) -> str:
        """What GITHUB_API_URL would say."""
        return f"http://{self._address}:{self._server.server_port}{self._state.prefix}"

    @property
    def token(self) -> str:
        """The only token that the server accepts."""
        return self._state.token

    @property
    def comments(self) -> tuple[StoredComment, ...]:
        """All comments that there are."""
        return tuple(self._state.comments)

    @property
    def requests(self) -> tuple[SeenRequest, ...]:
        """All requests so far."""
        return tuple(self._state.requests)

    def methods(self) -> list[str]:
        """The methods of all requests so far."""
        return [request.method for request in self._state.requests]

    def add(self, body: str, *, author: str | None = "a-person", number: int = 7) -> StoredComment:
        """Put a comment there, as somebody else would."""
        with self._state.lock:
            return _store(self._state, number, author, body)

    def open_pull(self, *, number: int, head: str, base: str, fork: str = "o/model") -> None:
        """Put an open pull request there; the filter by branch is the client's business."""
        sides = {"head": (head, fork), "base": (base, "o/model")}
        told = {
            name: {"sha": sha, "repo": {"full_name": repo}} for name, (sha, repo) in sides.items()
        }
        self._state.pulls.append({"number": number, **told})

    def fail_next(self, method: str, *failures: Failure) -> None:
        """Let the next requests with this method fail, one after the other."""
        self._state.failures.setdefault(method, deque()).extend(failures)


def _store(state: _State, number: int, author: str | None, body: str) -> StoredComment:
    comment = StoredComment(comment_id=state.next_id, number=number, author=author, body=body)
    state.next_id += 1
    state.comments.append(comment)
    return comment


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection; HTTP/1.1, so that a client can keep it open."""

    state: _State
    protocol_version = "HTTP/1.1"
    # one write an answer: two small ones would wait for each other on the loopback
    wbufsize = -1

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Stay silent: a test's output is for the test."""

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def _handle(self, method: str) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length) or b"{}").get("body", "")
        with self.state.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.state.requests.append(SeenRequest(method=method, path=self.path, headers=headers))
            planned = self.state.failures.get(method)
            failure = planned.popleft() if planned else None
            if failure is None:
                self._answer(*self._carried_out(method, body))
                return
            if failure.value.stores:
                self._carried_out(method, body)
        self._play(failure.value)

    def _play(self, script: Scripted) -> None:
        time.sleep(script.silent_seconds)
        if script.status == 0:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        places = {"path": self.path, "url": f"http://{self.headers['Host']}{self.path}"}
        headers = {name: value.format(**places) for name, value in script.headers}
        self._answer(script.status, script.content, headers)

    def _carried_out(self, method: str, body: str) -> tuple[int, object, dict[str, str]]:
        if self.headers.get("Authorization") != f"Bearer {self.state.token}":
            return 401, {"message": "Bad credentials"}, {}
        parts = urlsplit(self.path.removeprefix(self.state.prefix))
        if PULLS_PATH.fullmatch(parts.path):
            return 200, self.state.pulls, {}
        return self._commented(method, parts, body)

    def _commented(
        self, method: str, parts: SplitResult, body: str
    ) -> tuple[int, object, dict[str, str]]:
        many, one = LIST_PATH.fullmatch(parts.path), ONE_PATH.fullmatch(parts.path)
        if method == "GET" and many:
            return self._page(many, parts.query)
        if len(body) > MAX_BODY_CHARACTERS:
            return 422, {"message": "Validation Failed: body is too long"}, {}
        if method == "POST" and many:
            return 201, self._shown(_store(self.state, int(many["number"]), BOT, body)), {}
        for comment in self.state.comments:
            if method == "PATCH" and one and comment.comment_id == int(one["id"]):
                comment.body = body
                return 200, self._shown(comment), {}
        return 404, {"message": "Not Found"}, {}

    def _page(self, path: re.Match[str], query: str) -> tuple[int, object, dict[str, str]]:
        asked = parse_qs(query)
        size, page = int(asked.get("per_page", ["30"])[0]), int(asked.get("page", ["1"])[0])
        mine = [one for one in self.state.comments if one.number == int(path["number"])]
        shown = [self._shown(one) for one in mine[(page - 1) * size : page * size]]
        if page * size >= len(mine):
            return 200, shown, {}
        url = f"http://{self.headers['Host']}{self.state.prefix}{path.group()}"
        return 200, shown, {"Link": f'<{url}?per_page={size}&page={page + 1}>; rel="next"'}

    def _shown(self, comment: StoredComment) -> dict[str, object]:
        url = f"https://github.example/pull/{comment.number}#issuecomment-{comment.comment_id}"
        user = None if comment.author is None else {"login": comment.author}
        return {"id": comment.comment_id, "html_url": url, "body": comment.body, "user": user}

    def _answer(self, status: int, content: object, headers: dict[str, str]) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
