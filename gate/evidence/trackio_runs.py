"""Read the metrics of a trackio run, without its client.

With `TRACKIO_STORAGE_MODE=jsonl` the client writes files `inbox/WRITER/NUMBER.jsonl` in its folder.
Each has a few steps and is complete when it appears (the client's `fragments.py`, version 1). A
line is an object with its `kind`, the run's `run_id`, a `step` and the `metrics`. NaN and infinity
are written as text, with the names that JSON readers know. The client's SQLite file is not read,
because its last pages may be in a second file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import EvidenceError, MissingOutputError
from gate.evidence.client_logs import MAX_NAMES, ONE_RUN_HINT, ClientNumbers, logged_names
from gate.evidence.harness_files import MAX_LINE_BYTES, MAX_LINES_BYTES, line_blocks
from gate.evidence.metric_series import FlatValues, ReadMetrics
from gate.evidence.run_evidence import MetricSource
from gate.system.files.port import Files
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import plain_text

INBOX: Final = "inbox"
VERSION: Final = 1
METRIC: Final = "metric"
NON_FINITE: Final = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}
LINES_HINT: Final = (
    "Set `train.env: {TRACKIO_DIR: trackio, TRACKIO_STORAGE_MODE: jsonl}`, and check "
    "train.metrics.trackio: the path is that folder, relative to train.workdir."
)


def trackio_metrics(
    files: Files, folder: Path, shown: str, keys: tuple[str, ...], *, required: bool = True
) -> ReadMetrics:
    """Return each logged number whose name matches a pattern, as `trackio.<name>` in float64.

    Objects and lists are flattened like those of a metrics file. Text, media and values that are
    nested too deep, too wide or too many are skipped, and listed by name. What the client notes
    about the machine is not read.

    Raises `EvidenceError` for a damaged file, a repeated step and several runs. If metrics are
    `required`, raises `MissingOutputError` if there is no run or no matching number.
    """
    numbers = ClientNumbers(MetricSource.TRACKIO, shown, keys)
    fragments, runs, left = _fragments(files, folder, shown), set[str](), MAX_LINES_BYTES
    for path in fragments:
        name = plain_text(f"{shown}/{path.relative_to(folder)}")
        with open_untrusted(files, path, name, max_bytes=max(left, 1)) as opened:
            # one limit for all files together
            left -= opened.size_bytes
            for where, line in _lines(opened):
                record = _metric(opened, where, line)
                if record is not None:
                    run, step, logged = record
                    runs.add(run)
                    for key, value in _numbers(logged, numbers.values):
                        numbers.add(opened, where, step, key, value)
        if len(runs) > 1:
            raise EvidenceError(f"{shown}: contains several runs of the client", hint=ONE_RUN_HINT)
    if required and not runs:
        raise MissingOutputError(f"{shown}: there is no run of trackio in lines", hint=LINES_HINT)
    return numbers.read(shown, required=required)


def _fragments(files: Files, folder: Path, shown: str) -> list[Path]:
    """Return the files of each writer, in the order of their numbers."""
    fragments = [
        folder / INBOX / writer / name
        for writer in logged_names(files, folder / INBOX, f"{shown}/{INBOX}")
        for name in logged_names(files, folder / INBOX / writer, f"{shown}/{INBOX}/{writer}")
        if name.endswith(".jsonl")
    ]
    if len(fragments) > MAX_NAMES:
        raise EvidenceError(f"{shown}: more than {MAX_NAMES:,} files", hint="Log less often.")
    return sorted(fragments)


def _lines(opened: UntrustedFile) -> Iterator[tuple[str, bytes]]:
    for block in line_blocks(opened):
        for number, line in block:
            yield f"line {number}", line


def _metric(
    opened: UntrustedFile, where: str, line: bytes
) -> tuple[str, int, dict[str, object]] | None:
    """Return run, step and values of a line, or None for a line of another kind."""
    record = parse_json(line, f"{opened.shown}: {where}", max_bytes=MAX_LINE_BYTES)
    if not isinstance(record, dict) or record.get("v") != VERSION:
        raise opened.fault(f"{where} is not a record of trackio, version {VERSION}")
    if record.get("kind") != METRIC:
        return None
    # a run without an id is identified by its name
    run = record.get("run_id") or record.get("run")
    step, logged = record.get("step"), record.get("metrics")
    # `bool` is a subclass of `int`, and not a step
    if not isinstance(run, str) or type(step) is not int or not isinstance(logged, dict):
        raise opened.fault(f"{where} has no run, no integer step or no metrics")
    return run, step, logged


def _numbers(logged: dict[str, object], values: FlatValues) -> Iterator[tuple[str, float]]:
    for key, value in logged.items():
        yield from values.numbers(key, _with_non_finite(value))


def _with_non_finite(value: object) -> object:
    """Return the value with NaN and infinities, which the client writes as text, as numbers.

    The recursion is safe because `parse_json` has limited the depth.
    """
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _with_non_finite(member) for key, member in value.items()}
    return [*map(_with_non_finite, value)] if isinstance(value, list) else value
