"""The confined reader: a separate program that parses a run's files and holds no secret.

The gate starts it once (`gate.pipelines.fresh_process`). It forks a child for each question, which
answers with one document. The gate's own process later holds the key and the token: parsing
untrusted bytes there would expose both to every mistake of a parser (T5).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from gate.baseline.entry import MAX_ENTRY_BYTES, PROPOSED_BASELINE, Baseline, BaselineEntry
from gate.baseline.folder import files_in, read_entries, read_entry, zip_member
from gate.checkpoint.digest import CAPTURED
from gate.checkpoint.tensor_hashing import available_threads
from gate.checkpoint.untrusted_files import open_untrusted
from gate.comparison.data_difference import first_difference
from gate.comparison.measurements import AllReduceSpread, ReductionSpread, WeightDistance
from gate.comparison.state_difference import StateDifference
from gate.comparison.states import compare_states
from gate.comparison.weight_noise import gradient_tensors, reduction_spread, weight_distance
from gate.data.data_sets import DataPointers, DataStatistics
from gate.data.pointers import MAX_POINTER_BYTES, read_pointers
from gate.data.statistics import data_statistics
from gate.data.tables import ReadingBudget, ReadingLimits
from gate.errors import DocumentError, GateError
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.collect import collect_run
from gate.evidence.harness_files import find_processes
from gate.evidence.harness_logs import read_traces
from gate.evidence.left_checkpoint import look_at_checkpoint
from gate.evidence.lock_files import MAX_LOCK_BYTES, MAX_REQUIREMENTS_BYTES, Locks, PinnedPackages
from gate.evidence.lock_readers import read_lock
from gate.evidence.node_reports import MAX_REPORT_BYTES, REPORT_NAME, NodeReport
from gate.evidence.operator_logs import read_operator_audit
from gate.evidence.operator_records import Refusal
from gate.evidence.pinned_packages import read_pinned
from gate.evidence.ranks import read_end
from gate.evidence.resume_evidence import CheckpointLook
from gate.evidence.run_evidence import MAX_DISTANCES, MAX_NOT_FINITE, StateDistance, TensorDistance
from gate.evidence.saved_state import ReadState, captured_state, open_captured, saved_state
from gate.evidence.trace import Traces
from gate.isolation.answering_server import serve
from gate.pipelines import reader_questions
from gate.pipelines.policy_changes import (
    baseline_changes,
    key_changes,
    root_changes,
    settings_changes,
)
from gate.pipelines.reader_questions import MAX_TEXT, Answer, Question, ReadingAnswer, ReadingFault
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.settings.policy_change import PolicyChange
from gate.system.files.files import LocalFiles
from gate.system.github.records import MAX_ARTIFACT_BYTES
from gate.text.document import Document
from gate.text.documents import read_document
from gate.text.json_text import PACKED
from gate.text.strict_json import parse_json
from gate.training.runs import RunEnd
from gate.verdict.history_lines import read_history

MAX_OUTPUT_BYTES = 128 * 1024 * 1024
MAX_DETAILS = 200
# each thread holds blocks as float64; a hundred threads would exhaust the limited address space
COMPARING_THREADS = 8
ALL_REDUCE_FILE = "all-reduce.json"
MAX_ALL_REDUCE_BYTES = 64 * 1024
MAX_HEAD_BYTES = 16 * 1024 * 1024
FILES = LocalFiles()


def main(control: int) -> None:
    """Answer the questions that arrive on the socket `control`, until it is closed."""
    # building these forms is slow: do it once here, so that every forked child has them
    for kind in READERS:
        kind.answer_form()
    _build(Document)
    serve(control, _answer)


def _build(kind: type[Document]) -> None:
    """Build the pydantic validators of all records now; otherwise each child builds them."""
    for record in kind.__subclasses__():
        record.model_rebuild()
        _build(record)


def _answer(data: bytes) -> bytes:
    """Answer one question in the child, which has its limits already."""
    question = read_question(data)
    return answer_question(question).model_dump_json(context=PACKED).encode("utf-8")


def read_question(data: bytes) -> Question[Any]:
    """Parse a question, which the gate itself has written."""
    shown = "the reading question"
    document = parse_json(data, shown)
    task = document.get("task") if isinstance(document, dict) else None
    (kind,) = (kind for kind in READERS if kind.model_fields["task"].default == task)
    return read_document(kind, data, shown)


def answer_question(question: Question[Answer]) -> ReadingAnswer[Answer]:
    """Return the answer to a question, or the fault that prevented it."""
    form = question.answer_form()
    try:
        answer = READERS[type(question)](question)
        return form.model_validate({"result": {"kind": "answer", "answer": answer}})
    # the limit of address space: the failed objects are free again here, so an answer fits
    except MemoryError:
        fault = ReadingFault(
            kind="EvidenceError",
            message="the files that the run left take too much memory to read",
            hint="Let the smoke training take fewer steps, or log fewer numbers.",
        )
        return form(result=fault)
    except GateError as error:
        # the gate raises this error by name, so send only names that it knows
        known = getattr(ReadingFault.model_fields["kind"].annotation, "__args__", ())
        kinds = [form.__name__ for form in type(error).__mro__ if form.__name__ in known]
        answers = {
            "kind": (*kinds, "EvidenceError")[0],
            "message": error.message[:MAX_TEXT],
            "hint": error.hint[:MAX_TEXT],
            "details": tuple(line[:MAX_TEXT] for line in error.details[:MAX_DETAILS]),
        }
        return form.model_validate({"result": answers})


def _run(question: reader_questions.RunQuestion) -> reader_questions.RunAnswer:
    evidence = collect_run(
        FILES,
        question.run,
        question.out,
        question.tree,
        # captured by the gate from the process's output, so the training cannot rewrite it
        # afterwards
        FILES.read_bytes(question.output, max_bytes=MAX_OUTPUT_BYTES),
        question.train,
        taken=question.taken,
    )
    end = read_end(FILES, question.out, find_processes(FILES, question.out))
    return reader_questions.RunAnswer(evidence=evidence, end=end)


def _nodes(question: reader_questions.NodesQuestion) -> reader_questions.NodesAnswer:
    """Read the report of every node.

    `NodesQuestion.fits` refuses a report about another run.
    """
    reports = []
    for number in range(question.nodes):
        shown = f"the report of node {number}"
        path = question.folder / str(number) / REPORT_NAME
        with open_untrusted(FILES, path, shown, max_bytes=MAX_REPORT_BYTES) as opened:
            data = opened.read_at(0, opened.size_bytes)
            reports.append(read_document(NodeReport, data, shown, max_bytes=MAX_REPORT_BYTES))
    return reader_questions.NodesAnswer(reports=tuple(reports))


def _refusals(question: reader_questions.RefusalsQuestion) -> tuple[Refusal, ...]:
    out = question.out
    return read_operator_audit(FILES, out, find_processes(FILES, out)).refused


def _end(question: reader_questions.EndQuestion) -> RunEnd:
    return read_end(FILES, question.out, find_processes(FILES, question.out))


def _traces(question: reader_questions.TracesQuestion) -> Traces:
    return read_traces(FILES, question.out)


def _checkpoint(question: reader_questions.CheckpointQuestion) -> CheckpointLook:
    return look_at_checkpoint(FILES, question.out, question.tree, question.place, question.whole)


def _state(question: reader_questions.StateQuestion) -> reader_questions.StateAnswer:
    return _leaves(captured_state(FILES, question.path, rank=0))


def _saved(question: reader_questions.SavedQuestion) -> reader_questions.StateAnswer:
    return _leaves(saved_state(FILES, question.path, question.shown, question.train))


def _leaves(state: ReadState) -> reader_questions.StateAnswer:
    return reader_questions.StateAnswer(
        leaves=tuple(
            reader_questions.ReadLeaf(name=leaf.path, sha256=leaf.digest.hex())
            for leaf in state.leaves
        ),
        # the answer's length is limited, so names beyond the limit are dropped
        not_finite=tuple(leaf.path for leaf in state.not_finite[:MAX_NOT_FINITE]),
    )


def _distance(question: reader_questions.DistanceQuestion) -> StateDistance:
    with (
        open_captured(FILES, question.first) as left,
        open_captured(FILES, question.second) as right,
    ):
        difference = compare_states(
            left, right, exclusions=(), threads=_threads(), max_bytes=MAX_STATE_BYTES
        )
    tensors = tuple(_tensor_distances(difference))
    return StateDistance(total=len(tensors), tensors=tensors[:MAX_DISTANCES])


def _tensor_distances(difference: StateDifference) -> Iterator[TensorDistance]:
    """Yield the distance of each tensor, in the order given.

    Values without numbers are left out: the digests already show whether they differ.
    """
    for difference_ in difference.differences:
        if difference_.numbers is not None:
            most = difference_.numbers.max_absolute
            yield TensorDistance(
                name=CAPTURED + difference_.path,
                elements=difference_.numbers.elements,
                differing=difference_.numbers.differing,
                relative_l2=difference_.numbers.relative_l2,
                max_absolute=None if most is None else float(most),
                finiteness_moved=difference_.numbers.finiteness_moved,
            )


def _weights(question: reader_questions.WeightsQuestion) -> WeightDistance:
    with (
        open_captured(FILES, question.first) as left,
        open_captured(FILES, question.second) as right,
    ):
        return weight_distance(left, right, threads=_threads(), max_bytes=MAX_STATE_BYTES)


def _threads() -> int:
    return min(COMPARING_THREADS, available_threads())


def _reduction(question: reader_questions.ReductionQuestion) -> ReductionSpread | None:
    with open_captured(FILES, question.first) as gradients:
        return reduction_spread(gradient_tensors(gradients))


def _all_reduce(question: reader_questions.AllReduceQuestion) -> AllReduceSpread:
    # the ranks wrote the file, so it is as untrusted as a training's
    path = question.out / ALL_REDUCE_FILE
    data = FILES.read_bytes(path, max_bytes=MAX_ALL_REDUCE_BYTES)
    return read_document(AllReduceSpread, data, ALL_REDUCE_FILE)


def _settings(question: reader_questions.SettingsQuestion) -> GateSettings:
    data = FILES.read_bytes(question.path, max_bytes=MAX_HEAD_BYTES)
    return parse_settings(data, question.shown)


def _baseline(question: reader_questions.BaselineQuestion) -> Baseline:
    baseline = read_entries(files_in(FILES, question.path, question.shown), question.shown)
    # the gate asks only about a folder that contains entries
    if baseline is None:
        raise DocumentError(f"{question.shown}: has no entry", hint="Commit an entry there.")
    return baseline


def _entry(question: reader_questions.EntryQuestion) -> BaselineEntry:
    data = FILES.read_bytes(question.path, max_bytes=MAX_ENTRY_BYTES)
    return read_entry(data, question.shown)


def _archived_entry(question: reader_questions.ArchivedEntryQuestion) -> BaselineEntry:
    data = zip_member(
        question.path,
        PROPOSED_BASELINE,
        question.shown,
        max_archive=MAX_ARTIFACT_BYTES,
        max_bytes=MAX_ENTRY_BYTES,
    )
    return read_entry(data, f"{question.shown}: {PROPOSED_BASELINE}")


def _history(question: reader_questions.HistoryQuestion) -> reader_questions.HistoryAnswer:
    data = FILES.read_bytes(question.path, max_bytes=MAX_HEAD_BYTES)
    history = read_history(data, question.shown)
    return reader_questions.HistoryAnswer(lines=history.lines, problem=history.problem[:MAX_TEXT])


def _pinned(question: reader_questions.PinnedPackagesQuestion) -> PinnedPackages:
    data = FILES.read_bytes(question.path, max_bytes=MAX_REQUIREMENTS_BYTES)
    return read_pinned(question.shown, data)


Changes = tuple[PolicyChange, ...]


def _file_changes(
    compare: Callable[[str, bytes | None, bytes | None], Changes],
    question: reader_questions.ChangesQuestion,
) -> Changes:
    """Compare a policy file of a pull request's head with the base's."""
    before, after = (
        FILES.read_bytes(path, max_bytes=MAX_HEAD_BYTES) if path else None
        for path in (question.before, question.after)
    )
    return compare(question.shown, before, after)


def _baseline_changes(question: reader_questions.BaselineChangesQuestion) -> Changes:
    before, after = (
        files_in(FILES, path, question.shown) if path else None
        for path in (question.before, question.after)
    )
    return baseline_changes(question.shown, before or {}, after or {})


def _locks(question: reader_questions.LocksQuestion) -> Locks:
    return tuple(
        read_lock(name, FILES.read_bytes(path, max_bytes=MAX_LOCK_BYTES))
        for name, path in sorted(question.copies.items())
    )


def _data_pointers(question: reader_questions.DataPointersQuestion) -> DataPointers:
    return read_pointers(
        question.files,
        lambda file: FILES.read_bytes(
            question.folder / file.copy_name, max_bytes=MAX_POINTER_BYTES
        ),
    )


def _data_statistics(
    question: reader_questions.DataStatisticsQuestion,
) -> tuple[DataStatistics, ...]:
    shown = question.shown or question.path.name
    # bounded in size and time, because the data may be large and anyone's
    return data_statistics(
        FILES, question.path, shown, ReadingBudget(ReadingLimits(), time.monotonic)
    )


def _data_difference(question: reader_questions.DataDifferenceQuestion) -> str:
    return first_difference(FILES, question.first, question.second)[:MAX_TEXT]


# The one place that registers a question. A separate child answers each question.
READERS: Mapping[type[Question[Any]], Callable[[Any], Any]] = MappingProxyType(
    dict(
        (
            reader_questions.RunQuestion.read_by(_run),
            reader_questions.NodesQuestion.read_by(_nodes),
            reader_questions.RefusalsQuestion.read_by(_refusals),
            reader_questions.EndQuestion.read_by(_end),
            reader_questions.TracesQuestion.read_by(_traces),
            reader_questions.CheckpointQuestion.read_by(_checkpoint),
            reader_questions.StateQuestion.read_by(_state),
            reader_questions.SavedQuestion.read_by(_saved),
            reader_questions.DistanceQuestion.read_by(_distance),
            reader_questions.WeightsQuestion.read_by(_weights),
            reader_questions.ReductionQuestion.read_by(_reduction),
            reader_questions.AllReduceQuestion.read_by(_all_reduce),
            reader_questions.SettingsQuestion.read_by(_settings),
            reader_questions.BaselineQuestion.read_by(_baseline),
            reader_questions.EntryQuestion.read_by(_entry),
            reader_questions.ArchivedEntryQuestion.read_by(_archived_entry),
            reader_questions.HistoryQuestion.read_by(_history),
            reader_questions.PinnedPackagesQuestion.read_by(_pinned),
            reader_questions.SettingsChangesQuestion.read_by(
                partial(_file_changes, settings_changes)
            ),
            reader_questions.BaselineChangesQuestion.read_by(_baseline_changes),
            reader_questions.KeyChangesQuestion.read_by(partial(_file_changes, key_changes)),
            reader_questions.RootChangesQuestion.read_by(partial(_file_changes, root_changes)),
            reader_questions.LocksQuestion.read_by(_locks),
            reader_questions.DataPointersQuestion.read_by(_data_pointers),
            reader_questions.DataStatisticsQuestion.read_by(_data_statistics),
            reader_questions.DataDifferenceQuestion.read_by(_data_difference),
        )
    )
)
