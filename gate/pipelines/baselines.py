"""The baselines that a call is about: read before any training, from where each is trusted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from gate.baseline.lifecycle import refuse_future
from gate.baseline.record import read_baseline
from gate.errors import RepositoryError
from gate.pipelines.head_files import HeadFiles
from gate.pipelines.runs import Adapters
from gate.ports import Git
from gate.records.baseline import MAX_BASELINE_BYTES, Baseline
from gate.records.request import GateRequest

# each is looked up in the clone, before anything is trained
MAX_ENTRIES_LOOKED_UP = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """The baseline that decides, and the one that the pull request itself brings, if it does.

    `same_code` are the commits of its entries that hold the very files of the commit under test,
    the baseline itself left aside.
    """

    trusted: Baseline | None
    brought: Baseline | None
    same_code: frozenset[str] = frozenset()


def read_baselines(request: GateRequest, adapters: Adapters) -> Baselines:
    """The base commit's baseline decides on a pull request, else the work tree's.

    Raises `DocumentError` for a broken file, before anything is trained.
    """
    if request.base_commit is None or not request.pull_request:
        trusted = work_tree_baseline(request, adapters)
        return Baselines(
            trusted=trusted, brought=None, same_code=_same_code(trusted, request, adapters.git)
        )
    path = request.repository_path(request.settings.baseline.path)
    before = adapters.git.read_file(request.base_commit, path)
    after = adapters.git.read_file(request.commit, path) if request.commit else None
    shown = f"{path} at {request.base_commit[:12]}"
    trusted = refuse_future(read_baseline(before, shown), adapters.clock.now(), shown)
    same_code = _same_code(trusted, request, adapters.git)
    if request.commit is None or after is None or after == before:
        return Baselines(trusted=trusted, brought=None, same_code=same_code)
    with HeadFiles(adapters, request.top) as head_files:
        shown = f"{path} at {request.commit[:12]}"
        brought = refuse_future(head_files.baseline(after, shown), adapters.clock.now(), shown)
    # another layout of the same entries is no other baseline
    new = None if brought == trusted else brought
    return Baselines(trusted=trusted, brought=new, same_code=same_code)


def _same_code(trusted: Baseline | None, request: GateRequest, git: Git) -> frozenset[str]:
    """The entries' commits that hold the same files as the commit under test.

    A commit that this clone lacks is not among them: then nothing is said of it.
    """
    path = request.repository_path(request.settings.baseline.path)
    newest = sorted(trusted.entries if trusted else (), key=lambda entry: entry.recorded_at)
    same = set()
    for commit in {entry.commit for entry in newest[-MAX_ENTRIES_LOOKED_UP:]}:
        with suppress(RepositoryError):
            head = request.commit or git.resolve("HEAD")
            changed = {*git.changed_between(commit, head)}
            if request.commit is None:
                changed |= {*git.changed_files()}
            if changed <= {path}:
                same.add(commit)
    return frozenset(same)


def work_tree_baseline(request: GateRequest, adapters: Adapters) -> Baseline | None:
    """The baseline as it lies in the work tree, None where there is none."""
    path = request.top / request.repository_path(request.settings.baseline.path)
    if not adapters.files.exists(path):
        return None
    data = adapters.files.read_bytes(path, max_bytes=MAX_BASELINE_BYTES)
    shown = str(path.relative_to(request.top))
    return refuse_future(read_baseline(data, shown), adapters.clock.now(), shown)
