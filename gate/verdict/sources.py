"""Recorded sources that may make results differ, and data from outside the commit."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from gate.data.declared import data_names, entries_for
from gate.diagnosis.diagnosis import CodePlace
from gate.evidence.observations import Source, SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import GateSettings
from gate.training.environment import normalized_name
from gate.verdict.findings import notice
from gate.verdict.verdict import Finding, Severity

ORDERS = frozenset((SourceKind.ORDER, SourceKind.COMPLETION))
# A split by listing only leads to advice: both runs draw it alike.
COMPARED = ORDERS | {SourceKind.PRECISION, SourceKind.READ, SourceKind.SPLIT}
# Kinds that a verdict does not cover, or that belong beside a change. None makes two runs differ.
NOT_COVERED = frozenset(
    (
        *(SourceKind.VARIABLE, SourceKind.SAVED, SourceKind.OPENED, SourceKind.UNSEEN),
        SourceKind.SCHEDULE,
    )
)
# The limit at which a process stops reporting a kind; see gate/harness/sources/recorded.py.
MOST_OF_A_KIND = 40
MAX_WORDS = 200
# Only shaken runs record these. In a judged run only a training that forges them has them, so they
# are ignored.
SHAKEN = frozenset((SourceKind.VARIED, SourceKind.READING))


def suspected_sources(strict: tuple[RunEvidence, ...]) -> tuple[Source, ...]:
    """Return the sources that may make two runs of one commit differ.

    An order, a switch of precision or a file counts only where the two runs differ in it.
    """
    if len(strict) < 2:  # noqa: PLR2004 - a difference takes two
        return ()
    first, second = strict[:2]
    passed_over = COMPARED | SHAKEN | NOT_COVERED
    differing = (
        source for source in first.sources if source.kind not in passed_over and source.file
    )
    return (
        *_other_reads(first, second),
        *_other_orders(first, second),
        *_other_precision(first, second),
        *differing,
    )


def changed_precision(run: RunEvidence, base: RunEvidence | None) -> tuple[Source, ...]:
    """Return switches of precision that a commit makes and its base does not.

    Without a run of the base, only switches after the first step count: what a script sets at its
    start was most often there before the change.
    """
    turned = [source for source in run.sources if source.kind is SourceKind.PRECISION]
    if base is not None:
        known = set(map(_turn, base.sources))
        return tuple(source for source in turned if _turn(source) not in known)
    return tuple(source for source in turned if source.step > 1)


def _turn(source: Source) -> tuple[object, ...]:
    """Return a switch's identity without its line, because a commit moves lines."""
    return source.kind, source.rank, source.step, source.call, source.before, source.after


def _other_precision(first: RunEvidence, second: RunEvidence) -> tuple[Source, ...]:
    both = ((first, second), (second, first))
    return tuple(source for run, other in both for source in changed_precision(run, other))


def _other_orders(first: RunEvidence, second: RunEvidence) -> tuple[Source, ...]:
    """Return listings with the same names, or the same pieces of work, in a different order."""
    orders = {_ordered(source): source.after for source in second.sources}
    return tuple(
        source
        for source in first.sources
        if source.kind in ORDERS
        and _in_another_order(source.after, orders.get(_ordered(source), source.after))
    )


def _in_another_order(left: str, right: str) -> bool:
    """Return whether the order differs; pieces reported one by one must be the same in both."""
    several = " " in left
    return left != right and (not several or sorted(left.split()) == sorted(right.split()))


def _other_reads(first: RunEvidence, second: RunEvidence) -> Iterator[Source]:
    """Yield files that changed between the runs, and files that only one of the runs read.

    `before` and `after` are the file's stamps in each run, empty where it was not read.
    """
    both = tuple(map(_reads, (first, second)))
    stamps = [
        {
            path: sorted({read.after for read in lines if read.stamp})
            for path, lines in reads.items()
        }
        for reads in both
    ]
    # If either run left out some reads, a file that is missing there may have been read anyway.
    every = not any(map(_some_left_out, both))
    for path in dict.fromkeys((*both[0], *both[1])):
        was, now = (known.get(path, []) for known in stamps)
        if was != now and (every or (was and now)):
            line = (both[0].get(path) or both[1][path])[0]
            words = {
                "before": " and ".join(was)[:MAX_WORDS],
                "after": " and ".join(now)[:MAX_WORDS],
            }
            yield line.model_copy(update=words)


def _reads(run: RunEvidence) -> dict[str, list[Source]]:
    reads: dict[str, list[Source]] = {}
    for source in run.sources:
        if source.kind is SourceKind.READ:
            reads.setdefault(source.call, []).append(source)
    return reads


def _some_left_out(reads: dict[str, list[Source]]) -> bool:
    lines = sum(map(len, reads.values()))
    return lines >= MOST_OF_A_KIND or any(path.endswith("/") for path in reads)


def _ordered(source: Source) -> tuple[object, ...]:
    return source.kind, source.rank, source.place, source.call, source.before


# Above this number of files of one folder, the folder is named instead of each file.
NAMED_FILES: Final = 2
DECLARED_AT_ONCE: Final = 5
SHOWN_SPLITS: Final = 3
NAMED_AT_ONCE: Final = 5
# Variables of distributed training, on which the verdict has a sentence of its own.
OF_RANKS: Final = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)


def undeclared_reads(
    strict: tuple[RunEvidence, ...], settings: GateSettings
) -> tuple[Finding, ...]:
    """Which files outside the commit did the training read that the settings do not declare?

    In a container this reports nothing: files in it came with the image.
    """
    if strict[0].run.isolation.image:
        return ()
    declared = tuple(entry.path for entry in settings.data if entry.path is not None)
    reads = [
        source
        for run in strict
        for source in run.sources
        if source.kind is SourceKind.READ
        and source.call.startswith("/")
        and not any(_lies_in(source.call, path) for path in declared)
    ]
    if not reads:
        return ()
    counted = _folders_of_many(reads)
    folded: dict[str, Source] = {}
    for source in reads:
        folded.setdefault(_shown(source.call, counted), source)
    (first, line), *others = folded.items()
    names = data_names(list(folded)[:DECLARED_AT_ONCE])
    many = f", {counted[first]:,} files or more" if first in counted else ""
    rest = f", and {len(others):,} more" if others else ""
    return (
        Finding(
            code="undeclared-read",
            severity=Severity.NOTICE,
            message=f"read and not declared: {first}{many} ({line.place}){rest}",
            remedy=f"Declare it in repro-gate.yml: `{entries_for(names)}`, and read it from "
            f"$REPRO_GATE_DATA/{names[first]}. Until then a change to it looks like a code "
            "change.",
            code_place=CodePlace.known(line.file, line.line),
        ),
    )


def _folders_of_many(reads: list[Source]) -> dict[str, int]:
    """Return folders with more than `NAMED_FILES` files that were read, and the number of files."""
    counts: dict[str, int] = {}
    for source in reads:
        if source.call.endswith("/") and source.before.isdecimal():
            counts[source.call] = max(int(source.before), counts.get(source.call, 0))
    folders: dict[str, set[str]] = {}
    for path in {source.call for source in reads if not source.call.endswith("/")}:
        folders.setdefault(_folder(path), set()).add(path)
    for folder, files in folders.items():
        if len(files) > NAMED_FILES and folder.strip("/"):
            counts.setdefault(folder, len(files))
    return counts


def _shown(path: str, counted: dict[str, int]) -> str:
    """Return the outermost folder that stands for this file, or the file itself."""
    above = [folder for folder in counted if path.startswith(folder)]
    return min(above, key=len, default=path)


def _folder(path: str) -> str:
    return path.rpartition("/")[0] + "/"


# A command such as `bash train.sh` may pass on what it read, and no hook of the harness sees that.
PYTHON: Final = re.compile(r"python[0-9.]*", re.ASCII)
# The most sources that one process reports. With this many, one may have been left out.
MOST_TOLD: Final = 150


def reads_known(strict: tuple[RunEvidence, ...], settings: GateSettings) -> bool:
    """Return whether everything that the runs read is known: own files, declared data, environment.

    It is not known where

    - a line of the training may have read something unseen,
    - a program other than Python starts it,
    - it had a network or variables of the gate,
    - preprocessing made its data, or
    - a package that it imported did not come from an index.
    """
    train = settings.train
    if settings.isolation.network or train.pass_env or settings.preprocess is not None:
        return False
    if PYTHON.fullmatch(posixpath.basename(train.command[0])) is None:
        return False
    return not undeclared_reads(strict, settings) and not any(
        run.children
        or len(run.sources) >= MOST_TOLD
        or any(source.kind is SourceKind.UNSEEN for source in run.sources)
        or set(map(normalized_name, run.environment.origins))
        & set(map(normalized_name, run.environment.imported))
        for run in strict
    )


def _lies_in(path: str, declared: str) -> bool:
    return path == declared or path.startswith(f"{declared}/")


def saved_and_asked(run: RunEvidence, settings: GateSettings, workdir: str) -> tuple[str, ...]:
    """Return what a verdict does not cover: states nobody compared, and variables nobody set.

    `workdir` is train.workdir relative to the repository's root.
    """
    compared = settings.train.checkpoint
    whole = posixpath.normpath(posixpath.join(workdir, compared)) if compared else None
    saved = sorted(
        {
            source.call
            for source in run.sources
            if source.kind is SourceKind.SAVED
            and (whole is None or not _lies_in(posixpath.normpath(source.call), whole))
        }
    )
    asked = sorted(
        {
            source.call
            for source in run.sources
            if source.kind is SourceKind.VARIABLE and source.call not in OF_RANKS
        }
    )
    sentences = []
    if saved:
        sentences.append(
            f"what the script saves in {_some(saved)}: train.checkpoint names another file"
            if compared
            else f"what the script saves in {_some(saved)}: train.checkpoint is not set"
        )
    if asked:
        sentences.append(
            f"any value of {_some(asked)}: the script asks for "
            f"{'it' if len(asked) == 1 else 'them'}, and neither train.env nor train.pass_env sets "
            f"{'it' if len(asked) == 1 else 'them'}"
        )
    return tuple(sentences)


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_AT_ONCE
    return ", ".join(names[:NAMED_AT_ONCE]) + (f" and {more} more" if more > 0 else "")


def splits_by_listing(run: RunEvidence) -> tuple[Finding, ...]:
    """Which lines draw a data split from file names as a directory lists them?"""
    lines = {source.place: source for source in run.sources if source.kind is SourceKind.SPLIT}
    if not lines:
        return ()
    splits = [
        f"{place} gives {source.call}() what {source.before}() lists"
        for place, source in list(lines.items())[:SHOWN_SPLITS]
    ]
    more = f"; and {len(lines) - len(splits)} more" if len(lines) > len(splits) else ""
    sorts = all(source.after == "sorted" for source in lines.values())
    order = "" if sorts else "; unsorted, the order of a different disk does too"
    return notice(
        "split-by-listing",
        message=f"{'; '.join(splits)}{more}: adding one file reshuffles the split{order}",
        remedy="Assign each file by a hash of its name: docs/data.md has a function for it.",
    )
