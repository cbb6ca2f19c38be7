"""How the client waits: what GitHub's limits ask for, never before, and not for ever."""

from __future__ import annotations

import contextlib
import math
import time

import pytest
from each_row import each_row
from fake_github import FakeGitHub
from github_client import SleepClock, connect
from github_failures import Failure
from hypothesis import given
from hypothesis import strategies as st
from urllib3 import BaseHTTPResponse, HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)

from gate.errors import PublishError
from gate.system.github.api import (
    GitHubApi,
    GitHubRetries,
    LimitedError,
    limit_seconds,
)
from gate.system.github.pull_requests import GitHubComments, _moment
from gate.system.http import HttpAnswer, RetryPolicy

LIMITS = {
    Failure.SECONDARY_LIMIT,
    Failure.SECONDARY_LIMIT_TOLD,
    Failure.QUOTA_SOON_BACK,
    Failure.LIMITED_ODDLY,
    Failure.RATE_LIMITED,
}
HARMFUL = st.sampled_from(
    [
        *sorted(LIMITS, key=lambda failure: failure.name),
        Failure.LIMITED_FOR_LONG,
        Failure.LIMIT_BROKEN_OFF,
        Failure.REFUSED,
        Failure.SERVER_ERROR,
        Failure.BAD_GATEWAY_AFTER_STORING,
        Failure.CUT,
        Failure.CUT_AFTER_STORING,
        Failure.BROKEN_OFF,
    ]
)
POOL = HTTPConnectionPool("api.example")


@pytest.fixture
def clock() -> SleepClock:
    return SleepClock()


@pytest.fixture
def patient(github: FakeGitHub, clock: SleepClock) -> GitHubComments:
    return connect(github, clock.policy())


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (Failure.SECONDARY_LIMIT_TOLD, 7.0),
        (Failure.SECONDARY_LIMIT, 60.0),
        (Failure.LIMITED_ODDLY, 60.0),
        (Failure.QUOTA_SOON_BACK, 31.0),
        (Failure.RATE_LIMITED, 0.0),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_limit_is_waited_for_and_then_everything_may_be_asked_again(
    github: FakeGitHub,
    patient: GitHubComments,
    clock: SleepClock,
    method: str,
    failure: Failure,
    seconds: float,
) -> None:
    github.fail_next(method, failure)
    _ = list(patient.listed()) if method == "GET" else patient.create("text")
    # a second write directly after the first waits for the pace too
    assert clock.slept[0] == seconds
    assert github.methods() == [method, method]


@pytest.mark.parametrize("failure", [Failure.LIMITED_FOR_LONG, Failure.QUOTA_EMPTY])
def test_a_limit_that_lasts_too_long_is_told_at_once(
    github: FakeGitHub, patient: GitHubComments, clock: SleepClock, failure: Failure
) -> None:
    github.fail_next("POST", failure)
    with pytest.raises(PublishError, match=r"rate limit is used up for another [\d,]+ s"):
        patient.create("text")
    assert clock.slept == []
    assert github.methods() == ["POST"]


def test_waits_for_one_request_are_bounded_together(
    github: FakeGitHub, patient: GitHubComments, clock: SleepClock
) -> None:
    github.fail_next("GET", *[Failure.SECONDARY_LIMIT] * 4)
    with pytest.raises(PublishError, match="rate limit is used up for another 60 s"):
        list(patient.listed())
    assert clock.slept == [60.0, 60.0]


@given(method=st.sampled_from(["GET", "POST", "PATCH"]), failures=st.lists(HARMFUL, max_size=6))
def test_whatever_happens_the_wait_is_bounded_and_no_write_is_doubled(
    method: str, failures: list[Failure]
) -> None:
    clock = SleepClock()
    with FakeGitHub() as github, contextlib.suppress(PublishError):
        github.fail_next(method, *failures)
        policy = clock.policy()
        with GitHubApi(github.api_url, "org/repo", github.token, policy, {}) as api:
            api.send(method, f"{api.repository_url}/issues/7/comments", {"body": "text"})
    assert sum(clock.slept) <= 120
    repeated = failures[: len(github.requests) - 1]
    assert len(repeated) <= 3
    assert method != "POST" or set(repeated) <= LIMITS


@each_row(
    "error",
    [
        ProtocolError("broken"),
        SSLError("broken"),
        ProxyError("broken", OSError()),
        ReadTimeoutError(POOL, "/", "silent"),
        NewConnectionError(HTTPConnection("api.example"), "nobody"),
    ],
)
def test_no_fault_of_the_way_lets_a_comment_be_sent_twice(error: Exception) -> None:
    retry = GitHubRetries(RetryPolicy(), math.inf, _no_limit, repeatable=True)
    assert retry.increment("GET", "/", error=error).total == 2
    once = GitHubRetries(RetryPolicy(), math.inf, _no_limit, repeatable=False)
    with pytest.raises(MaxRetryError) as caught:
        once.increment("POST", "/", error=error)
    assert caught.value.reason is error


def _no_limit(_: BaseHTTPResponse) -> LimitedError:
    raise AssertionError


def test_a_fault_is_not_read_to_its_end_before_the_next_try(
    github: FakeGitHub, client: GitHubComments
) -> None:
    github.fail_next("GET", Failure.DRIPPING_FAULT)
    began = time.monotonic()
    assert list(client.listed()) == []
    # all of it would take 200 s
    assert time.monotonic() - began < 100


def test_a_limit_that_breaks_off_is_asked_for_again(
    github: FakeGitHub, patient: GitHubComments, clock: SleepClock
) -> None:
    github.fail_next("GET", Failure.LIMIT_BROKEN_OFF)
    assert list(patient.listed()) == []
    assert clock.slept == [1.0]


def test_a_second_passes_between_two_writes(
    github: FakeGitHub, patient: GitHubComments, clock: SleepClock
) -> None:
    made = patient.create("one")
    patient.update(made.comment_id, "two")
    list(patient.listed())
    assert clock.slept == [1.0]
    assert github.methods() == ["POST", "PATCH", "GET"]


def test_writes_that_are_apart_anyway_wait_for_nothing(
    patient: GitHubComments, clock: SleepClock
) -> None:
    patient.create("one")
    clock.time += 5
    patient.create("two")
    assert clock.slept == []


@pytest.mark.parametrize("date", ["", "yesterday", "Wed, 21 Oct 2015 07:28:00 -0000"])
def test_without_a_moment_of_the_server_everything_is_read_again(date: str) -> None:
    answer = HttpAnswer(status=200, headers={"date": date}, content=b"")
    assert _moment(answer) == ""


def test_the_moment_of_the_server_is_taken_a_minute_early() -> None:
    headers = {"date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    answer = HttpAnswer(status=200, headers=headers, content=b"")
    assert _moment(answer) == "2015-10-21T07:27:00Z"


@each_row("odd", ["", "-5", "1e9", "٣", "9" * 40, "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_an_odd_header_means_a_minute(odd: str) -> None:
    headers = {"Retry-After": odd, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": odd}
    assert limit_seconds(headers, now=1000.0) == 60.0


def test_a_moment_in_the_past_is_over() -> None:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "900"}
    assert limit_seconds(headers, now=1000.0) == 1.0
