"""A separate program: reads what a run left, writes one document, and holds no secret.

The gate starts it once (`gate.pipelines.fresh_process`), and a child of it answers each question:
parsing untrusted bytes in the process that later holds the key and the token would put both behind
every mistake of a parser.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from gate.baseline.entry import MAX_ENTRY_BYTES, PROPOSED_BASELINE
from gate.baseline.folder import files_in, read_entries, read_entry
from gate.checkpoint.digest import CAPTURED
from gate.checkpoint.tensor_hashing import available_threads
from gate.comparison.state_difference import StateDifference
from gate.comparison.states import compare_states
from gate.data.pointers import MAX_POINTER_BYTES, read_pointers
from gate.errors import EvidenceError, GateError
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.collect import collect_run
from gate.evidence.harness_files import find_processes
from gate.evidence.harness_logs import read_traces
from gate.evidence.lock_files import MAX_LOCK_BYTES, MAX_REQUIREMENTS_BYTES
from gate.evidence.lock_readers import read_lock
from gate.evidence.operator_logs import read_operator_audit
from gate.evidence.pinned_packages import read_pinned
from gate.evidence.ranks import read_end
from gate.evidence.run_evidence import MAX_DISTANCES, MAX_NOT_FINITE, StateDistance, TensorDistance
from gate.evidence.saved_state import ReadState, captured_state, open_captured, saved_state
from gate.isolation.answering_server import serve
from gate.pipelines.policy_files import (
    baseline_changes,
    key_changes,
    root_changes,
    settings_changes,
)
from gate.pipelines.reading import (
    MAX_TEXT,
    ReadingAnswer,
    ReadingFault,
    ReadingRequest,
    ReadingTask,
    ReadLeaf,
)
from gate.settings.load import parse_settings
from gate.system.files.files import LocalFiles
from gate.system.github.artifacts import zip_member
from gate.system.github.records import MAX_ARTIFACT_BYTES
from gate.text.document import Document
from gate.text.documents import read_document
from gate.text.json_text import PACKED
from gate.verdict.history import read_history

MAX_OUTPUT_BYTES = 128 * 1024 * 1024
MAX_DETAILS = 200
# each holds stretches as float64: a machine with a hundred cores must not run out of address space
COMPARING_THREADS = 8
MAX_HEAD_BYTES = 16 * 1024 * 1024
# what the tasks below import when they are asked, NumPy with it
IMPORTED_AHEAD = (
    "gate.comparison.data_difference",
    "gate.comparison.weight_noise",
    "gate.comparison.weight_noise",
    "gate.data.statistics",
)
FILES = LocalFiles()
HEAD_TASKS = {
    ReadingTask.SETTINGS: settings_changes,
    ReadingTask.SETTINGS_CHANGES: settings_changes,
    ReadingTask.KEY_CHANGES: key_changes,
    ReadingTask.ROOT_CHANGES: root_changes,
}


def main(control: int) -> None:
    """Answer the questions that come on the socket `control`, until it is closed."""
    # slow to import: done once here, before the first child, and not by each of them
    for name in IMPORTED_AHEAD:
        import_module(name)
    _build(Document)
    serve(control, _answer)


def _build(kind: type[Document]) -> None:
    """Have pydantic make what it needs to read and write records: each child would else do so."""
    for record in kind.__subclasses__():
        record.model_rebuild()
        _build(record)


def _answer(question: bytes) -> bytes:
    """In a child that is limited already."""
    request = read_document(ReadingRequest, question, "the reading request")
    return answered(request).model_dump_json(context=PACKED).encode("utf-8")


def answered(request: ReadingRequest) -> ReadingAnswer:
    """The answer to a request, or the fault that prevented one."""
    try:
        return _found(request)
    # the limit of address space: what was built is free again here, so there is room for an answer
    except MemoryError:
        return ReadingAnswer(
            fault=ReadingFault(
                kind="EvidenceError",
                message="the files that the run left take too much memory to read",
                hint="Let the smoke training take fewer steps, or log fewer numbers.",
            )
        )
    except GateError as fault:
        known = ReadingFault.model_fields["kind"].annotation
        kind = type(fault).__name__
        return ReadingAnswer(
            fault=ReadingFault.model_validate(
                {
                    # the asking side raises by this name, so only names that it knows may go out
                    "kind": kind if kind in getattr(known, "__args__", ()) else "EvidenceError",
                    "message": fault.message[:MAX_TEXT],
                    "hint": fault.hint[:MAX_TEXT],
                    "details": tuple(line[:MAX_TEXT] for line in fault.details[:MAX_DETAILS]),
                }
            )
        )


def _found(request: ReadingRequest) -> ReadingAnswer:
    out = Path(request.out)
    if request.task is ReadingTask.REFUSALS:
        return ReadingAnswer(
            refused=read_operator_audit(FILES, out, find_processes(FILES, out)).refused
        )
    if request.task in KEPT_TASKS:
        return KEPT_TASKS[request.task](out, Path(request.against))
    if request.task in HEAD_TASKS:
        return _of_head(request)
    if request.task is ReadingTask.ARCHIVED_ENTRY:
        return _archived_entry(out, request.shown)
    if request.task in NAMED_TASKS:
        return NAMED_TASKS[request.task](request)
    if request.run is None or request.train is None:
        raise EvidenceError("the reading request names no run")
    evidence = collect_run(
        FILES,
        request.run,
        out,
        Path(request.tree),
        FILES.read_bytes(Path(request.output), max_bytes=MAX_OUTPUT_BYTES),
        request.train,
        taken={name: Path(path) for name, path in request.taken.items()},
    )
    return ReadingAnswer(evidence=evidence, end=read_end(FILES, out, find_processes(FILES, out)))


def _archived_entry(path: Path, shown: str) -> ReadingAnswer:
    data = zip_member(
        path,
        PROPOSED_BASELINE,
        shown,
        max_archive=MAX_ARTIFACT_BYTES,
        max_bytes=MAX_ENTRY_BYTES,
    )
    return ReadingAnswer(entry=read_entry(data, f"{shown}: {PROPOSED_BASELINE}"))


def _entry(request: ReadingRequest) -> ReadingAnswer:
    data = FILES.read_bytes(Path(request.out), max_bytes=MAX_ENTRY_BYTES)
    return ReadingAnswer(entry=read_entry(data, request.shown))


def _baseline(request: ReadingRequest) -> ReadingAnswer:
    found = files_in(FILES, Path(request.out), request.shown)
    return ReadingAnswer(baseline=read_entries(found, request.shown))


def _baseline_changes(request: ReadingRequest) -> ReadingAnswer:
    before, after = (
        files_in(FILES, Path(path), request.shown) if path else None
        for path in (request.against, request.out)
    )
    return ReadingAnswer(changes=baseline_changes(request.shown, before or {}, after or {}))


def _locks(request: ReadingRequest) -> ReadingAnswer:
    return ReadingAnswer(
        locks=tuple(
            read_lock(name, FILES.read_bytes(Path(path), max_bytes=MAX_LOCK_BYTES))
            for name, path in sorted(request.taken.items())
        )
    )


def _pinned(request: ReadingRequest) -> ReadingAnswer:
    data = FILES.read_bytes(Path(request.out), max_bytes=MAX_REQUIREMENTS_BYTES)
    return ReadingAnswer(pinned=read_pinned(request.shown, data))


def _history(request: ReadingRequest) -> ReadingAnswer:
    data = FILES.read_bytes(Path(request.out), max_bytes=MAX_HEAD_BYTES)
    found = read_history(data, request.shown)
    return ReadingAnswer(history=found.lines, history_problem=found.problem[:MAX_TEXT])


def _traces(request: ReadingRequest) -> ReadingAnswer:
    return ReadingAnswer(traces=read_traces(FILES, Path(request.out)))


def _data_pointers(request: ReadingRequest) -> ReadingAnswer:
    copies = Path(request.out)
    return ReadingAnswer(
        pointers=read_pointers(
            request.pointer_files,
            lambda file: FILES.read_bytes(copies / file.copy_name, max_bytes=MAX_POINTER_BYTES),
        )
    )


def _data_statistics(request: ReadingRequest) -> ReadingAnswer:
    # NumPy is slow to import, and few tasks need this
    from gate.data.statistics import data_statistics  # noqa: PLC0415
    from gate.data.tables import Budget, Limits  # noqa: PLC0415

    source = Path(request.out)
    found = data_statistics(
        FILES, source, request.shown or source.name, Budget(Limits(), time.monotonic)
    )
    return ReadingAnswer(statistics=found)


def _saved(request: ReadingRequest) -> ReadingAnswer:
    if request.train is None:
        raise EvidenceError("the reading request names no training")
    return _leaves(saved_state(FILES, Path(request.out), request.shown, request.train))


def _leaves(state: ReadState) -> ReadingAnswer:
    return ReadingAnswer(
        leaves=tuple(ReadLeaf(name=leaf.path, sha256=leaf.digest.hex()) for leaf in state.leaves),
        not_finite=tuple(leaf.path for leaf in state.not_finite[:MAX_NOT_FINITE]),
    )


def _end(request: ReadingRequest) -> ReadingAnswer:
    out = Path(request.out)
    return ReadingAnswer(end=read_end(FILES, out, find_processes(FILES, out)))


NAMED_TASKS = {
    ReadingTask.END: _end,
    ReadingTask.DATA_POINTERS: _data_pointers,
    ReadingTask.SAVED: _saved,
    ReadingTask.LOCKS: _locks,
    ReadingTask.PINNED_PACKAGES: _pinned,
    ReadingTask.HISTORY: _history,
    ReadingTask.ENTRY: _entry,
    ReadingTask.BASELINE: _baseline,
    ReadingTask.BASELINE_CHANGES: _baseline_changes,
    ReadingTask.TRACES: _traces,
    ReadingTask.DATA_STATISTICS: _data_statistics,
}


def _of_head(request: ReadingRequest) -> ReadingAnswer:
    """A file that a pull request's head brings, beside the base's where the two are compared."""
    before, after = (
        FILES.read_bytes(Path(path), max_bytes=MAX_HEAD_BYTES) if path else None
        for path in (request.against, request.out)
    )
    if request.task is ReadingTask.SETTINGS:
        return ReadingAnswer(settings=parse_settings(after or b"", request.shown))
    return ReadingAnswer(changes=HEAD_TASKS[request.task](request.shown, before, after))


def _state(path: Path, _: Path) -> ReadingAnswer:
    return _leaves(captured_state(FILES, path, rank=0))


def _distance(first: Path, second: Path) -> ReadingAnswer:
    with open_captured(FILES, first) as one, open_captured(FILES, second) as other:
        found = compare_states(
            one, other, exclusions=(), threads=_threads(), max_bytes=MAX_STATE_BYTES
        )
    tensors = tuple(_tensor_distances(found))
    distance = StateDistance(total=len(tensors), tensors=tensors[:MAX_DISTANCES])
    return ReadingAnswer(distance=distance)


def _weights(first: Path, second: Path) -> ReadingAnswer:
    # NumPy is slow to import, and no other task needs this
    from gate.comparison.weight_noise import weight_distance  # noqa: PLC0415

    with open_captured(FILES, first) as one, open_captured(FILES, second) as other:
        found = weight_distance(one, other, threads=_threads(), max_bytes=MAX_STATE_BYTES)
    return ReadingAnswer(weights=found)


def _reduction(path: Path, _: Path) -> ReadingAnswer:
    # as above
    from gate.comparison.weight_noise import gradient_tensors, reduction_spread  # noqa: PLC0415

    with open_captured(FILES, path) as gradients:
        return ReadingAnswer(reduction=reduction_spread(gradient_tensors(gradients)))


def _data_difference(one: Path, other: Path) -> ReadingAnswer:
    # as above
    from gate.comparison.data_difference import first_difference  # noqa: PLC0415

    return ReadingAnswer(where=first_difference(FILES, one, other)[:MAX_TEXT])


KEPT_TASKS = {
    ReadingTask.STATE: _state,
    ReadingTask.DISTANCE: _distance,
    ReadingTask.WEIGHTS: _weights,
    ReadingTask.REDUCTION: _reduction,
    ReadingTask.DATA_DIFFERENCE: _data_difference,
}


def _threads() -> int:
    return min(COMPARING_THREADS, available_threads())


def _tensor_distances(found: StateDifference) -> Iterator[TensorDistance]:
    """In the order given; a leaf without numbers is left to the digests, which know of it."""
    for one in found.differences:
        if one.numbers is not None:
            most = one.numbers.max_absolute
            yield TensorDistance(
                name=CAPTURED + one.path,
                elements=one.numbers.elements,
                differing=one.numbers.differing,
                relative_l2=one.numbers.relative_l2,
                max_absolute=None if most is None else float(most),
                finiteness_moved=one.numbers.finiteness_moved,
            )
