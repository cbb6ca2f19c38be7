"""Baselines, settings and keys of both commits, read by the confined process.

Nothing here decides. The pull request's side is untrusted text, parsed strictly and cut short.

The head is untrusted until it is merged. Its settings, baseline and trusted keys are shown beside
the base commit's, and now and then they count: a base without settings takes the head's, and a new
baseline may be accepted. Nothing of them is parsed in the process that later holds key and token.
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
from gate.pipelines.reading import (
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
from gate.verdict.history import History
from gate.verdict.request import GateRequest

BEFORE, AFTER = "base", "head"
# a file, or a folder's files by names that are safe as paths (`committed_entries`)
Content = bytes | Mapping[str, bytes]
ARCHIVE = "artifact.zip"


class HeadFiles:
    """Asks the reading process; it is made ready at the first question, most calls have none.

    `beside` is the folder in which a folder of its own is made for as long as it is needed.
    """

    def __init__(self, adapters: Adapters, beside: Path) -> None:
        self._adapters = adapters
        # a name that nobody can have guessed: the commit cannot hold a link there already
        self._folder = beside / f".repro-gate-head-{secrets.token_hex(8)}"
        self._isolation: Isolation | None = None
        self._reader: FreshReader | None = None
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        """Nothing is done before the first question."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave no folder, no process and no account behind."""
        if self._isolation is None:
            return
        try:
            self._ends.close()
            self._adapters.clean_up(self._isolation)
        finally:
            self._adapters.files.remove_tree(self._folder)
            self._adapters.release()

    def settings(self, data: bytes, shown: str) -> GateSettings:
        """The head's settings; raises what `parse_settings` raises."""
        return self._ask(SettingsQuestion, data, shown)

    def baseline(self, entries: Mapping[str, bytes], shown: str) -> Baseline:
        """The head's baseline from its entries' files; raises `DocumentError` for a broken one."""
        return self._ask(BaselineQuestion, entries, shown)

    def entry(self, data: bytes, shown: str) -> BaselineEntry:
        """A proposed entry; raises `DocumentError` for a broken one."""
        return self._ask(EntryQuestion, data, shown)

    def archived_entry(self, fill: Callable[[Path], str]) -> BaselineEntry:
        """The proposed entry in an artifact's archive, as untrusted as a head's.

        `fill` writes the archive to a path and returns a name for messages. Raises `DocumentError`
        for an archive without one.
        """
        reader = self._ready()
        path = self._folder / ARCHIVE
        shown = fill(path)[:MAX_SHOWN]
        return reader.ask(ArchivedEntryQuestion(path=path, shown=shown))

    def history(self, data: bytes, shown: str) -> History:
        """What earlier runs came to; raises `DocumentError` for a file that is no history."""
        answer = self._ask(HistoryQuestion, data, shown)
        return History(lines=answer.lines, problem=answer.problem)

    def changes(
        self, kind: type[ChangesQuestion], file: str, before: Content | None, after: Content | None
    ) -> tuple[PolicyChange, ...]:
        """What the head changes in a policy file; an unreadable file is reported as that."""
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
            # one that an earlier question left may hold other files
            self._adapters.files.fresh_folder(path)
            for entry, data in content.items():
                self._adapters.files.write_bytes(path / entry, data)
        return path

    def _ready(self) -> FreshReader:
        if self._isolation is None:
            self._adapters.files.fresh_folder(self._folder)
            # not as any settings say: no image is fetched to read a file
            plain = parse_settings(MINIMAL_FILE.encode(), "plain").model_copy(
                update={"isolation": IsolationSettings()}
            )
            self._isolation = self._adapters.isolate(plain, (self._folder,))
        if self._reader is None:
            # nothing is trained here, so the account is the reader's alone
            self._reader = self._ends.enter_context(
                FreshReader(
                    self._adapters.files,
                    self._adapters.answering,
                    self._adapters.progress,
                    self._isolation.credentials,
                )
            )
        return self._reader


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
    # another layout of the same entries is no other baseline
    new = None if head_baseline == trusted else head_baseline
    return Baselines(base=trusted, head=new, same_code=same_code)


def committed_entries(git: Git, commit: str, path: str) -> Mapping[str, bytes] | None:
    """The entries' files of a commit by their names, not parsed; None when it has no folder there.

    Raises `CommitError` and `DocumentError` for what cannot be a folder of entries.
    """
    shown = f"{path} at {commit[:12]}"
    files = git.read_folder(commit, path, max_files=MAX_ENTRIES, max_bytes=MAX_BASELINE_BYTES)
    return refuse_unfit(files, shown)


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
    """The baseline as it is in the work tree, None where there is none."""
    shown = request.repository_path(request.settings.baseline.path)
    return baseline_below(request.top, shown, adapters)


def baseline_below(top: Path, shown: str, adapters: Adapters) -> Baseline | None:
    """The baseline in the folder `shown` below another; None where there is none.

    Raises `StorageError` for a link on the way, `DocumentError` for what is no baseline.
    """
    adapters.files.refuse_links(top / shown, below=top)
    files = files_in(adapters.files, top / shown, shown)
    return refuse_future(read_entries(files, shown), adapters.clock.now(), shown)


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
    """What the entry gave as its reason in a commit; None where there is none that can be read."""
    try:
        data = git.read_file(change.commit, path)
        return None if data is None else read_entry(data, path).reason
    except GateError:
        return None
