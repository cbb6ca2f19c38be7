"""The harness's override log as records, and the mode that makes an error of it."""

from __future__ import annotations

from pathlib import Path

from gate.errors import EvidenceError
from gate.evidence.overrides import Override, OverrideLine
from gate.evidence.processes_harness_files import (
    HarnessFile,
    ProcessFiles,
    plain_fields,
    told_lines,
)
from gate.evidence.run_evidence import RunEvidence
from gate.settings.train_sections import OnOverride
from gate.system.files.port import Files
from gate.training.runs import RunMode

SHOWN = 20


def read_overrides(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> tuple[Override, ...]:
    """What every process logged, in the order of ranks and processes.

    Raises `EvidenceError` for a malformed log, and for one longer than the harness's own limit.
    """
    lines = told_lines(files, out, processes, HarnessFile.OVERRIDES, OverrideLine)
    return tuple(_of_process(line, process) for line, process in lines)


def _of_process(line: OverrideLine, process: ProcessFiles) -> Override:
    fields = plain_fields(line, _OVERRIDE_TEXTS)
    return Override.model_validate({**fields, "rank": process.rank, "pid": process.pid})


_OVERRIDE_TEXTS = ("name", "before", "after", "file")


def refuse_overrides(run: RunEvidence, mode: OnOverride) -> None:
    """Raise `EvidenceError` when the settings make a strict run fail for what it overrode.

    A seed of the script's own and a suspended determinism are its right in every mode.
    """
    overrides = [override for override in run.overrides if override.weakens]
    if mode is not OnOverride.FAIL or run.run.mode is not RunMode.STRICT or not overrides:
        return
    details = tuple(
        f"{override.place}, step {override.step}: {override.name} from "
        f"{override.before or 'unset'} to {override.after or 'unset'}"
        for override in overrides[:SHOWN]
    )
    raise EvidenceError(
        f"run {run.run.label}: the training overrode what the gate had set ({len(overrides)} "
        "time(s))",
        hint="Remove these lines from the script, or set determinism.on_override to observe or "
        "restore.",
        details=details,
    )
