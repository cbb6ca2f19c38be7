"""The hidden verb that the Python API starts: a call in JSON on stdin, the answer on stdout.

The package `repro_gate` imports nothing of this program and runs it as a separate process. The
program forks, handles signals and trains, which is not safe inside a test process or a notebook
with their threads and packages.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from gate.commands.baseline_writing import who_accepts
from gate.commands.options import progress_for
from gate.commands.program import FILES, INTERRUPTS
from gate.errors import DocumentError, GateError, SettingsError
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.package.secrets import FileSecrets
from gate.pipelines.call_setup import build_adapters
from gate.pipelines.delivery import run_and_deliver
from gate.pipelines.gate import gate
from gate.pipelines.python_call import PythonCall, accept_result, python_request
from gate.pipelines.snapshots import held_out
from gate.report.assembly import ReportLinks
from gate.report.terminal import summary_lines
from gate.text.documents import RecordForm, read_document
from gate.text.untrusted_text import safe_block, safe_line
from gate.verdict.verdict import DRIFTS, Outcome, Verdict

MAX_CALL_BYTES: Final = 1024 * 1024
MAX_VERDICT_BYTES: Final = 64 * 1024 * 1024
RECORD: Final = (
    "record it with `pytest --repro-gate-update`, or update=True, and commit the baseline."
)
ARGUMENTS_HINT: Final = "Correct the argument; docs/python.md lists what each may be."
# the outcomes whose result may become a baseline
ACCEPTABLE: Final = DRIFTS | {Outcome.NO_BASELINE, Outcome.NOT_COMPARABLE}


def python_call_command(verdict: Path | None = None) -> None:
    """Answer a call of the package repro_gate; `--verdict FILE` reads a verdict alone."""
    try:
        answer = _judged(_asked()) if verdict is None else _loaded(verdict)
    except GateError as fault:
        answer = {
            "fault": {
                "message": safe_block("\n".join((fault.message, *fault.details))),
                "hint": safe_block(fault.hint),
                "exit_code": int(fault.exit_code),
            }
        }
    sys.stdout.write(json.dumps(answer))


def _asked() -> PythonCall:
    # One byte above the limit: a longer call is then refused for its length. Cut at the limit, it
    # would be refused as broken JSON.
    data = sys.stdin.buffer.read(MAX_CALL_BYTES + 1)
    try:
        return read_document(PythonCall, data, "the call", max_bytes=MAX_CALL_BYTES)
    except DocumentError as fault:
        raise SettingsError(fault.message, hint=ARGUMENTS_HINT, details=fault.details) from fault


def _judged(call: PythonCall) -> dict[str, object]:
    request = python_request(call, FILES)
    progress = progress_for(quiet=False, verbose=False)
    adapters = build_adapters(FILES, request.top, progress, INTERRUPTS, os.environ)
    # Read git's user before the training, which may write to git's configuration.
    who = who_accepts(request.top)
    delivered = run_and_deliver(request, adapters, FileSecrets(None, FILES, os.environ), gate)
    if delivered.fault is not None:
        raise delivered.fault
    written: tuple[str, ...] = ()
    if call.update:
        with held_out(request.out, FILES):
            written = accept_result(request, adapters, delivered, call.reason, who)
    text = summary_lines(
        delivered.verdict, delivered.reports.links, accept=_accept_step(delivered.verdict)
    )
    report = request.out / "report.html"
    return {
        **_answer(delivered.verdict, f"{text}\nReport: {safe_line(str(report))}"),
        "recorded": written,
    }


def _accept_step(verdict: Verdict) -> str:
    """Return how to accept this result as the baseline; empty if its outcome rules that out."""
    if verdict.outcome not in ACCEPTABLE:
        return ""
    first = "commit the change, then " if verdict.changed_files else ""
    words = f"{first}{RECORD}"
    return (
        f"{words[0].upper()}{words[1:]}" if verdict.nothing_to_compare else f"If intended: {words}"
    )


def _loaded(path: Path) -> dict[str, object]:
    """Read a verdict from a file or an output folder, in a confined child (T5)."""
    file = path / "verdict.json" if FILES.is_folder(path) else path
    form: RecordForm[Verdict] = RecordForm(Verdict)

    def look() -> Verdict:
        data = FILES.read_bytes(file, max_bytes=MAX_VERDICT_BYTES)
        return read_document(Verdict, data, safe_line(str(file)), max_bytes=MAX_VERDICT_BYTES)

    verdict = read_apart(form, look, what=safe_line(str(file)), seconds=reading_seconds(file))
    return _answer(verdict, summary_lines(verdict, ReportLinks()))


def _answer(verdict: Verdict, text: str) -> dict[str, object]:
    return {"text": text, "verdict": verdict.model_dump(mode="json")}
