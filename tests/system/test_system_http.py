"""One table of laws for whoever asks a server: GitHub, its store, a registry or tracker, data."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from github_client import AT_ONCE, SleepClock
from web_double import (
    Fault,
    Handler,
    WebDouble,
    cut,
    dripping,
    endless,
    leading,
    silent,
    status,
)

from gate.data.web import Download, WebFile
from gate.errors import GateError
from gate.system.console import QuietProgress
from gate.system.github import artifacts
from gate.system.github.api import GitHubApi
from gate.system.http import RETRIES, Connection, HttpAnswer, HttpRequest, RetryPolicy
from gate.system.login import Login

SECRET = "hush-hush"
CONTENT = b'{"whole": true}'
ROOM = 1000


class Whole(WebDouble):
    """A server that gives what was asked for."""

    def serve(self, handler: Handler) -> None:
        handler.answer(200, CONTENT)


def github(url: str, policy: RetryPolicy, _: Path) -> bytes:
    with GitHubApi(url, "org/repo", SECRET, policy, {}) as api:
        return api.send("GET", api.repository_url).content


def store(url: str, policy: RetryPolicy, _: Path) -> bytes:
    sink = io.BytesIO()
    artifacts._download(f"{url}/store/1", sink, policy, encrypted=False)
    return sink.getvalue()


def service(url: str, policy: RetryPolicy, _: Path) -> bytes:
    with Connection("the service", url, policy) as connection:
        connection.log_in(Login.bearer(SECRET))
        return connection.ask(HttpRequest(method="GET", url=f"{url}/v2/x")).content


def data(url: str, policy: RetryPolicy, folder: Path) -> bytes:
    file = WebFile(
        entry="set.bin",
        url=f"{url}/set.bin",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        seconds=policy.answer_seconds,
        make_room=lambda _: ROOM,
    )
    return Download(file, QuietProgress(), policy).fetch(folder).read_bytes()


Client = Callable[[str, RetryPolicy, Path], bytes]
NETRC = "Basic cm9ib3Q6aHVzaC1odXNo"


@dataclass(frozen=True)
class Row:
    """A client: what its own address is shown, how often it asks, and its words."""

    client: Client
    shown: str
    tries: int
    cut: str
    large: str
    silence: str
    slow: str
    gone: str


ROWS = (
    Row(
        client=github,
        shown=f"Bearer {SECRET}",
        tries=RETRIES + 1,
        cut="the answer of {url} was cut off",
        large="GitHub's answer is larger than 64 MiB",
        silence="{url} did not answer within 0.05 s",
        slow="{url} did not answer within 0.05 s",
        gone="{url} could not be reached (ConnectionError)",
    ),
    Row(
        client=store,
        shown="",
        tries=RETRIES + 1,
        cut="the download from http://127.0.0.1 was cut off",
        large="the artifact is larger than 0 GiB",
        silence="http://127.0.0.1 did not answer within 0.05 s",
        slow="http://127.0.0.1 did not answer within 0.05 s",
        gone="http://127.0.0.1 could not be reached (ConnectionError)",
    ),
    Row(
        client=service,
        shown=f"Bearer {SECRET}",
        tries=RETRIES + 1,
        cut="the service closed the connection too early",
        large="the service sent more than 4,194,304 bytes",
        silence="the service did not answer within 0.05 s",
        slow="the service did not answer within 0 s",
        gone="the service cannot be reached",
    ),
    Row(
        client=data,
        shown=NETRC,
        tries=5,
        cut="data: set.bin: the answer was cut off, also when asked 5 times",
        large="data: set.bin: the download exceeds 1,000 bytes",
        silence="data: set.bin: the server did not answer, also when asked 5 times",
        slow="data: set.bin: not fetched within 0.05 s",
        gone="data: set.bin: the server cannot be reached, also when asked 5 times",
    ),
)
each = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.client.__name__)


@pytest.fixture
def server() -> Iterator[Whole]:
    with Whole() as running:
        yield running


@pytest.fixture(autouse=True)
def logins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login for every port of this machine, as `.netrc` has it."""
    netrc = tmp_path_factory.mktemp("home") / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login robot password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(netrc))


def fault_of(row: Row, url: str, folder: Path, policy: RetryPolicy = AT_ONCE) -> GateError:
    with pytest.raises(GateError) as caught:
        row.client(url, policy, folder)
    assert caught.value.hint
    assert SECRET not in f"{caught.value}{caught.value!r}{caught.value.__cause__!r}"
    return caught.value


@each
def test_its_own_address_alone_is_shown_the_login(row: Row, server: Whole, tmp_path: Path) -> None:
    assert row.client(server.url, AT_ONCE, tmp_path) == CONTENT
    assert [one.authorization for one in server.asked] == [row.shown]


@each
def test_an_answer_that_is_cut_is_asked_for_again_and_then_told(
    row: Row, server: Whole, tmp_path: Path
) -> None:
    server.faults.append(Fault("GET", "", cut))
    assert fault_of(row, server.url, tmp_path).message == row.cut.format(url=server.url)
    assert len(server.asked) == row.tries
    server.faults[0].times = 2
    assert row.client(server.url, AT_ONCE, tmp_path) == CONTENT


@each
def test_an_answer_without_end_is_left(
    row: Row, server: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_ARTIFACT_BYTES", ROOM)
    server.faults.append(Fault("GET", "", endless))
    assert fault_of(row, server.url, tmp_path).message == row.large
    assert len(server.asked) == 1


@each
def test_an_answer_that_drips_is_left(
    row: Row, server: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "DOWNLOAD_SECONDS", 0.05)
    server.faults.append(Fault("GET", "", dripping))
    hasty = replace(AT_ONCE, answer_seconds=0.05)
    assert fault_of(row, server.url, tmp_path, hasty).message == row.slow.format(url=server.url)


@each
def test_silence_ends(row: Row, server: Whole, tmp_path: Path) -> None:
    released, clock = threading.Event(), SleepClock()
    server.faults.append(Fault("GET", "", silent(released)))
    hasty = replace(clock.policy(), timeout_seconds=0.05)
    message = fault_of(row, server.url, tmp_path, hasty).message
    released.set()
    assert message == row.silence.format(url=server.url)
    assert len(clock.slept) == row.tries - 1


@each
def test_nobody_there_is_told(row: Row, tmp_path: Path) -> None:
    with Whole() as gone:
        url = gone.url
    assert fault_of(row, url, tmp_path).message == row.gone.format(url=url)


@each
def test_a_fault_that_passes_is_waited_for_longer_and_longer(
    row: Row, server: Whole, tmp_path: Path
) -> None:
    clock = SleepClock()
    server.faults.append(Fault("GET", "", status(503), times=3))
    assert row.client(server.url, clock.policy(), tmp_path) == CONTENT
    assert clock.slept == [1.0, 2.0, 4.0]


@each
def test_nobody_waits_longer_than_the_policy_says(row: Row, server: Whole, tmp_path: Path) -> None:
    clock = SleepClock()
    server.faults.append(Fault("GET", "", status(429, Retry_After="100000")))
    fault_of(row, server.url, tmp_path, clock.policy())
    assert sum(clock.slept) <= 7.0


@each
def test_a_redirect_is_not_read_and_another_port_gets_neither_login_nor_cookie(
    row: Row, server: Whole, tmp_path: Path
) -> None:
    with Whole() as other:
        server.faults.append(Fault("GET", "", leading(f"{other.url}/x")))
        if row.client in {github, store}:
            fault_of(row, server.url, tmp_path)
            assert other.asked == []
        else:
            assert row.client(server.url, AT_ONCE, tmp_path) == CONTENT
            assert [(one.authorization, one.cookie) for one in other.asked] == [("", "")]


@each
def test_on_its_own_address_a_redirect_keeps_both(row: Row, server: Whole, tmp_path: Path) -> None:
    server.faults.append(Fault("GET", "", leading("/elsewhere"), times=1))
    if row.client is store:
        message = fault_of(row, server.url, tmp_path).message
        assert message == "http://127.0.0.1 refused the download (302)"
        return
    assert row.client(server.url, AT_ONCE, tmp_path) == CONTENT
    followed = server.asked[1]
    assert (followed.authorization, followed.cookie) == (row.shown, "session=hush")


@each
@pytest.mark.parametrize(
    "location",
    [
        "http://other.example.org/x",
        "//other.example.org/x",
        "file:///etc/passwd",
        "https://robot:hush@127.0.0.1/x",
        "https://127.0.0.1\\@other.example.org/x",
        "https://other.example.org\\.127.0.0.1/x",
        "https://127.0.0.1:99999/x",
        "https://[::/\x1b[31m",
        "https:///x",
    ],
)
def test_an_address_that_may_not_be_asked_is_not_asked(
    row: Row, server: Whole, tmp_path: Path, location: str
) -> None:
    server.faults.append(Fault("GET", "", status(302, Location=location)))
    fault = fault_of(row, server.url, tmp_path)
    assert "\x1b" not in str(fault)
    assert len(server.asked) == 1


@each
def test_redirects_end(row: Row, server: Whole, tmp_path: Path) -> None:
    server.faults.append(Fault("GET", "", status(307, Location="/again")))
    fault_of(row, server.url, tmp_path)
    assert len(server.asked) <= 6


def test_what_may_be_carried_out_twice_alone_is_sent_twice(server: Whole) -> None:
    for act in (cut, status(503), status(429, Retry_After="1")):
        server.asked.clear()
        server.faults[:] = [Fault("POST", "", act)]
        with (
            Connection("the service", server.url, AT_ONCE) as connection,
            pytest.raises(GateError),
        ):
            connection.ask(HttpRequest(method="POST", url=server.url, body=b"x", repeatable=False))
        assert len(server.asked) == 1


def test_what_a_service_repeats_of_a_login_is_not_shown() -> None:
    with Connection("the service", "https://service.example", AT_ONCE) as connection:
        login = Login.basic("robot", SECRET)
        connection.log_in(login)
        assert SECRET not in repr(login)
        shown = str(connection.refused(_answer(), "HttpRequest.", f"{SECRET} {login.header}"))
    assert "*** Basic ***" in shown


def _answer() -> HttpAnswer:
    return HttpAnswer(status=403, headers={}, content=b"")
