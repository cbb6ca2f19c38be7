"""Deriving tolerances: from reruns of the default mode, or from evidence of other environments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gate.comparison.measurements import CalibrationDocument
from gate.comparison.measuring_calibration import calibrate
from gate.comparison.tolerance_snippet import calibrated_block
from gate.errors import EvidenceError, SettingsError
from gate.evidence.folder import MANIFEST_NAME, read_evidence_set
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.pipelines.adapters import Adapters
from gate.pipelines.measurement import provenance_of
from gate.pipelines.runs import Session
from gate.settings.load import training_digest
from gate.settings.tolerances import EVERY, FINAL, steps_of
from gate.system.files.port import Files
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line
from gate.training.cost_plan import plan_noise
from gate.training.runs import RunMode
from gate.verdict import blind_spots
from gate.verdict.request import GateRequest

EVIDENCE: Final[RecordForm[EvidenceSet]] = RecordForm(EvidenceSet)
MAX_FOLDERS = 100
MAX_NAMES = 1000
LEAST_RESULTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Results to derive tolerances from, what they are in words, and where the first was made."""

    runs: tuple[RunEvidence, ...]
    words: str
    evidence: EvidenceSet
    isolation: str


def checked_ranges(ranges: tuple[str, ...]) -> tuple[str, ...]:
    """The ranges of steps as given; `SettingsError` where one would decide another's steps."""
    taken: list[range] = []
    for place, text in enumerate(ranges):
        try:
            steps = steps_of(text)
        except ValueError as error:
            raise SettingsError(
                f"--steps {error}", hint="Give it once for each range: --steps 1-10 --steps 11-20."
            ) from error
        if steps is None and place < len(ranges) - 1:
            raise SettingsError(
                f"--steps {text} takes every step that is left",
                hint=f"Give {FINAL} or {EVERY} last: the first tolerance that fits decides.",
            )
        if steps is not None and any(
            steps.start < other.stop and other.start < steps.stop for other in taken
        ):
            raise SettingsError(
                f"--steps {text} overlaps a range before it", hint="Let no step be in two ranges."
            )
        taken += [steps] if steps is not None else []
    return ranges


def rerun(request: GateRequest, adapters: Adapters, runs: int | None) -> Measured:
    """Rerun the default mode."""
    wanted = request.settings.noise.runs if runs is None else runs
    with Session(request, adapters) as session:
        # only the numbers: no weights are kept
        planned = tuple(replace(run, keep_values=False) for run in plan_noise(wanted))
        evidence = session.evidence(tuple(session.run(run) for run in planned))
        isolation = session.isolation.described
    words = f"{wanted} runs in default mode"
    return Measured(runs=evidence.runs, words=words, evidence=evidence, isolation=isolation)


def from_folders(request: GateRequest, files: Files, folders: tuple[Path, ...]) -> Measured:
    """Results that were measured elsewhere: evidence folders, or output folders that hold one.

    Of a folder with strict runs the first one counts, for the others repeat it, and of several
    such folders of one environment the first; else every default run.
    """
    if len(folders) > MAX_FOLDERS:
        raise SettingsError(
            f"--from was given {len(folders)} times, the limit is {MAX_FOLDERS}",
            hint="A few runs of each environment are enough.",
        )
    sets = [_read(request, files, folder) for folder in folders]
    for place, one in enumerate(sets):
        # a copy is no second measurement, and would halve the spread
        if one in sets[:place]:
            raise EvidenceError(
                f"{folders[place]}: is a copy of {folders[sets.index(one)]}",
                hint="Give each measurement once.",
            )
        if one.snapshot_digest != sets[0].snapshot_digest:
            raise EvidenceError(
                f"{folders[place]}: other code was trained there than in {folders[0]}",
                hint="Train the same commit everywhere: what code moves is no noise.",
            )
    strict = [run for one in sets for run in one.runs_of(RunMode.STRICT)[:1]]
    default = [run for one in sets for run in one.runs_of(RunMode.DEFAULT)]
    runs = tuple(_one_each(strict) if strict else default)
    if strict and len(strict) < len(sets):
        raise EvidenceError(
            "some of the folders have strict runs and some have only default runs",
            hint="Measure every environment with the same command.",
        )
    if len(runs) < LEAST_RESULTS:
        raise EvidenceError(
            f"there are {len(runs)} results to compare, and two are needed",
            hint="Strict runs of one environment repeat each other and count once: give folders "
            "of several environments, or of `repro-gate noise`.",
        )
    mode = "strict" if strict else "default"
    words = f"{len(runs)} runs in {mode} mode, from {len(folders)} folders of evidence"
    return Measured(runs=runs, words=words, evidence=sets[0], isolation="as reported there")


def _read(request: GateRequest, files: Files, given: Path) -> EvidenceSet:
    inside = given / "evidence"
    folder = inside if files.exists(inside / MANIFEST_NAME) else given
    if not files.exists(folder / MANIFEST_NAME):
        raise EvidenceError(
            f"there is no evidence in {given}",
            hint="Name the folder that --out was given, or the `evidence` folder in it.",
        )
    for name in files.list_names(folder, max_names=MAX_NAMES):
        # what was downloaded can hold links, and one that leads out would be read as evidence
        files.refuse_links(folder / name, below=folder)
    evidence = read_apart(
        EVIDENCE,
        lambda: read_evidence_set(files, folder),
        what=safe_line(str(given)),
        seconds=reading_seconds(folder),
        answer_bytes=LARGE_ANSWER_BYTES,
    )
    if evidence.training_digest != training_digest(request.settings):
        raise EvidenceError(
            f"{given}: was made under other training settings than {request.config_name} has",
            hint="Another command, seed or number of steps is another experiment.",
        )
    if not evidence.runs:
        raise EvidenceError(f"{given}: holds no run", hint="Run the measurement again.")
    return evidence


def _one_each(runs: list[RunEvidence]) -> list[RunEvidence]:
    """The first run of each environment: what is repeated bit for bit tells nothing new."""
    found: list[RunEvidence] = []
    for run in runs:
        if all(run.environment.moved(other.environment) for other in found):
            found.append(run)
    return found


def calibration(
    request: GateRequest, measured: Measured, ranges: tuple[str, ...], confidence: float
) -> CalibrationDocument:
    """Derive the tolerances; what they could not catch stands among the notes."""
    runs = measured.runs
    found, notes = calibrate(runs, ranges, confidence, request.settings.compare.tolerances)
    uses = tuple(one.use for one in found)
    blind = tuple(finding.message for finding in blind_spots.tolerances(uses, runs[0]))
    provenance = provenance_of(measured.evidence, measured.isolation)
    environments = len(_one_each(list(runs)))
    where = "one environment" if environments == 1 else f"{environments} environments"
    words = f"repro-gate baseline calibrate: {measured.words}, {where}"
    return CalibrationDocument(
        provenance=provenance,
        measured=measured.words,
        runs=len(runs),
        environments=environments,
        confidence=confidence,
        tolerances=found,
        block=calibrated_block(found, words, provenance),
        notes=(*notes, *blind),
    )
