"""The guest's tamper log as records, and the mode that makes an error of it."""

from __future__ import annotations

from pathlib import Path

from gate.codec.untrusted_text import plain_text
from gate.errors import EvidenceError
from gate.evidence.guest_files import GuestFile, ProcessFiles, told_lines
from gate.ports import Files
from gate.records.determinism_settings import Tamper
from gate.records.evidence import RunEvidence
from gate.records.runs import RunMode
from gate.records.tampering import Tampering, TamperLine

MAX_LINES = 200
MAX_TEXT = 200
SHOWN = 20


def read_tampering(
    files: Files, out: Path, found: tuple[ProcessFiles, ...]
) -> tuple[Tampering, ...]:
    """What every process told, in the order of ranks and processes.

    Raises `EvidenceError` for a malformed log, and for one longer than the guest's own limit.
    """
    told = told_lines(files, out, found, GuestFile.TAMPER, TamperLine, max_lines=MAX_LINES)
    return tuple(_of_process(line, process) for line, process in told)


def _of_process(line: TamperLine, process: ProcessFiles) -> Tampering:
    texts = {key: plain_text(getattr(line, key))[:MAX_TEXT] for key in _TEXTS}
    return Tampering(rank=process.rank, pid=process.pid, **(line.model_dump() | texts))


_TEXTS = ("name", "before", "after", "file")


def refuse_tampering(run: RunEvidence, mode: Tamper) -> None:
    """Raise `EvidenceError` when the settings let a strict run fail for what it turned back.

    A seed of the script's own and a declared hole are its right in every mode.
    """
    deeds = [deed for deed in run.tampering if deed.weakens]
    if mode is not Tamper.FAIL or run.run.mode is not RunMode.STRICT or not deeds:
        return
    details = tuple(
        f"{deed.place}, step {deed.step}: {deed.name} from {deed.before or 'unset'} to "
        f"{deed.after or 'unset'}"
        for deed in deeds[:SHOWN]
    )
    raise EvidenceError(
        f"run {run.run.label}: the training turned back what the gate had set "
        f"({len(deeds)} time(s))",
        hint="Take these lines out of the script, or set determinism.tamper to observe or restore.",
        details=details,
    )
