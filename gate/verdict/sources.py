"""Data that the training reads from outside its commit: undeclared files, splits by a listing."""

from __future__ import annotations

import posixpath
from typing import Final

from gate.data.declaring import entries_for, names_of
from gate.diagnosis.diagnosis import CodePlace
from gate.evidence.observations import Source, SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import GateSettings
from gate.verdict.findings import notice
from gate.verdict.verdict import Finding, Severity

# of one folder: above it the folder is named, and not each file
NAMED_FILES: Final = 2
DECLARED_AT_ONCE: Final = 5
SHOWN_SPLITS: Final = 3
NAMED_AT_ONCE: Final = 5
# of processes that train together, which the verdict has a sentence of its own for
OF_RANKS: Final = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)


def undeclared_reads(
    strict: tuple[RunEvidence, ...], settings: GateSettings
) -> tuple[Finding, ...]:
    """Which files outside the commit did the training read that the settings do not declare?

    Nothing is said of a container: what is found in it came with the image.
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
    names = names_of(list(folded)[:DECLARED_AT_ONCE])
    many = f", {counted[first]:,} files or more" if first in counted else ""
    rest = f", and {len(others):,} more" if others else ""
    return (
        Finding(
            code="undeclared-read",
            severity=Severity.NOTICE,
            message=f"read and not declared: {first}{many} ({line.place}){rest}",
            remedy=f"Declare it in repro-gate.yml: `{entries_for(names)}`, and read it from "
            f"$REPRO_GATE_DATA/{names[first]}. Until then a change of it is taken for one of the "
            "code.",
            code_place=CodePlace.known(line.file, line.line),
        ),
    )


def _folders_of_many(reads: list[Source]) -> dict[str, int]:
    """Folders by the number of their files that were read, where it is more than a few."""
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
    """The outermost folder that stands for this file, or the file itself."""
    above = [folder for folder in counted if path.startswith(folder)]
    return min(above, key=len, default=path)


def _folder(path: str) -> str:
    return path.rpartition("/")[0] + "/"


def _lies_in(path: str, declared: str) -> bool:
    return path == declared or path.startswith(f"{declared}/")


def saved_and_asked(run: RunEvidence, settings: GateSettings, workdir: str) -> tuple[str, ...]:
    """What a verdict does not cover: states that nobody compared, and variables that were not set.

    `workdir` is train.workdir as the repository sees it.
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
    """Which lines draw a split from the names of files as a folder lists them?"""
    lines = {source.place: source for source in run.sources if source.kind is SourceKind.SPLIT}
    if not lines:
        return ()
    told = [
        f"{place} gives {source.call}() what {source.before}() lists"
        for place, source in list(lines.items())[:SHOWN_SPLITS]
    ]
    more = f"; and {len(lines) - len(told)} more" if len(lines) > len(told) else ""
    sorts = all(source.after == "sorted" for source in lines.values())
    order = "" if sorts else "; unsorted, another disk's order does too"
    return notice(
        "split-by-listing",
        message=f"{'; '.join(told)}{more}: one new file moves every row to another side{order}",
        remedy="Choose the side of each file by a hash of its name: docs/data.md has a function "
        "for it.",
    )
