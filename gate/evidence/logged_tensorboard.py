"""Metrics from TensorBoard event files, without TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import EvidenceError, StorageError
from gate.evidence.event_records import small_records
from gate.evidence.run_evidence import MetricSeries, MetricSource
from gate.evidence.series import SeriesCollector
from gate.evidence.tensorboard import MalformedEventError, Scalar, scalars
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text

EVENT_FILE = "tfevents"
MAX_DEPTH = 8
MAX_NAMES = 20_000
MAX_FOLDERS = 500
MAX_FILES = 200
MAX_FILE_BYTES = 256 * 1024 * 1024


def tensorboard_series(
    files: Files, folder: Path, shown: str, tags: tuple[str, ...], *, required: bool = True
) -> tuple[MetricSeries, ...]:
    """Each scalar whose tag matches one of the patterns, as `tensorboard.<folder>/<tag>`.

    Names begin below the deepest folder that holds all event files, since writers like to name
    that one by the date. Raises `EvidenceError` for damaged files, for a step that comes twice and,
    where one is `required`, for a folder without event files or without a matching scalar.
    """
    event_files = _event_files(files, folder, shown)
    if not event_files and not required:
        return ()
    if not event_files:
        raise EvidenceError(
            f"{shown}: the script wrote no TensorBoard event file there",
            hint="Check train.metrics.tensorboard; the path is relative to train.workdir.",
        )
    common = _common_folder([path.parent for path in event_files])
    collector = SeriesCollector(MetricSource.TENSORBOARD, shown)
    for path in event_files:
        below = path.parent.relative_to(common).as_posix()
        prefix = "" if below == "." else f"{below}/"
        name = plain_text(f"{shown}/{path}")
        with open_untrusted(files, folder / path, name, max_bytes=MAX_FILE_BYTES) as opened:
            for scalar, where in _scalars(opened):
                tag = f"{prefix}{scalar.tag}"
                # with case, whatever the operating system makes of it (`fnmatch` would ask it)
                if any(fnmatchcase(tag, pattern) for pattern in tags):
                    dtype = scalar.dtype
                    collector.add(
                        f"tensorboard.{tag}", scalar.step, scalar.value, dtype=dtype, where=where
                    )
    series = collector.series()
    if required and not series:
        raise EvidenceError(
            f"{shown}: no scalar there matches train.metrics.tensorboard_tags",
            hint="Compare the patterns with the tags that the script logs, and flush its writer.",
        )
    return series


def _scalars(opened: UntrustedFile) -> Iterator[tuple[Scalar, str]]:
    for offset, data in small_records(opened):
        where = f"the record at byte {offset}"
        try:
            for scalar in scalars(data):
                yield scalar, where
        except MalformedEventError as error:
            raise opened.fault(f"{where} is no event: {error.message}") from error


def _event_files(files: Files, folder: Path, shown: str) -> list[PurePosixPath]:
    """Their paths below the folder, sorted; names begin with the time, so runs are in order."""
    paths: list[PurePosixPath] = []
    waiting = [PurePosixPath()]
    visited = 0
    while waiting:
        visited += 1
        here = waiting.pop()
        for name in _names(files, folder, here, shown):
            path = here / name
            # anywhere in the name: writers put time and host before it and a suffix behind it
            if EVENT_FILE in name:
                paths.append(path)
            elif len(path.parts) <= MAX_DEPTH and _is_folder(files, folder / path):
                waiting.append(path)
        if len(paths) > MAX_FILES or visited > MAX_FOLDERS:
            raise EvidenceError(
                f"{shown}: more than {MAX_FILES} event files or {MAX_FOLDERS} folders",
                hint="Name the folder of one run in train.metrics.tensorboard.",
            )
    return sorted(paths)


def _names(files: Files, folder: Path, here: PurePosixPath, shown: str) -> tuple[str, ...]:
    try:
        return files.list_names(folder / here, max_names=MAX_NAMES)
    except StorageError as error:
        raise EvidenceError(
            f"{shown}: cannot be read: {plain_text(error.message)}",
            hint="It must be a folder of event files without links.",
        ) from error


def _is_folder(files: Files, path: Path) -> bool:
    """Whether it can be listed; a file, a link or a pipe beside the events is no concern."""
    try:
        files.list_names(path, max_names=MAX_NAMES)
    except StorageError:
        return False
    return True


def _common_folder(folders: list[PurePosixPath]) -> PurePosixPath:
    common = folders[0]
    for folder in folders[1:]:
        while not folder.is_relative_to(common):
            common = common.parent
    return common
