"""Files of a pull request's head, parsed by the confined process that reads evidence.

The head is untrusted until it is merged. Its settings, baseline and trusted keys are shown beside
the base commit's, and now and then they count: a base without settings takes the head's, and a new
baseline may be accepted. Nothing of them is parsed in the process that later holds key and token.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from gate.baseline.entry import Baseline, BaselineEntry
from gate.errors import EvidenceError, GateError
from gate.isolation.isolation import IsolationSettings
from gate.isolation.modes import Isolation
from gate.isolation.process_ports import AnsweringProcess
from gate.isolation.process_request import ProcessRequest
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reading import ReadingAnswer, ReadingRequest, ReadingTask
from gate.settings.gate_settings import GateSettings
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.settings.records_policy_files import MAX_SHOWN, PolicyChange
from gate.system.files.port import Files
from gate.system.progress import Progress
from gate.verdict.published_history import History

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
