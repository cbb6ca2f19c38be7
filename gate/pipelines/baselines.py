"""The baselines that a call is about: read before any training, from where each is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from gate.baseline.entry import MAX_BASELINE_BYTES, MAX_ENTRIES, Baseline, Baselines
from gate.baseline.entry_history import MAX_COMMITS, EntryCommit, ShownBaseline, ShownEntry
from gate.baseline.entry_names import entry_name
from gate.baseline.folder import files_in, read_entries, read_entry, refuse_future, refuse_unfit
from gate.errors import GateError, RepositoryError
from gate.pipelines.adapters import Adapters
from gate.pipelines.policy_files import HeadFiles
from gate.system.git.folder_commit import FolderCommit
from gate.system.git.port import Git
from gate.verdict.request import GateRequest

# each is looked up in the clone, before anything is trained
MAX_ENTRIES_LOOKED_UP = 20
# of the whole folder
MAX_COMMITS_WALKED = 200


def read_baselines(request: GateRequest, adapters: Adapters) -> Baselines:
    """The base commit's baseline decides on a pull request, else the work tree's.

    Raises `DocumentError` for a broken entry or folder, before anything is trained.
    """
    if request.base_commit is None or not request.pull_request:
        trusted = work_tree_baseline(request, adapters)
        return Baselines(
            trusted=trusted, brought=None, same_code=_same_code(trusted, request, adapters.git)
        )
    path = request.repository_path(request.settings.baseline.path)
    now = adapters.clock.now()
    shown = f"{path} at {request.base_commit[:12]}"
    before = committed_entries(adapters.git, request.base_commit, path)
    trusted = refuse_future(read_entries(before, shown), now, shown)
    same_code = _same_code(trusted, request, adapters.git)
    after = committed_entries(adapters.git, request.commit, path) if request.commit else None
    if not after or after == before:
        return Baselines(trusted=trusted, brought=None, same_code=same_code)
    shown = f"{path} at {request.commit[:12]}" if request.commit else path
    with HeadFiles(adapters, request.top) as head_files:
        brought = refuse_future(head_files.baseline(after, shown), now, shown)
    # another layout of the same entries is no other baseline
    new = None if brought == trusted else brought
    return Baselines(trusted=trusted, brought=new, same_code=same_code)


def committed_entries(git: Git, commit: str, path: str) -> Mapping[str, bytes] | None:
    """The entries' files of a commit by their names, not parsed; None when it has no folder there.

    Raises `CommitError` and `DocumentError` for what cannot be a folder of entries.
    """
    shown = f"{path} at {commit[:12]}"
    found = git.read_folder(commit, path, max_files=MAX_ENTRIES, max_bytes=MAX_BASELINE_BYTES)
    return refuse_unfit(found, shown)


def _same_code(trusted: Baseline | None, request: GateRequest, git: Git) -> frozenset[str]:
    """The entries' commits that hold the same files as the commit under test.

    A commit that this clone lacks is not among them: then nothing is said of it.
    """
    folder = request.repository_path(request.settings.baseline.path) + "/"
    newest = sorted(trusted.entries if trusted else (), key=lambda entry: entry.recorded_at)
    same = set()
    for commit in {entry.commit for entry in newest[-MAX_ENTRIES_LOOKED_UP:]}:
        with suppress(RepositoryError):
            head = request.commit or git.resolve("HEAD")
            changed = {*git.changed_between(commit, head)}
            if request.commit is None:
                changed |= {*git.changed_files()}
            if all(path.startswith(folder) for path in changed):
                same.add(commit)
    return frozenset(same)


def work_tree_baseline(request: GateRequest, adapters: Adapters) -> Baseline | None:
    """The baseline as it lies in the work tree, None where there is none."""
    shown = request.repository_path(request.settings.baseline.path)
    return baseline_below(request.top, shown, adapters)


def baseline_below(top: Path, shown: str, adapters: Adapters) -> Baseline | None:
    """The baseline in the folder `shown` below another; None where there is none.

    Raises `StorageError` for a link on the way, `DocumentError` for what is no baseline.
    """
    adapters.files.refuse_links(top / shown, below=top)
    found = files_in(adapters.files, top / shown, shown)
    return refuse_future(read_entries(found, shown), adapters.clock.now(), shown)


def shown_baseline(request: GateRequest, adapters: Adapters) -> ShownBaseline | None:
    """The work tree's baseline with the history of each entry's file; None where there is none."""
    baseline = work_tree_baseline(request, adapters)
    if baseline is None:
        return None
    folder = request.repository_path(request.settings.baseline.path)
    commits = adapters.git.folder_history(folder, max_commits=MAX_COMMITS_WALKED)
    now = adapters.clock.now()
    shown = []
    for number, entry in enumerate(baseline.entries):
        name = entry_name(entry)
        changed = [commit for commit in commits if name in commit.names][:MAX_COMMITS]
        # each is read from the clone: of many entries the reasons of later ones are left out
        reasons = number < MAX_ENTRIES_LOOKED_UP
        days = max(0, (now - datetime.fromisoformat(entry.recorded_at)).days)
        shown.append(
            ShownEntry(
                file=name,
                age_days=days,
                stale=days > request.settings.baseline.stale_after_days,
                history=tuple(
                    EntryCommit(
                        commit=one.commit,
                        committed_at=one.committed_at,
                        author=one.author,
                        reason=_reason(adapters.git, one, f"{folder}/{name}") if reasons else None,
                    )
                    for one in changed
                ),
                entry=entry,
            )
        )
    return ShownBaseline(entries=tuple(shown))


def _reason(git: Git, change: FolderCommit, path: str) -> str | None:
    """What the entry gave as its reason in a commit; None where there is none that can be read."""
    try:
        data = git.read_file(change.commit, path)
        return None if data is None else read_entry(data, path).reason
    except GateError:
        return None
