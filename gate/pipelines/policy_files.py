"""Baselines, settings and keys of both commits; the confined process parses head's.

Head is untrusted until it is merged. Its settings, baseline and trusted keys are shown beside the
base commit's, parsed strictly and shortened. In two cases they count: a base without settings uses
head's, and a new baseline may be accepted. This process, which later holds key and token, parses
none of them (T5).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from gate.baseline.entry import (
    MAX_BASELINE_BYTES,
    MAX_COMMITS,
    MAX_ENTRIES,
    Baseline,
    BaselineEntry,
    Baselines,
    EntryCommit,
    ShownBaseline,
    ShownEntry,
    entry_name,
)
from gate.baseline.folder import files_in, read_entries, read_entry, refuse_future, refuse_unfit
from gate.errors import GateError, RepositoryError
from gate.isolation.modes import Isolation, IsolationSettings
from gate.pipelines.adapters import Adapters
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reader_questions import (
    Answer,
    ArchivedEntryQuestion,
    BaselineQuestion,
    ChangesQuestion,
    EntryQuestion,
    FileQuestion,
    HistoryQuestion,
    SettingsQuestion,
)
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.settings.policy_change import MAX_SHOWN, PolicyChange
from gate.system.git.objects import FolderCommit
from gate.system.git.repository import Git
from gate.verdict.history_lines import History
from gate.verdict.request import GateRequest

BEFORE, AFTER = "base", "head"
# a file, or a folder's files by names that are safe as paths (see `committed_entries`)
Content = bytes | Mapping[str, bytes]
ARCHIVE = "artifact.zip"


class HeadFiles:
    """Asks the confined reader, which starts at the first question, since most calls have none.

    The reader's files are in a temporary folder below `beside`.
    """

    def __init__(self, adapters: Adapters, beside: Path) -> None:
        self._adapters = adapters
        # a random name: the commit cannot have put a link there beforehand
        self._folder = beside / f".repro-gate-head-{secrets.token_hex(8)}"
        self._isolation: Isolation | None = None
        self._reader: FreshReader | None = None
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        """Start nothing before the first question."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the folder, the process and the account."""
        if self._isolation is None:
            return
        try:
            self._ends.close()
            self._adapters.clean_up(self._isolation)
        finally:
            self._adapters.files.remove_tree(self._folder)
            self._adapters.release()

    def settings(self, data: bytes, shown: str) -> GateSettings:
        """Return head's settings; raise what `parse_settings` raises."""
        return self._ask(SettingsQuestion, data, shown)

    def baseline(self, entries: Mapping[str, bytes], shown: str) -> Baseline:
        """Return head's baseline from the files of its entries; raise `DocumentError` if broken."""
        return self._ask(BaselineQuestion, entries, shown)

    def entry(self, data: bytes, shown: str) -> BaselineEntry:
        """Return a proposed entry; raise `DocumentError` for a broken one."""
        return self._ask(EntryQuestion, data, shown)

    def archived_entry(self, fill: Callable[[Path], str]) -> BaselineEntry:
        """Return the proposed entry in an artifact's archive, which is as untrusted as head.

        `fill` writes the archive to a path and returns a name for messages. Raises `DocumentError`
        for an archive without an entry.
        """
        reader = self._ready()
        path = self._folder / ARCHIVE
        shown = fill(path)[:MAX_SHOWN]
        return reader.ask(ArchivedEntryQuestion(path=path, shown=shown))

    def history(self, data: bytes, shown: str) -> History:
        """Return the lines of earlier runs; raise `DocumentError` for a file that is no history."""
        answer = self._ask(HistoryQuestion, data, shown)
        return History(lines=answer.lines, problem=answer.problem)

    def changes(
        self, kind: type[ChangesQuestion], file: str, before: Content | None, after: Content | None
    ) -> tuple[PolicyChange, ...]:
        """Return what head changes in a policy file; an unreadable file is a change too."""
        if before == after:
            return ()
        try:
            reader = self._ready()
            old, new = (
                None if content is None else self._written(name, content)
                for name, content in ((BEFORE, before), (AFTER, after))
            )
            return reader.ask(kind(before=old, after=new, shown=file))
        except GateError as fault:
            sentence = f"cannot be read: {fault.message}"[:MAX_SHOWN]
            return (PolicyChange(file=file[:MAX_SHOWN], what="the whole file", after=sentence),)

    def _ask(self, kind: type[FileQuestion[Answer]], content: Content, shown: str) -> Answer:
        reader = self._ready()
        return reader.ask(kind(path=self._written(AFTER, content), shown=shown))

    def _written(self, name: str, content: Content) -> Path:
        path = self._folder / name
        if isinstance(content, bytes):
            self._adapters.files.write_bytes(path, content)
        else:
            # an earlier question may have left other files in this folder
            self._adapters.files.fresh_folder(path)
            for entry, data in content.items():
                self._adapters.files.write_bytes(path / entry, data)
        return path

    def _ready(self) -> FreshReader:
        if self._isolation is None:
            self._adapters.files.fresh_folder(self._folder)
            # independent of all settings: no image is downloaded to read a file
            plain = parse_settings(MINIMAL_FILE.encode(), "plain").model_copy(
                update={"isolation": IsolationSettings()}
            )
            self._isolation = self._adapters.isolate(plain, (self._folder,))
        if self._reader is None:
            # no training runs here, so the reader has the account for itself
            self._reader = self._ends.enter_context(
                FreshReader(
                    self._adapters.files,
                    self._adapters.answering,
                    self._adapters.progress,
                    self._isolation.credentials,
                )
            )
        return self._reader


# each lookup is a call of git, made before anything is trained
MAX_ENTRIES_LOOKED_UP = 20
# the limit on commits for the history of the whole folder
MAX_COMMITS_WALKED = 200


def read_baselines(request: GateRequest, adapters: Adapters) -> Baselines:
    """Return the baselines; on a pull request the base commit's decides, else the work tree's.

    Raises `DocumentError` for a broken entry or folder, before anything is trained.
    """
    if request.base_commit is None or not request.pull_request:
        trusted = work_tree_baseline(request, adapters)
        return Baselines(
            base=trusted, head=None, same_code=_same_code(trusted, request, adapters.git)
        )
    path = request.repository_path(request.settings.baseline.path)
    now = adapters.clock.now()
    shown = f"{path} at {request.base_commit[:12]}"
    before = committed_entries(adapters.git, request.base_commit, path)
    trusted = refuse_future(read_entries(before, shown), now, shown)
    same_code = _same_code(trusted, request, adapters.git)
    after = committed_entries(adapters.git, request.commit, path) if request.commit else None
    if not after or after == before:
        return Baselines(base=trusted, head=None, same_code=same_code)
    shown = f"{path} at {request.commit[:12]}" if request.commit else path
    with HeadFiles(adapters, request.top) as head_files:
        head_baseline = refuse_future(head_files.baseline(after, shown), now, shown)
    # the same entries in another layout are no new baseline
    new = None if head_baseline == trusted else head_baseline
    return Baselines(base=trusted, head=new, same_code=same_code)


def committed_entries(git: Git, commit: str, path: str) -> Mapping[str, bytes] | None:
    """Return the unparsed files of a commit's entries, by name; None if it has no such folder.

    Raises `CommitError` and `DocumentError` for what cannot be a folder of entries.
    """
    shown = f"{path} at {commit[:12]}"
    files = git.read_folder(commit, path, max_files=MAX_ENTRIES, max_bytes=MAX_BASELINE_BYTES)
    return refuse_unfit(files, shown)


def _same_code(trusted: Baseline | None, request: GateRequest, git: Git) -> frozenset[str]:
    """Return those of the entries' commits whose files equal the commit under test.

    A commit that this clone lacks is left out, because nothing is known about it.
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
    """Return the baseline of the work tree, or None."""
    shown = request.repository_path(request.settings.baseline.path)
    return baseline_below(request.top, shown, adapters)


def baseline_below(top: Path, shown: str, adapters: Adapters) -> Baseline | None:
    """Return the baseline in the folder `shown` below `top`, or None.

    Raises `StorageError` for a link in the path, `DocumentError` for an invalid baseline.
    """
    adapters.files.refuse_links(top / shown, below=top)
    files = files_in(adapters.files, top / shown, shown)
    return refuse_future(read_entries(files, shown), adapters.clock.now(), shown)


def shown_baseline(request: GateRequest, adapters: Adapters) -> ShownBaseline | None:
    """Return the work tree's baseline with the history of each entry's file, or None."""
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
        # each reason is read from the clone, so those of later entries are left out
        reasons = number < MAX_ENTRIES_LOOKED_UP
        days = max(0, (now - datetime.fromisoformat(entry.recorded_at)).days)
        shown.append(
            ShownEntry(
                file=name,
                age_days=days,
                stale=days > request.settings.baseline.stale_after_days,
                history=tuple(
                    EntryCommit(
                        commit=entry_commit.commit,
                        committed_at=entry_commit.committed_at,
                        author=entry_commit.author,
                        reason=_reason(adapters.git, entry_commit, f"{folder}/{name}")
                        if reasons
                        else None,
                    )
                    for entry_commit in changed
                ),
                entry=entry,
            )
        )
    return ShownBaseline(entries=tuple(shown))


def _reason(git: Git, change: FolderCommit, path: str) -> str | None:
    """Return the reason that the entry gave in a commit; None if it is unreadable."""
    try:
        data = git.read_file(change.commit, path)
        return None if data is None else read_entry(data, path).reason
    except GateError:
        return None
