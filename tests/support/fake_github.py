"""A fake of GitHub's API: a real HTTP server on this machine.

It stores comments, statuses, artifacts and branches, and fails on request:

    with FakeGitHub() as github:
        github.fail_next("POST", Failure.REFUSED)
        GitHubComments(api_url=github.api_url, repository="org/repo", number=7, token=github.token)
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import ssl
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from github_artifacts import Artifacts, StoredArtifact
from github_branches import Branches
from github_failures import Failure, Scripted
from github_records import SeenRequest, StoredComment

TOKEN: Final = "ghs_a-token-of-the-test"
BOT: Final = "github-actions[bot]"
MAX_BODY_CHARACTERS: Final = 65_536
LIST_PATH = re.compile(r"/repos/(?P<repository>[^/]+/[^/]+)/issues/(?P<number>\d+)/comments")
REPOSITORY_PATH = re.compile(r"/repos/[^/]+/[^/]+")
PULLS_PATH = re.compile(r"/repos/[^/]+/[^/]+/pulls")
STATUS_PATH = re.compile(r"/repos/[^/]+/[^/]+/statuses/(?P<commit>[0-9a-f]{40})")
DRIP_SECONDS: Final = 0.02
ONE_PATH = re.compile(r"/repos/[^/]+/[^/]+/issues/comments/(?P<id>\d+)")


@dataclass
class _State:
    token: str
    prefix: str
    person: str | None
    statuses: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    comments: list[StoredComment] = field(default_factory=list)
    pulls: list[object] = field(default_factory=list)
    artifacts: Artifacts = field(default_factory=Artifacts)
    branches: Branches = field(default_factory=Branches)
    failures: dict[str, deque[Failure]] = field(default_factory=dict)
    requests: list[SeenRequest] = field(default_factory=list)
    next_id: int = 1001
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeGitHub:
    """A server on a free port; `prefix` is the path of an Enterprise server's API.

    `person` is the owner of the token. Without one it is the token of a job.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        token: str = TOKEN,
        person: str | None = None,
        tls: ssl.SSLContext | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self._state = _State(token=token, prefix=prefix, person=person)
        handler = type("Handler", (_Handler,), {"state": self._state})
        self._address = address
        self._server = ThreadingHTTPServer((address, 0), handler)
        self._server.daemon_threads = True
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
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
        """The API's address, as in GITHUB_API_URL."""
        return self.origin + self._state.prefix

    @property
    def origin(self) -> str:
        """The server's scheme, host and port."""
        return f"{self._scheme}://{self._address}:{self._server.server_port}"

    @property
    def token(self) -> str:
        """The only token that the server accepts."""
        return self._state.token

    @property
    def comments(self) -> tuple[StoredComment, ...]:
        """All comments, oldest first."""
        return tuple(self._state.comments)

    def statuses(self, commit: str) -> tuple[dict[str, str], ...]:
        """The statuses of a commit, the newest last."""
        return tuple(self._state.statuses.get(commit, ()))

    @property
    def requests(self) -> tuple[SeenRequest, ...]:
        """All requests so far."""
        return tuple(self._state.requests)

    def methods(self) -> list[str]:
        """The methods of all requests so far."""
        return [request.method for request in self._state.requests]

    def add(self, body: str, *, author: str | None = "a-person", number: int = 7) -> StoredComment:
        """Add a comment by another author; None is a deleted account."""
        with self._state.lock:
            return _store(self._state, number, author, body)

    @property
    def artifacts(self) -> Artifacts:
        """The artifacts of all runs."""
        return self._state.artifacts

    @property
    def branches(self) -> Branches:
        """The branches of the repository."""
        return self._state.branches

    def add_artifact(self, archive: bytes, *, run: int = 4711, name: str = "repro-gate") -> None:
        """Add an artifact, as a workflow would upload it."""
        self.artifacts.add(StoredArtifact(run=run, name=name, archive=archive))

    def open_pull(
        self, *, number: int, head: str, base: str, fork: str = "o/model", into: str = "main"
    ) -> None:
        """Add an open pull request.

        The list ignores the filter by branch, so that tests see whether the client checks it.
        """
        sides = {"head": (head, "side", fork), "base": (base, into, "o/model")}
        told = {
            name: {"sha": sha, "ref": ref, "repo": {"full_name": repo}}
            for name, (sha, ref, repo) in sides.items()
        }
        self._state.pulls.append({"number": number, **told})

    def fail_next(self, method: str, *failures: Failure) -> None:
        """Make the next requests with this method fail, one for each failure."""
        self._state.failures.setdefault(method, deque()).extend(failures)


def _store(state: _State, number: int, author: str | None, body: str) -> StoredComment:
    comment = StoredComment(comment_id=state.next_id, number=number, author=author, body=body)
    state.next_id += 1
    state.comments.append(comment)
    return comment


def _seconds(moment: str) -> float:
    return datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S%z").timestamp()


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; HTTP/1.1, so that a client can keep it open."""

    state: _State
    protocol_version = "HTTP/1.1"
    # Buffer an answer into one write: with two small ones, Nagle's algorithm and delayed
    # acknowledgements would wait for each other, even on loopback.
    wbufsize = -1

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing into the test's output."""

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def _handle(self, method: str) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body: dict[str, str] = json.loads(sent or b"{}")
        with self.state.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = SeenRequest(method=method, path=self.path, headers=headers, body=sent)
            self.state.requests.append(seen)
            planned = self.state.failures.get(method)
            failure = planned.popleft() if planned else None
            stored = self.state.artifacts.stored(self.headers["Host"], self.path)
            if stored is not None:
                self._send(stored[0], stored[1], {})
                return
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
        if script.dripping:
            self._drip(script.status)
            return
        if script.broken_off:
            headers["Content-Length"] = "1000"
            self.close_connection = True
        content = script.content
        if isinstance(content, str):
            content *= script.repeated
        self._answer(script.status, content, headers)

    def _drip(self, status: int) -> None:
        """Send ten thousand bytes one by one, until the client disconnects."""
        self.send_response(status)
        self.send_header("Content-Length", "10000")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(DRIP_SECONDS)

    def _carried_out(self, method: str, body: dict[str, str]) -> tuple[int, object, dict[str, str]]:
        if self.headers.get("Authorization") != f"Bearer {self.state.token}":
            return 401, {"message": "Bad credentials"}, {}
        parts = urlsplit(self.path.removeprefix(self.state.prefix))
        many = LIST_PATH.fullmatch(parts.path)
        if method == "GET" and many:
            return self._page(many, parts.query)
        if REPOSITORY_PATH.fullmatch(parts.path):
            return 200, {}, {}
        if PULLS_PATH.fullmatch(parts.path):
            return 200, self.state.pulls, {}
        port = self.headers["Host"].partition(":")[2]
        kept = self.state.branches.answer(
            method, parts.path, parts.query, body
        ) or self.state.artifacts.answer(parts.path, port)
        if method == "GET" and parts.path == "/user":
            return self._who()
        return kept or self._written(method, parts.path, body)

    def _written(
        self, method: str, path: str, body: dict[str, str]
    ) -> tuple[int, object, dict[str, str]]:
        status, many = STATUS_PATH.fullmatch(path), LIST_PATH.fullmatch(path)
        if method == "POST" and status:
            self.state.statuses.setdefault(status["commit"], []).append(body)
            return 201, body, {}
        if "body" not in body:
            return 422, {"message": 'Invalid request. "body" wasn\'t supplied.'}, {}
        text = body["body"]
        if len(text) > MAX_BODY_CHARACTERS:
            return 422, {"message": "Validation Failed: body is too long"}, {}
        if method == "POST" and many:
            author = self.state.person or BOT
            return 201, self._shown(_store(self.state, int(many["number"]), author, text)), {}
        one = ONE_PATH.fullmatch(path) if method == "PATCH" else None
        for comment in self.state.comments:
            if one and comment.comment_id == int(one["id"]):
                comment.body, comment.updated_at = text, time.time()
                return 200, self._shown(comment), {}
        return 404, {"message": "Not Found"}, {}

    def _who(self) -> tuple[int, object, dict[str, str]]:
        if self.state.person is None:
            return 403, {"message": "Resource not accessible by integration"}, {}
        return 200, {"login": self.state.person}, {}

    def _page(self, path: re.Match[str], query: str) -> tuple[int, object, dict[str, str]]:
        asked = parse_qs(query)
        size, page = int(asked.get("per_page", ["30"])[0]), int(asked.get("page", ["1"])[0])
        mine = [one for one in self.state.comments if one.number == int(path["number"])]
        if "since" in asked:
            since = _seconds(asked["since"][0])
            mine = [one for one in mine if one.updated_at >= since]
        shown = [self._shown(one) for one in mine[(page - 1) * size : page * size]]
        if page * size >= len(mine):
            return 200, shown, {}
        url = f"http://{self.headers['Host']}{self.state.prefix}{path.group()}"
        kept = "".join(f"&{name}={asked[name][0]}" for name in ("since",) if name in asked)
        return 200, shown, {"Link": f'<{url}?per_page={size}{kept}&page={page + 1}>; rel="next"'}

    def _shown(self, comment: StoredComment) -> dict[str, object]:
        url = f"https://github.example/pull/{comment.number}#issuecomment-{comment.comment_id}"
        user = None if comment.author is None else {"login": comment.author}
        return {"id": comment.comment_id, "html_url": url, "body": comment.body, "user": user}

    def _answer(self, status: int, content: object, headers: dict[str, str]) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            # GitHub compresses answers too
            data = gzip.compress(data, 1)
            headers = {"Content-Encoding": "gzip"} | headers
        self._send(status, data, headers)

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
