"""The real client, connected to the fake GitHub server."""

from __future__ import annotations

from dataclasses import dataclass, field

from fake_github import FakeGitHub

from gate.system.github.pull_requests import GitHubComments
from gate.system.http import RetryPolicy

AT_ONCE = RetryPolicy(
    timeout_seconds=60.0, backoff_seconds=0.0, pause_seconds=0.0, sleep=lambda _seconds: None
)


@dataclass
class SleepClock:
    """A clock that starts at second 1000 and moves only by sleeping; `slept` has each sleep."""

    slept: list[float] = field(default_factory=list)
    time: float = 1000.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def now(self) -> float:
        return self.time

    def policy(self) -> RetryPolicy:
        return RetryPolicy(sleep=self.sleep, monotonic=self.now, now=self.now)


def connect(github: FakeGitHub, policy: RetryPolicy = AT_ONCE) -> GitHubComments:
    return GitHubComments(
        api_url=github.api_url,
        repository="org/repo",
        number=7,
        token=github.token,
        policy=policy,
    )
