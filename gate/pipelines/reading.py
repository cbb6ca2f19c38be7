"""The questions that the gate asks the process that reads what a run left, each with its answer.

Here and not beside the readers: this process asks, and must not import a parser with a question.
What answers one is a line of `gate.pipelines.reader.READERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, Protocol, Self, TypeVar

from pydantic import AfterValidator, Field

from gate.baseline.entry import Baseline, BaselineEntry
from gate.comparison.measurements import AllReduceSpread, ReductionSpread, WeightDistance
from gate.data.data_sets import MAX_STATISTICS, DataPointers, DataStatistics, PointerFile
from gate.evidence.lock_files import Locks, PinnedPackages
from gate.evidence.node_reports import MAX_NODES, NodeReport
from gate.evidence.operator_records import Refusal
from gate.evidence.resume_evidence import CheckpointLook
from gate.evidence.run_evidence import MAX_NOT_FINITE, SHA256_PATTERN, RunEvidence, StateDistance
from gate.evidence.trace import Traces
from gate.isolation.process_request import ReadOnlyMount
from gate.settings.gate_settings import GateSettings, TrainSettings
from gate.settings.policy_change import PolicyChange
from gate.text.document import Document
from gate.training.runs import RunEnd, RunRecord
from gate.verdict.history import MAX_HISTORY_LINES, HistoryLine

QUESTION_SCHEMA: Final = "repro-gate.reading-question/1"
ANSWER_SCHEMA: Final = "repro-gate.reading-answer/1"
MAX_TEXT = 4000
MAX_POINTER_FILES: Final = 2000
Text = Annotated[str, Field(max_length=MAX_TEXT)]
# the process that reads works in another folder
AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]
Answer = TypeVar("Answer")


class ReadingFault(Document):
    """A fault that the reading process found; `kind` is the name of its class."""

    kind: Literal["DataError", "DocumentError", "EvidenceError", "SettingsError", "StorageError"]
    message: Text
    hint: Text = ""
    details: Annotated[tuple[Text, ...], Field(max_length=200)] = ()


class ReadingResult(Document, Generic[Answer]):
    """What was asked for."""

    kind: Literal["answer"] = "answer"
    answer: Answer


class ReadingAnswer(Document, Generic[Answer]):
    """The one document that the reading process writes: what was asked for, or a fault."""

    schema_version: Literal["repro-gate.reading-answer/1"] = ANSWER_SCHEMA
    result: Annotated[ReadingResult[Answer] | ReadingFault, Field(discriminator="kind")]


class Question(Document, Generic[Answer]):
    """What is asked; `Answer` is all that may come back, and bounds it.

    A question of its own names its `task`, by which the reading process finds the function.
    """

    schema_version: Literal["repro-gate.reading-question/1"] = QUESTION_SCHEMA
    task: str = ""

    @classmethod
    def answer_form(cls) -> type[ReadingAnswer[Answer]]:
        """What the answer is read and written by."""
        # the type in the brackets of a base, which pydantic keeps
        bases = (base for base in cls.__mro__ if issubclass(base, Question))
        named = (base.__pydantic_generic_metadata__["args"] for base in bases)
        (answer,) = next(args for args in named if args)
        generic: Any = ReadingAnswer
        form: type[ReadingAnswer[Answer]] = generic[answer]
        return form

    @classmethod
    def read_by(
        cls, read: Callable[[Self], Answer]
    ) -> tuple[type[Question[Any]], Callable[[Any], Any]]:
        """A line of the reader's table: only a function that gives this answer fits."""
        return cls, read

    def fits(self, answer: Answer) -> bool:
        """Whether an answer is about what was asked."""
        del answer
        return True


class Ask(Protocol):
    """Has the confined process read something, as `FreshReader.ask` does."""

    def __call__(
        self, question: Question[Answer], mounts: tuple[ReadOnlyMount, ...] = ()
    ) -> Answer:
        """The answer; `mounts` are shown to the process."""
        ...


# What a run left.


class HarnessQuestion(Question[Answer], Generic[Answer]):
    """About the harness's folder."""

    out: AbsolutePath


class RunAnswer(Document):
    """A run's evidence, and how its processes ended."""

    evidence: RunEvidence
    end: RunEnd


class NodesAnswer(Document):
    """The report of every node of a run, by number."""

    reports: Annotated[tuple[NodeReport, ...], Field(max_length=MAX_NODES)]


class NodesQuestion(Question[NodesAnswer]):
    """What the nodes of a cluster say of the run `token`; `folder` has a folder for each."""

    task: Literal["nodes"] = "nodes"
    folder: AbsolutePath
    token: str
    nodes: int

    def fits(self, answer: NodesAnswer) -> bool:
        """Every node once, and all of this run."""
        numbers = [report.number for report in answer.reports]
        same = all(report.token == self.token for report in answer.reports)
        return same and numbers == list(range(self.nodes))


class RunQuestion(HarnessQuestion[RunAnswer]):
    """What a run did.

    `tree` is the training's working directory, `output` the file with
    what it printed, `taken` the copies that are read in the place of the harness's files of those
    names.
    """

    task: Literal["run"] = "run"
    tree: AbsolutePath
    output: AbsolutePath
    taken: dict[str, AbsolutePath]
    run: RunRecord
    train: TrainSettings

    def fits(self, answer: RunAnswer) -> bool:
        """How the run went is the gate's own record: what changes it has been overridden."""
        return answer.evidence.run == self.run


class RefusalsQuestion(HarnessQuestion[Annotated[tuple[Refusal, ...], Field(max_length=1000)]]):
    """The operators that a failed run was refused."""

    task: Literal["refusals"] = "refusals"


class EndQuestion(HarnessQuestion[RunEnd]):
    """How the processes of a failed run ended."""

    task: Literal["end"] = "end"


class TracesQuestion(HarnessQuestion[Traces]):
    """The operator traces of a run."""

    task: Literal["traces"] = "traces"


class AllReduceQuestion(HarnessQuestion[AllReduceSpread]):
    """What ranks told that all-reduced gradients."""

    task: Literal["all-reduce"] = "all-reduce"


class CheckpointQuestion(HarnessQuestion[CheckpointLook]):
    """What a run left at `place` below its working directory `tree`.

    `whole` is what the same question said of a complete checkpoint of the script.
    """

    task: Literal["checkpoint"] = "checkpoint"
    tree: AbsolutePath
    place: Text
    whole: CheckpointLook | None = None


# Saved states.


class ReadLeaf(Document):
    """A tensor of a kept state, as `TensorDigest` has it."""

    name: str = Field(max_length=1000)
    sha256: str = Field(pattern=SHA256_PATTERN)


class StateAnswer(Document):
    """All tensors of a state, and the names of those that hold a NaN or an infinity."""

    leaves: tuple[ReadLeaf, ...]
    not_finite: Annotated[tuple[str, ...], Field(max_length=MAX_NOT_FINITE)]


class StateQuestion(Question[StateAnswer]):
    """A state that the harness captured."""

    task: Literal["state"] = "state"
    path: AbsolutePath


class SavedQuestion(Question[StateAnswer]):
    """What the script saved; `shown` is the name of it for messages."""

    task: Literal["saved"] = "saved"
    path: AbsolutePath
    shown: Text
    train: TrainSettings


class KeptQuestion(Question[Answer], Generic[Answer]):
    """About a kept file, where the process cannot read: see `FreshReader.ask_of_kept`."""

    first: AbsolutePath


class DistanceQuestion(KeptQuestion[StateDistance]):
    """How far two states are apart, tensor by tensor."""

    task: Literal["distance"] = "distance"
    second: AbsolutePath


class WeightsQuestion(KeptQuestion[WeightDistance]):
    """How far two states are apart, all weights together."""

    task: Literal["weights"] = "weights"
    second: AbsolutePath


class ReductionQuestion(KeptQuestion[ReductionSpread | None]):
    """How far the sums of kept gradients move; None where none can be summed."""

    task: Literal["reduction"] = "reduction"


# Files of a pull request's head, of a branch, of an artifact. `shown` is the name for messages.


class FileQuestion(Question[Answer], Generic[Answer]):
    """About one file, or one folder."""

    path: AbsolutePath
    shown: Text


class SettingsQuestion(FileQuestion[GateSettings]):
    """A head's settings."""

    task: Literal["settings"] = "settings"


class BaselineQuestion(FileQuestion[Baseline]):
    """A head's baseline, which is a folder."""

    task: Literal["baseline"] = "baseline"


class EntryQuestion(FileQuestion[BaselineEntry]):
    """A proposed entry of a baseline."""

    task: Literal["entry"] = "entry"


class ArchivedEntryQuestion(FileQuestion[BaselineEntry]):
    """A proposed entry in the archive of an artifact."""

    task: Literal["archived-entry"] = "archived-entry"


class HistoryAnswer(Document):
    """As `History`."""

    lines: Annotated[tuple[HistoryLine, ...], Field(max_length=MAX_HISTORY_LINES)]
    problem: Text


class HistoryQuestion(FileQuestion[HistoryAnswer]):
    """Earlier runs."""

    task: Literal["history"] = "history"


class PinnedPackagesQuestion(FileQuestion[PinnedPackages]):
    """What of a requirements file may be installed."""

    task: Literal["pinned-packages"] = "pinned-packages"


PolicyChanges = Annotated[tuple[PolicyChange, ...], Field(max_length=1000)]


class ChangesQuestion(Question[PolicyChanges]):
    """What a head changes in a file that decides; None is a side without it."""

    before: AbsolutePath | None
    after: AbsolutePath | None
    shown: Text


class SettingsChangesQuestion(ChangesQuestion):
    """In the settings."""

    task: Literal["settings-changes"] = "settings-changes"


class BaselineChangesQuestion(ChangesQuestion):
    """In the baseline; both sides are folders."""

    task: Literal["baseline-changes"] = "baseline-changes"


class KeyChangesQuestion(ChangesQuestion):
    """In the trusted keys."""

    task: Literal["key-changes"] = "key-changes"


class RootChangesQuestion(ChangesQuestion):
    """In the trusted root."""

    task: Literal["root-changes"] = "root-changes"


class LocksQuestion(Question[Locks]):
    """Lock files, the copy of each by its path in the commit."""

    task: Literal["locks"] = "locks"
    copies: dict[str, AbsolutePath]


# Declared data.


class DataPointersQuestion(Question[DataPointers]):
    """Pointers to declared data, copied into `folder`."""

    task: Literal["data-pointers"] = "data-pointers"
    folder: AbsolutePath
    files: Annotated[tuple[PointerFile, ...], Field(max_length=MAX_POINTER_FILES)]


class DataStatisticsQuestion(
    Question[Annotated[tuple[DataStatistics, ...], Field(max_length=MAX_STATISTICS)]]
):
    """Simple statistics of a file or folder; the suffix of `shown` tells the format of a file."""

    task: Literal["data-statistics"] = "data-statistics"
    path: AbsolutePath
    shown: Text = ""


class DataDifferenceQuestion(Question[Text]):
    """Where two files that preprocessing wrote first differ."""

    task: Literal["data-difference"] = "data-difference"
    first: AbsolutePath
    second: AbsolutePath
