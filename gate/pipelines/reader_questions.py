"""The questions that the gate asks the confined reader, each with the type of its answer.

They are not beside the readers because the gate's process imports them, and it must not import a
parser. `gate.pipelines.confined_reader.READERS` maps each question to the function that answers it.
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
from gate.verdict.history_lines import MAX_HISTORY_LINES, HistoryLine

QUESTION_SCHEMA: Final = "repro-gate.reading-question/1"
ANSWER_SCHEMA: Final = "repro-gate.reading-answer/1"
MAX_TEXT = 4000
MAX_POINTER_FILES: Final = 2000
Text = Annotated[str, Field(max_length=MAX_TEXT)]
# the reader has another working directory, so relative paths would not work there
AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]
Answer = TypeVar("Answer")


class ReadingFault(Document):
    """A fault that the reader found; `kind` is the class name of the error."""

    kind: Literal[
        "DataError",
        "DocumentError",
        "EvidenceError",
        "OutputError",
        "SettingsError",
        "StorageError",
    ]
    message: Text
    hint: Text = ""
    details: Annotated[tuple[Text, ...], Field(max_length=200)] = ()


class ReadingResult(Document, Generic[Answer]):
    """A successful answer."""

    kind: Literal["answer"] = "answer"
    answer: Answer


class ReadingAnswer(Document, Generic[Answer]):
    """The one document that the reader writes for a question: the answer, or a fault."""

    schema_version: Literal["repro-gate.reading-answer/1"] = ANSWER_SCHEMA
    result: Annotated[ReadingResult[Answer] | ReadingFault, Field(discriminator="kind")]


class Question(Document, Generic[Answer]):
    """A question; the type `Answer` bounds everything that may come back.

    Every concrete question sets its own `task`, by which the reader finds the function.
    """

    schema_version: Literal["repro-gate.reading-question/1"] = QUESTION_SCHEMA
    task: str = ""

    @classmethod
    def answer_form(cls) -> type[ReadingAnswer[Answer]]:
        """Return the record type that writes and reads the answer."""
        # pydantic keeps the type argument of a generic base in its metadata
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
        """Return a row of the reader's table; the type checker verifies what `read` returns."""
        return cls, read

    def fits(self, answer: Answer) -> bool:
        """Decide whether an answer belongs to this question; questions override it."""
        del answer
        return True


class Ask(Protocol):
    """Asks the confined reader, like `FreshReader.ask`."""

    def __call__(
        self, question: Question[Answer], mounts: tuple[ReadOnlyMount, ...] = ()
    ) -> Answer:
        """Return the answer; `mounts` are made visible to the reader."""
        ...


# Questions about the files of a run.


class HarnessQuestion(Question[Answer], Generic[Answer]):
    """A question about the harness's folder `out`."""

    out: AbsolutePath


class RunAnswer(Document):
    """A run's evidence, and how its processes ended."""

    evidence: RunEvidence
    end: RunEnd


class NodesAnswer(Document):
    """The report of every node of a run, by number."""

    reports: Annotated[tuple[NodeReport, ...], Field(max_length=MAX_NODES)]


class NodesQuestion(Question[NodesAnswer]):
    """The reports of the cluster's nodes about the run `token`; `folder` has a folder for each."""

    task: Literal["nodes"] = "nodes"
    folder: AbsolutePath
    token: str
    nodes: int

    def fits(self, answer: NodesAnswer) -> bool:
        """Accept exactly one report of each node, all about this run."""
        # in order and complete: a missing report must not hide a rank
        numbers = [report.number for report in answer.reports]
        same = all(report.token == self.token for report in answer.reports)
        return same and numbers == list(range(self.nodes))


class RunQuestion(HarnessQuestion[RunAnswer]):
    """The evidence of a run.

    `tree` is the training's working directory. `output` is the file with what the run printed.
    `taken` maps names of the harness's files to the copies that are read instead.
    """

    task: Literal["run"] = "run"
    tree: AbsolutePath
    output: AbsolutePath
    taken: dict[str, AbsolutePath]
    run: RunRecord
    train: TrainSettings

    def fits(self, answer: RunAnswer) -> bool:
        """Accept only the gate's own record of how the run went.

        A changed record means that the run's files have taken over the reader.
        """
        return answer.evidence.run == self.run


class RefusalsQuestion(HarnessQuestion[Annotated[tuple[Refusal, ...], Field(max_length=1000)]]):
    """The operators that torch refused in a failed run."""

    task: Literal["refusals"] = "refusals"


class EndQuestion(HarnessQuestion[RunEnd]):
    """How the processes of a failed run ended."""

    task: Literal["end"] = "end"


class TracesQuestion(HarnessQuestion[Traces]):
    """The operator traces of a run."""

    task: Literal["traces"] = "traces"


class AllReduceQuestion(HarnessQuestion[AllReduceSpread]):
    """The spread that ranks measured when they all-reduced kept gradients."""

    task: Literal["all-reduce"] = "all-reduce"


class CheckpointQuestion(HarnessQuestion[CheckpointLook]):
    """What a run left at `place` below its working directory `tree`.

    `whole` is the answer to the same question about a complete checkpoint of the script.
    """

    task: Literal["checkpoint"] = "checkpoint"
    tree: AbsolutePath
    place: Text
    whole: CheckpointLook | None = None


# Questions about saved states.


class ReadLeaf(Document):
    """A tensor of a kept state, with name and digest as in `TensorDigest`."""

    name: str = Field(max_length=1000)
    sha256: str = Field(pattern=SHA256_PATTERN)


class StateAnswer(Document):
    """All tensors of a state, and the names of those that contain a NaN or an infinity."""

    leaves: tuple[ReadLeaf, ...]
    not_finite: Annotated[tuple[str, ...], Field(max_length=MAX_NOT_FINITE)]


class StateQuestion(Question[StateAnswer]):
    """The digests of a state that the harness captured."""

    task: Literal["state"] = "state"
    path: AbsolutePath


class SavedQuestion(Question[StateAnswer]):
    """The digests of what the script saved; `shown` is its name in messages."""

    task: Literal["saved"] = "saved"
    path: AbsolutePath
    shown: Text
    train: TrainSettings


class KeptQuestion(Question[Answer], Generic[Answer]):
    """A question about a kept file, which the reader cannot open: see `FreshReader.ask_of_kept`."""

    first: AbsolutePath


class DistanceQuestion(KeptQuestion[StateDistance]):
    """How far two states are apart, for each tensor."""

    task: Literal["distance"] = "distance"
    second: AbsolutePath


class WeightsQuestion(KeptQuestion[WeightDistance]):
    """How far two states are apart, as one distance over all weights."""

    task: Literal["weights"] = "weights"
    second: AbsolutePath


class ReductionQuestion(KeptQuestion[ReductionSpread | None]):
    """How far the sums of kept gradients move with the order of summation.

    None if no gradients can be summed.
    """

    task: Literal["reduction"] = "reduction"


# Questions about files of a pull request, a branch or an artifact. `shown` is the name in messages.


class FileQuestion(Question[Answer], Generic[Answer]):
    """A question about one file or one folder."""

    path: AbsolutePath
    shown: Text


class SettingsQuestion(FileQuestion[GateSettings]):
    """The settings of a pull request's head."""

    task: Literal["settings"] = "settings"


class BaselineQuestion(FileQuestion[Baseline]):
    """The baseline of a pull request's head, which is a folder."""

    task: Literal["baseline"] = "baseline"


class EntryQuestion(FileQuestion[BaselineEntry]):
    """A proposed entry of a baseline."""

    task: Literal["entry"] = "entry"


class ArchivedEntryQuestion(FileQuestion[BaselineEntry]):
    """A proposed entry of a baseline inside the zip archive of an artifact."""

    task: Literal["archived-entry"] = "archived-entry"


class HistoryAnswer(Document):
    """The lines of earlier runs and a problem, as in `History`."""

    lines: Annotated[tuple[HistoryLine, ...], Field(max_length=MAX_HISTORY_LINES)]
    problem: Text


class HistoryQuestion(FileQuestion[HistoryAnswer]):
    """The lines of earlier runs in a history file."""

    task: Literal["history"] = "history"


class PinnedPackagesQuestion(FileQuestion[PinnedPackages]):
    """The packages of a requirements file that the gate may install."""

    task: Literal["pinned-packages"] = "pinned-packages"


PolicyChanges = Annotated[tuple[PolicyChange, ...], Field(max_length=1000)]


class ChangesQuestion(Question[PolicyChanges]):
    """What head changes in a policy file; a side without the file is None."""

    before: AbsolutePath | None
    after: AbsolutePath | None
    shown: Text


class SettingsChangesQuestion(ChangesQuestion):
    """What head changes in the settings."""

    task: Literal["settings-changes"] = "settings-changes"


class BaselineChangesQuestion(ChangesQuestion):
    """What head changes in the baseline; both sides are folders."""

    task: Literal["baseline-changes"] = "baseline-changes"


class KeyChangesQuestion(ChangesQuestion):
    """What head changes in the trusted keys."""

    task: Literal["key-changes"] = "key-changes"


class RootChangesQuestion(ChangesQuestion):
    """What head changes in the trusted root."""

    task: Literal["root-changes"] = "root-changes"


class LocksQuestion(Question[Locks]):
    """The content of lock files; `copies` maps each path in the commit to its copy."""

    task: Literal["locks"] = "locks"
    copies: dict[str, AbsolutePath]


# Questions about declared data.


class DataPointersQuestion(Question[DataPointers]):
    """The pointers to declared data that were copied into `folder`."""

    task: Literal["data-pointers"] = "data-pointers"
    folder: AbsolutePath
    files: Annotated[tuple[PointerFile, ...], Field(max_length=MAX_POINTER_FILES)]


class DataStatisticsQuestion(
    Question[Annotated[tuple[DataStatistics, ...], Field(max_length=MAX_STATISTICS)]]
):
    """Simple statistics of a file or folder; the suffix of `shown` gives the format of a file."""

    task: Literal["data-statistics"] = "data-statistics"
    path: AbsolutePath
    shown: Text = ""


class DataDifferenceQuestion(Question[Text]):
    """The first difference of two files that the preprocessing wrote."""

    task: Literal["data-difference"] = "data-difference"
    first: AbsolutePath
    second: AbsolutePath
