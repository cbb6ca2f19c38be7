"""Metrics from a run of trackio, without its client.

Asked for lines (`TRACKIO_STORAGE_MODE=jsonl`), the client writes `inbox/WRITER/NUMBER.jsonl` in its
folder, a few steps a file, each of them whole when it appears: its own `fragments.py`, version 1.
A line is an object with its `kind`, the run's `run_id`, a `step` and the `metrics`; NaN and
infinity are text, by the names that JSON's readers know. The client's SQLite file is not read: its
last pages may be in a second file.
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
    """Each logged number whose name matches one of the patterns, as `trackio.<name>` in float64.

    Objects and lists are flattened as those of a metrics file are. Text, media, and what is too
    deep, wide or many, is passed over by name; what the client notes of the machine is not read.
    Raises `EvidenceError` for a damaged file, a step that comes twice, several runs and, where one
    is `required`, for a folder without a run or without a matching number.
    """
    numbers = ClientNumbers(MetricSource.TRACKIO, shown, keys)
    fragments, runs, left = _fragments(files, folder, shown), set[str](), MAX_LINES_BYTES
    for path in fragments:
        name = plain_text(f"{shown}/{path.relative_to(folder)}")
        with open_untrusted(files, path, name, max_bytes=max(left, 1)) as opened:
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
    """The files of each writer, in the order in which it numbered them."""
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
    """Run, step and values of a line; None for one of another kind."""
    record = parse_json(line, f"{opened.shown}: {where}", max_bytes=MAX_LINE_BYTES)
    if not isinstance(record, dict) or record.get("v") != VERSION:
        raise opened.fault(f"{where} is not a record of trackio, version {VERSION}")
    if record.get("kind") != METRIC:
        return None
    # the name stands for a run that has no identity
    run = record.get("run_id") or record.get("run")
    step, logged = record.get("step"), record.get("metrics")
    if not isinstance(run, str) or type(step) is not int or not isinstance(logged, dict):
        raise opened.fault(f"{where} has no run, no integer step or no metrics")
    return run, step, logged


def _numbers(logged: dict[str, object], values: FlatValues) -> Iterator[tuple[str, float]]:
    for key, value in logged.items():
        yield from values.numbers(key, _with_non_finite(value))


def _with_non_finite(value: object) -> object:
    """The value with the numbers that the client wrote as text; `parse_json` bounds its depth."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _with_non_finite(member) for key, member in value.items()}
    return [*map(_with_non_finite, value)] if isinstance(value, list) else value
