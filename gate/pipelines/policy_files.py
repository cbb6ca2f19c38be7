"""Baselines, settings and keys of both commits, read by the confined process.

Nothing here decides. The pull request's side is untrusted text, parsed strictly and cut short.

The head is untrusted until it is merged. Its settings, baseline and trusted keys are shown beside
the base commit's, and now and then they count: a base without settings takes the head's, and a new
baseline may be accepted. Nothing of them is parsed in the process that later holds key and token.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

from gate.baseline.entry import (
    MAX_BASELINE_BYTES,
    MAX_COMMITS,
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    Baseline,
    BaselineEntry,
    Baselines,
    EntryCommit,
    ShownBaseline,
    ShownEntry,
    entry_name,
)
from gate.baseline.folder import files_in, read_entries, read_entry, refuse_future, refuse_unfit
from gate.checkpoint.digest import captured_digest
from gate.errors import DocumentError, EvidenceError, GateError, RepositoryError
from gate.isolation.modes import Isolation, IsolationSettings
from gate.isolation.process_request import AnsweringProcess, ProcessRequest
from gate.package.seal_records import TrustedKeys
from gate.pipelines.adapters import Adapters
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reading import ReadingAnswer, ReadingRequest, ReadingTask
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.settings.policy_files import MAX_SHOWN, PolicyChange
from gate.system.console import Progress
from gate.system.files.port import Files
from gate.system.git.objects import FolderCommit
from gate.system.git.repository import Git
from gate.text.digests import sha256_hex
from gate.text.documents import read_document
from gate.text.json_text import canonical_json, canonical_sha256
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import masked
from gate.verdict.history import History
from gate.verdict.request import GateRequest

MAX_CHANGES = 200
MAX_ADDRESS = 200
# the lists of a trusted root, and what one of each is called
SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "tlogs": "log",
        "certificateAuthorities": "certificate authority",
        "ctlogs": "log of certificates",
        "timestampAuthorities": "timestamp authority",
    }
)
ROOT_HINT = "It is the JSON document that signing.trusted_root names."
Facts = Mapping[str, str]


def settings_changes(
    file: str, before: bytes | None, after: bytes | None
) -> tuple[PolicyChange, ...]:
    """The keys of `repro-gate.yml` whose value is another; a default counts as a value."""
    return _changes(file, before, after, lambda data: dict(_flat(_settings(data, file))))


def baseline_changes(
    folder: str, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> tuple[PolicyChange, ...]:
    """Entries added and removed, and what is another in one, each by the name of its file."""
    changes = [
        change
        for name in sorted({*before, *after})
        for change in _of_entry(folder, name, before.get(name), after.get(name))
    ]
    if len(changes) > MAX_CHANGES:
        more = _change(folder, f"and {len(changes) - MAX_CHANGES:,} more", "", "")
        return (*changes[:MAX_CHANGES], more)
    return tuple(changes)


def _of_entry(
    folder: str, name: str, before: bytes | None, after: bytes | None
) -> tuple[PolicyChange, ...]:
    """An entry's changes, each with the entry's name before it: the folder is the policy file."""
    found = _changes(f"{folder}/{name}", before, after, lambda data: dict(_entry(data, name)))
    entry = name.removesuffix(".json")
    return tuple(
        _change(folder, f"{entry}: {change.what}", change.before, change.after) for change in found
    )


def key_changes(file: str, before: bytes | None, after: bytes | None) -> tuple[PolicyChange, ...]:
    """Keys added, removed, replaced under their name, or given another status."""
    return _changes(file, before, after, lambda data: dict(_keys(data, file)))


def root_changes(file: str, before: bytes | None, after: bytes | None) -> tuple[PolicyChange, ...]:
    """Authorities and logs added to and removed from a trusted root; another key is another one."""
    return _changes(file, before, after, lambda data: dict(_services(data, file)))


def _changes(
    file: str,
    before: bytes | None,
    after: bytes | None,
    facts: Callable[[bytes], Facts],
) -> tuple[PolicyChange, ...]:
    if before == after:
        return ()
    try:
        old, new = (facts(data) if data is not None else {} for data in (before, after))
    except GateError as fault:
        whole = ("there", "gone") if after is None else ("", f"cannot be read: {fault.message}")
        return (_change(file, "the whole file", *whole),)
    # compared as facts: a default that is written out is no change
    names = [name for name in sorted({*old, *new}) if old.get(name, "") != new.get(name, "")]
    changes = [
        _change(file, name, old.get(name, ""), new.get(name, "")) for name in names[:MAX_CHANGES]
    ]
    if len(names) > MAX_CHANGES:
        changes.append(_change(file, f"and {len(names) - MAX_CHANGES:,} more", "", ""))
    # the bytes differ and no fact does: a comment, an order, a blank
    return tuple(changes) or (_change(file, "formatting only", "", ""),)


def _change(file: str, what: str, before: str, after: str) -> PolicyChange:
    texts = {"file": file, "what": what, "before": before, "after": after}
    return PolicyChange.model_validate({name: _cut(text) for name, text in texts.items()})


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _settings(data: bytes, file: str) -> object:
    return parse_settings(data, file).model_dump(mode="json")


def _flat(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Keys with dots between them; a list is one value, since its order matters."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _entry(data: bytes, name: str) -> Iterator[tuple[str, str]]:
    entry = read_document(BaselineEntry, data, name, max_bytes=MAX_ENTRY_BYTES)
    yield "entry", "there"
    yield "recorded from", entry.commit
    yield "reason", entry.reason
    yield "checkpoint digest", captured_digest(entry.checkpoint.tensors)
    # of every rank and of what the script saves: none of them changes without a word
    yield "digest of all states", entry.checkpoint.root
    if entry.checkpoint.sketches:
        # they say how far a later result may be: none of them changes without a word either
        yield "sketches of weights", canonical_sha256(entry.checkpoint.sketches)
    for series in entry.metrics:
        last = series.points[-1].decimal if series.points else "no value"
        # the last value alone would hide a change of the steps before it
        digest = canonical_sha256(series.model_dump())
        yield series.name, f"last {last}, series {digest[:12]}"


def _keys(data: bytes, file: str) -> Iterator[tuple[str, str]]:
    for key in read_document(TrustedKeys, data, file).keys:
        yield f"key {key.key_id}", key.status.value
        yield f"key {key.key_id}: public key", key.raw_bytes
        yield f"key {key.key_id}: comment", key.comment
        # a later date lets seals count that did not
        yield f"key {key.key_id}: retired at", key.retired_at or ""
        yield f"key {key.key_id}: revoked at", key.revoked_at or ""
        yield f"key {key.key_id}: reason", key.reason


def _services(data: bytes, file: str) -> Iterator[tuple[str, str]]:
    """Each service of Sigstore's `TrustedRoot` by its address and a digest of all that it says."""
    root = parse_json(data, file)
    if not isinstance(root, dict):
        raise DocumentError(f"{file}: not a trusted root", hint=ROOT_HINT)
    for name, value in root.items():
        services = value if name in SERVICES else None
        if not isinstance(services, list):
            yield from _flat(value, name)
            continue
        for service in services:
            address = _address(service)
            digest = sha256_hex(canonical_json(service))
            # a renewed service keeps its address: only the digest tells its keys apart
            yield f"{SERVICES[name]} {address} ({digest[:12]})".replace("  ", " "), "trusted"


def _address(service: object) -> str:
    found = service if isinstance(service, dict) else {}
    address = found.get("baseUrl") or found.get("uri")
    return masked(address)[:MAX_ADDRESS] if isinstance(address, str) else ""


BEFORE, AFTER = "base", "head"
# a file, or a folder's files by names that are safe as paths (`committed_entries`); None is neither
Content = bytes | Mapping[str, bytes] | None
ARCHIVE = "artifact.zip"


class ReadingEdges(Protocol):
    """The effects that reading in a separate process needs."""

    @property
    def files(self) -> Files: ...  # noqa: D102 - as in `Adapters`

    @property
    def answering(self) -> Callable[[ProcessRequest], AnsweringProcess]: ...  # noqa: D102

    @property
    def progress(self) -> Progress: ...  # noqa: D102

    @property
    def isolate(self) -> Callable[[GateSettings, tuple[Path, ...]], Isolation]: ...  # noqa: D102

    @property
    def clean_up(self) -> Callable[[Isolation], None]: ...  # noqa: D102

    @property
    def release(self) -> Callable[[], None]: ...  # noqa: D102


class HeadFiles:
    """Asks the reading process; it is made ready at the first question, most calls have none.

    `beside` is the folder in which a folder of its own is made for as long as it is needed.
    """

    def __init__(self, adapters: ReadingEdges, beside: Path) -> None:
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
        settings = self._ask(ReadingTask.SETTINGS, shown, None, data).settings
        if settings is None:
            raise _no_answer(shown)
        return settings

    def baseline(self, entries: Mapping[str, bytes], shown: str) -> Baseline:
        """The head's baseline from its entries' files; raises `DocumentError` for a broken one."""
        baseline = self._ask(ReadingTask.BASELINE, shown, None, entries).baseline
        if baseline is None:
            raise _no_answer(shown)
        return baseline

    def entry(self, data: bytes, shown: str) -> BaselineEntry:
        """A proposed entry; raises `DocumentError` for a broken one."""
        entry = self._ask(ReadingTask.ENTRY, shown, None, data).entry
        if entry is None:
            raise _no_answer(shown)
        return entry

    def archived_entry(self, fill: Callable[[Path], str]) -> BaselineEntry:
        """The proposed entry in an artifact's archive, as untrusted as a head's.

        `fill` writes the archive to a path and returns a name for messages. Raises `DocumentError`
        for an archive without one.
        """
        reader = self._ready()
        path = self._folder / ARCHIVE
        shown = fill(path)[:MAX_SHOWN]
        request = ReadingRequest(
            task=ReadingTask.ARCHIVED_ENTRY, out=str(path.absolute()), shown=shown
        )
        entry = reader.ask(request).entry
        if entry is None:
            raise _no_answer(shown)
        return entry

    def history(self, data: bytes, shown: str) -> History:
        """What earlier runs came to; raises `DocumentError` for a file that is no history."""
        answer = self._ask(ReadingTask.HISTORY, shown, None, data)
        return History(lines=answer.history, problem=answer.history_problem)

    def changes(
        self, task: ReadingTask, file: str, before: Content, after: Content
    ) -> tuple[PolicyChange, ...]:
        """What the head changes in a policy file; an unreadable file is reported as that."""
        if before == after:
            return ()
        try:
            return self._ask(task, file, before, after).changes
        except GateError as fault:
            sentence = f"cannot be read: {fault.message}"[:MAX_SHOWN]
            return (PolicyChange(file=file[:MAX_SHOWN], what="the whole file", after=sentence),)

    def _ask(self, task: ReadingTask, shown: str, before: Content, after: Content) -> ReadingAnswer:
        reader = self._ready()
        sides = [self._written(name, data) for name, data in ((BEFORE, before), (AFTER, after))]
        request = ReadingRequest(task=task, against=sides[0], out=sides[1], shown=shown)
        return reader.ask(request)

    def _written(self, name: str, content: Content) -> str:
        if content is None:
            return ""
        path = self._folder / name
        if isinstance(content, bytes):
            self._adapters.files.write_bytes(path, content)
        else:
            # one that an earlier question left may hold other files
            self._adapters.files.fresh_folder(path)
            for entry, data in content.items():
                self._adapters.files.write_bytes(path / entry, data)
        return str(path.absolute())

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


def _no_answer(shown: str) -> EvidenceError:
    return EvidenceError(
        f"the process that reads {shown} gave no answer",
        hint="This is a bug in repro-gate; please report it.",
    )


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
