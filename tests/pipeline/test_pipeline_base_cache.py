"""Runs of a base commit are made once and taken again, where nothing they depend on has moved."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gate_bench import FILES, Bench
from own_isolation import isolated
from played_training import SETTINGS, Project

from gate.isolation.modes import Credentials, Isolation, IsolationMode
from gate.package.members import write_package
from gate.pipelines.adapters import Adapters
from gate.pipelines.base_cache import may_cache
from gate.pipelines.gate import gate
from gate.report.assembly import ReportLinks
from gate.report.comment import comment_text
from gate.text.digests import sha256_hex
from gate.verdict.verdict import Outcome, Verdict

SYSTEM_PYTHON = "/usr/bin/python3"
APART = Isolation(
    mode=IsolationMode.UID,
    credentials=Credentials(uid=60001, gid=60001),
    reason="a test's",
)
ALONE = replace(APART, mode=IsolationMode.NONE, credentials=None)
NEW_LOSSES = ["2.5", "2.25", "2.0"]
MOVED = {"environment": {"torch": "2.14.0"}, "losses": NEW_LOSSES}


class Told:
    """Keeps what a person who waits is told."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.lines: list[str] = []

    def step(self, text: str) -> None:
        self.lines.append(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class Cached(Bench):
    """A pull request whose environment moved, so that the base commit has to run here.

    What it is before any call, and after the first one that put runs of the base commit into the
    cache, is made once and laid again into the same place for each test.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.changed = Project(place / "here" / "project")
        super().__init__(self.changed, place / "here" / "out")
        self.cache = place / "here" / "cache"
        self.changed.write(
            "repro-gate.yml",
            SETTINGS.replace("none", "uid")
            + f"runs: {{cache: {self.cache}, parallel: never}}\ncost: {{when: never}}\n"
            "diagnosis: {escalate: false}\n",
        )
        self.changed.commit()
        self.record()
        # as if the machine had moved since the baseline was recorded
        self.base = self.changed.play(**MOVED)
        self.change("first")
        self.told: list[str] = []
        self._keep("new")
        self.first = self.judged()
        self._keep("judged")

    def _keep(self, name: str) -> None:
        shutil.copytree(self.place / "here", self.place / name, symlinks=True)
        (self.place / name).chmod(0o700)

    def again(self, name: str) -> None:
        """As it was when `name` was kept."""
        shutil.rmtree(self.place / "here")
        shutil.copytree(self.place / name, self.place / "here", symlinks=True)
        (self.place / "here").chmod(0o755)
        self.base = self.changed.git("rev-parse", "HEAD^")

    def adapters(self) -> Adapters:
        return isolated(super().adapters())

    def change(self, text: str) -> None:
        self.changed.write("README.md", text)
        self.changed.commit()

    def judged(self, *, from_fork: bool = False) -> Verdict:
        adapters = self.adapters()
        progress = Told(adapters.progress)
        request = replace(self.request(base=self.base), pull_request=True, from_fork=from_fork)
        found = gate(
            request,
            replace(adapters, progress=progress),  # type: ignore[arg-type] # by its methods
        )
        self.package = write_package(
            found.verdict, found.evidence, found.baseline, request, FILES, found.documents
        ).path
        self.told = [line for line in progress.lines if "reused" in line or "cache" in line]
        return found.verdict

    @property
    def files(self) -> list[Path]:
        return sorted(self.cache.iterdir()) if self.cache.exists() else []


@pytest.fixture(scope="module")
def made() -> Iterator[Cached]:
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"needs root, and {SYSTEM_PYTHON} for another account")
    # not pytest's own folder, which no other account may enter
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "here").mkdir()
        (Path(folder) / "here").chmod(0o755)
        yield Cached(Path(folder))


@pytest.fixture
def cached(made: Cached) -> Cached:
    """No call was made yet."""
    made.again("new")
    return made


@pytest.fixture
def judged(made: Cached) -> Cached:
    """A first call found `first`, and its runs of the base commit lie in the cache."""
    made.again("judged")
    return made


def _base(verdict: Verdict) -> list[tuple[str, bool]]:
    return [(run.label, bool(run.reused)) for run in verdict.runs if run.commit == "base"]


def test_runs_of_the_base_commit_are_made_once_and_taken_again(judged: Cached) -> None:
    cached, first = judged, judged.first
    assert _base(first) == [("base-1", False), ("base-2", False)]
    (path,) = cached.files
    assert path.stat().st_mode & 0o022 == 0
    second = cached.judged()
    assert _base(second) == [("base-1", True), ("base-2", True)]
    assert (second.outcome, second.passes) == (first.outcome, first.passes)
    assert second.base_run is not None
    assert second.base_run.numerically_equal
    day = second.runs[-1].reused[:10]
    assert cached.told == [f"base commit: runs of {day} reused"]
    assert f"; base commit: runs of {day} reused |" in comment_text(second, ReportLinks())
    assert cached.package.stat().st_size > 0
    # what was not run here says nothing of this machine's speed, and took no time of this call
    assert {one.commit for one in second.performance} == {"head"}
    assert second.timeline is not None
    assert [run.label for run in second.timeline.runs] == ["strict-1", "strict-2"]


def test_another_commit_on_another_machine_is_another_place(judged: Cached) -> None:
    cached = judged
    cached.base = cached.changed.play(environment={"torch": "2.15.0"}, losses=NEW_LOSSES)
    cached.change("another")
    assert _base(cached.judged()) == [("base-1", False), ("base-2", False)]
    assert len(cached.files) == 2


@pytest.mark.parametrize("spoil", ["byte", "content", "name"])
def test_a_file_that_was_altered_is_told_and_the_runs_are_made(judged: Cached, spoil: str) -> None:
    (path,) = judged.files
    digest, _, data = path.read_bytes().partition(b"\n")
    if spoil == "byte":
        path.write_bytes(digest + b"\n" + data[:-2] + b" \n")
    elif spoil == "content":
        data = data.replace(b"2.14.0", b"2.99.0")
        path.write_bytes(sha256_hex(data).encode() + b"\n" + data)
    else:
        path.write_bytes(b"{}")
    assert _base(judged.judged()) == [("base-1", False), ("base-2", False)]


def test_a_folder_that_another_may_write_in_is_not_used(cached: Cached) -> None:
    cached.cache.mkdir(mode=0o700)
    cached.cache.chmod(0o777)
    assert _base(cached.judged()) == [("base-1", False), ("base-2", False)]
    assert cached.files == []
    assert cached.told[0] == (
        f"runs.cache is not used: {cached.cache} belongs to, or can be written by, another account"
    )


def test_a_link_in_the_place_of_the_folder_is_not_followed(cached: Cached) -> None:
    elsewhere = cached.cache.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    cached.cache.symlink_to(elsewhere)
    assert _base(cached.judged()) == [("base-1", False), ("base-2", False)]
    assert list(elsewhere.iterdir()) == []


def test_what_ran_beside_a_strangers_code_is_not_kept(cached: Cached) -> None:
    cached.judged(from_fork=True)
    assert cached.files == []


def test_what_is_kept_is_taken_beside_a_strangers_code(judged: Cached) -> None:
    assert _base(judged.judged(from_fork=True)) == [("base-1", True), ("base-2", True)]


def test_runs_that_differ_are_not_kept(cached: Cached) -> None:
    cached.base = cached.changed.play(random=True, **MOVED)
    cached.changed.play(**MOVED)
    verdict = cached.judged()
    assert verdict.outcome is Outcome.ENVIRONMENT_DRIFT
    assert cached.files == []


@pytest.mark.parametrize(
    ("isolation", "pull_request", "like_head", "allowed"),
    [
        (APART, True, True, True),
        (ALONE, True, True, False),
        (APART, False, True, False),
        (APART, True, False, False),
    ],
)
def test_only_a_trusted_base_commit_that_trains_apart_from_the_gate_may_be_cached(
    bench: Bench, isolation: Isolation, *, pull_request: bool, like_head: bool, allowed: bool
) -> None:
    request = replace(bench.request(), pull_request=pull_request)
    assert may_cache(request, isolation, like_head=like_head) is allowed
