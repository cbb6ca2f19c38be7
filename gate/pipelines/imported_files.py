"""What lies beside the documents of an imported folder: copied under its digests, and looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gate.errors import EvidenceError, StorageError
from gate.evidence.capture import (
    FIRST_STATE,
    SECOND_STATE,
    captured_digests,
    ends_diverged,
    saved_digests,
)
from gate.evidence.run_evidence import DivergedStates, EvidenceSet, KeptFile, RunEvidence
from gate.evidence.state_manifest import MAX_STATE_BYTES, SAVED_FOLDER, saved_member
from gate.isolation.isolation import IsolationSettings
from gate.isolation.modes import Isolation
from gate.pipelines.adapters import Adapters
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reading import MAX_TEXT, ReadingAnswer, ReadingRequest, ReadingTask
from gate.settings.gate_settings import GateSettings
from gate.system.files.port import Files
from gate.text.untrusted_text import short_text
from gate.training.runs import RunMode, RunRecord
from gate.verdict.request import GateRequest

ALTERED_HINT = "The folder is not what one `repro-gate run` wrote; run the job again."


def records_of(evidence: EvidenceSet) -> tuple[RunRecord, ...]:
    """Every run that there was, those of further seeds too."""
    seeded = (one.run for one in evidence.seeded)
    return (*(run.run for run in evidence.runs), *seeded)


def plain_isolation(settings: GateSettings) -> GateSettings:
    """Not as the settings say: no image is fetched to read a file."""
    return settings.model_copy(update={"isolation": IsolationSettings()})


def kept_here(
    evidence: EvidenceSet,
    request: GateRequest,
    adapters: Adapters,
    folder: Path,
    isolation: Isolation,
) -> tuple[DivergedStates | None, Isolation]:
    """Copy what lies beside the documents under its digests, and look at the kept states."""
    wanted = {f"{record.label}/output.txt" for record in records_of(evidence)} | {FIRST_STATE}
    saved = _saved_files(evidence, request.settings)
    wanted |= {kept.name for kept in saved}
    # exactly these: a file more could be read by somebody who trusts the package
    if {kept.name for kept in evidence.kept} != wanted or len(evidence.kept) != len(wanted):
        raise EvidenceError("the evidence has missing or unexpected files", hint=ALTERED_HINT)
    second = _second_state(evidence)
    target = request.out / "evidence"
    for record in records_of(evidence):
        adapters.files.fresh_folder(target / record.label)
    for kept in (*evidence.kept, *second):
        _copy(kept, folder, target, adapters.files)
    reading = request.out / "work" / "taken"
    adapters.files.fresh_folder(reading)
    own = adapters.isolate(plain_isolation(request.settings), (reading,))
    try:
        with FreshReader(
            adapters.files, adapters.answering, adapters.progress, own.credentials
        ) as reader:
            _check_kept(evidence, request, target, reader)
            apart = _apart_here(evidence, target, reading, reader)
    finally:
        adapters.clean_up(own)
    return apart, replace(isolation, reading=reader.parser_unsandboxed_reason)


def _check_kept(
    evidence: EvidenceSet, request: GateRequest, target: Path, reader: FreshReader
) -> None:
    names = (FIRST_STATE, *(kept.name for kept in _second_state(evidence)))
    for run, name in zip(evidence.runs_of(RunMode.STRICT), names, strict=False):
        question = ReadingRequest(task=ReadingTask.STATE, out=str((target / name).absolute()))
        _check_state(run, name, captured_digests(run), reader.ask(question))
    if _saved_files(evidence, request.settings):
        _check_saved(evidence, request, reader.ask)


def _apart_here(
    evidence: EvidenceSet, target: Path, folder: Path, reader: FreshReader
) -> DivergedStates | None:
    """How far the second state is from the first, where it is kept."""
    apart = None
    for kept in _second_state(evidence):
        # measured here: what the other job says of it is not taken
        first = next(one for one in evidence.kept if one.name == FIRST_STATE)
        distance = reader.distance((target / first.name, first.sha256), target / kept.name, folder)
        apart = DivergedStates(state=kept, distance=distance)
    return apart


def _copy(kept: KeptFile, folder: Path, target: Path, files: Files) -> None:
    """One file, under its digest; `EvidenceError` when it is another or cannot be read."""
    try:
        digest = files.copy_file(folder / kept.name, target / kept.name, max_bytes=MAX_STATE_BYTES)
    except StorageError as error:
        raise EvidenceError(
            f"{kept.name} cannot be read: {short_text(error.message)}", hint=error.hint
        ) from error
    if digest != kept.sha256:
        raise EvidenceError(f"{kept.name}: is not the file listed in set.json", hint=ALTERED_HINT)


def _second_state(evidence: EvidenceSet) -> tuple[KeptFile, ...]:
    """The second strict run's state, when the folder has it; only one that differs is kept."""
    if evidence.apart is None:
        return ()
    if evidence.apart.state.name != SECOND_STATE or not ends_diverged(
        *evidence.runs_of(RunMode.STRICT)[:2]
    ):
        raise EvidenceError(
            "the evidence keeps a state that the gate never keeps", hint=ALTERED_HINT
        )
    return (evidence.apart.state,)


def _saved_files(evidence: EvidenceSet, settings: GateSettings) -> tuple[KeptFile, ...]:
    """The files that the script saved, where the settings have them packed."""
    packed = settings.train.checkpoint is not None and settings.package.checkpoint
    if (evidence.saved is not None) != packed:
        raise EvidenceError(
            "the evidence and the settings disagree on what the script saved", hint=ALTERED_HINT
        )
    return tuple(kept for kept in evidence.kept if kept.name.startswith(SAVED_FOLDER))


def _check_saved(
    evidence: EvidenceSet, request: GateRequest, ask: Callable[[ReadingRequest], ReadingAnswer]
) -> None:
    """Are the files that the script saved those that its strict run is judged by?"""
    run, train = evidence.runs_of(RunMode.STRICT)[0], request.settings.train
    place = request.out / "evidence" / run.run.label / saved_member(evidence)
    question = ReadingRequest(
        task=ReadingTask.SAVED,
        out=str(place.absolute()),
        shown=(train.checkpoint or "")[:MAX_TEXT],
        train=train,
    )
    _check_state(run, place.name, saved_digests(run), ask(question))


def _check_state(
    run: RunEvidence, name: str, digests: dict[str, str], answer: ReadingAnswer
) -> None:
    """Is the kept state the one that its strict run is judged by, NaN and infinity included?"""
    odd = (*(leaf.name for leaf in run.not_finite), *run.constant_infinities)
    not_finite = {name for name in odd if name in digests}
    if digests != {leaf.name: leaf.sha256 for leaf in answer.leaves} or not_finite != set(
        answer.not_finite
    ):
        raise EvidenceError(f"{name}: is not the state of run {run.run.label}", hint=ALTERED_HINT)
