"""Read the folders and numbers that a logging client left; anything unreadable is an error.

A number that is not read is not compared. A run that differs in it would then pass (T4).
"""

from __future__ import annotations

import os.path
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gate.checkpoint.untrusted_files import UntrustedFile
from gate.errors import EvidenceError, MissingOutputError, StorageError
from gate.evidence.metric_series import FlatValues, ReadMetrics, SeriesCollector, as_float
from gate.evidence.run_evidence import MetricSource
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text

MAX_NAMES: Final = 20_000
REAL_HINT: Final = "Let the training log into real folders, without links, and fewer files."
ONE_RUN_HINT: Final = "Log in one run, for example from rank 0 alone."


class ClientNumbers:
    """Collects the numbers of a client whose names match `train.metrics.SOURCE_keys`.

    Each becomes the metric `SOURCE.NAME` in float64. `values` flattens what was logged.
    """

    def __init__(self, source: MetricSource, shown: str, keys: tuple[str, ...]) -> None:
        self.values = FlatValues(source, f"{source}.", keys)
        self._source, self._keys = source, keys
        self._collector = SeriesCollector(source, shown)

    def add(self, opened: UntrustedFile, where: str, step: int, name: str, value: float) -> None:
        """Add a number.

        Raises `EvidenceError` if float64 would round it, or if its step is repeated.
        """
        if any(fnmatchcase(name, pattern) for pattern in self._keys):
            converted = as_float(opened, where, name, value)
            self._collector.add(f"{self._source}.{name}", step, converted, where=where)

    def read(self, shown: str, *, required: bool) -> ReadMetrics:
        """Return all numbers; raises `MissingOutputError` if one is `required` and none matches."""
        series = self._collector.series()
        if required and not series:
            raise MissingOutputError(
                f"{shown}: no logged number matches train.metrics.{self._source}_keys",
                hint="Compare the patterns with the names that the script logs.",
            )
        return ReadMetrics(series=series, passed_over=self.values.passed_over())


def logged_names(files: Files, folder: Path, shown: str) -> tuple[str, ...]:
    """Return the names in a folder, sorted; none if the folder does not exist.

    Raises `EvidenceError` if a link or a file is in its place, and above 20,000 names.
    """
    # whether a run has to be here is the caller's decision
    if not files.exists(folder):
        return ()
    try:
        return files.list_names(folder, max_names=MAX_NAMES)
    except StorageError as error:
        message = f"{plain_text(shown)}: cannot be read: {plain_text(error.message)}"
        raise EvidenceError(message, hint=REAL_HINT) from error


def refuse_link_out(files: Files, path: Path, within: Path, shown: str) -> None:
    """Raise `EvidenceError` for a link that leads out of the folder `within`.

    A link inside the folder, such as `latest`, is ignored: its target is read in its own place.
    """
    target = files.link_target(path)
    if target is None:
        return
    # `normpath` only compares names; `resolve` would follow the link
    led_to = Path(os.path.normpath(path.parent / target))
    if Path(target).is_absolute() or not led_to.is_relative_to(within):
        raise EvidenceError(
            f"{shown}: {plain_text(str(path.relative_to(within)))} is a link that leads out of it",
            hint=REAL_HINT,
        )
