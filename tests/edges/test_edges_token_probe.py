from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gate.edges.token_probe import probe_token
from gate.records.doctor import TokenSeen

TOKEN = "a-token-of-the-test"


class Api:
    """An API that knows one token, and says of each comment whether it has a text."""

    def __init__(self, *, may_comment: bool = True) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.written: list[bytes] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if may_comment and b'"body"' in body:
                    api.written.append(body)
                self._answer(422 if may_comment else 403, body)

            def _answer(self, status: int, body: bytes) -> None:
                api.seen.append((self.command, self.path, body))
                known = self.headers["Authorization"] == f"Bearer {TOKEN}"
                self.send_response(status if known else 401)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/v3"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


def test_a_token_that_may_comment_is_known_without_a_comment(api: Api) -> None:
    assert probe_token(api.url, "org/repo", TOKEN, number=7) == TokenSeen(
        repository_status=200, comment_status=422
    )
    assert api.seen == [
        ("GET", "/api/v3/repos/org/repo", b""),
        ("POST", "/api/v3/repos/org/repo/issues/7/comments", b"{}"),
    ]
    assert api.written == []


def test_a_token_that_may_only_read_is_known() -> None:
    api = Api(may_comment=False)
    try:
        assert probe_token(api.url, "org/repo", TOKEN, number=7).comment_status == 403
    finally:
        api.close()


def test_nothing_is_posted_away_from_a_pull_request(api: Api) -> None:
    assert probe_token(api.url, "org/repo", TOKEN).comment_status == 0
    assert [method for method, _, _ in api.seen] == ["GET"]


def test_an_unknown_token_is_told_by_its_status(api: Api) -> None:
    assert probe_token(api.url, "org/repo", "another").repository_status == 401


def test_a_token_never_stands_in_a_problem() -> None:
    seen = probe_token("http://127.0.0.1:9", "org/repo", TOKEN, answer_seconds=5)
    assert seen.problem == "the API could not be reached (ConnectionError)"


@pytest.mark.parametrize(("url", "token"), [("ftp://x", TOKEN), ("http://x", "a\nb")])
def test_what_is_no_address_and_no_token_is_not_sent(url: str, token: str) -> None:
    assert " no " in probe_token(url, "org/repo", token).problem
