"""Judges many proposals of many gates together, and accepts what a moved environment explains.

After a new image or driver every gate proposes an entry. A result that moved while its environment
did not is caused by code: that proposal is refused and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.baseline.acceptance import Movement
from gate.baseline.entry import (
    MAX_ENTRY_BYTES,
    PROPOSED_BASELINE,
    Baseline,
    BaselineEntry,
    entry_name,
)
from gate.baseline.movement import movement_of
from gate.comparison.compare import compare_results
from gate.comparison.differences import BASELINE_SIDE
from gate.data.data_sets import same_data
from gate.errors import BaselineError, GateError
from gate.pipelines.adapters import Adapters
from gate.pipelines.entries import NEW
from gate.pipelines.policy_files import HeadFiles, work_tree_baseline
from gate.pipelines.proposals import (
    ARCHIVE_SUFFIX,
    Proposal,
    accepted,
    fitting,
    package_digest,
    proposal_of,
)
from gate.settings.load import training_settings
from gate.system.files.port import Files
from gate.system.github.records import MAX_ARTIFACT_BYTES
from gate.text.document import Document, Timestamp
from gate.verdict.request import GateRequest

REFRESH_SCHEMA: Final = "repro-gate.baseline-refresh/1"
# the most proposals of one call, and how deep below the folder of --from they are searched
MAX_OFFERED: Final = 1000
MAX_NAMES: Final = 10_000
MAX_DEPTH: Final = 4
PAIR: Final = 2
Text = Annotated[str, Field(max_length=1000)]


class RefreshState(StrEnum):
    """The decision on a proposal; the first three states are written to the baseline."""

    MOVED = "moved with its environment"
    EQUAL = "equal in its new environment"
    NEW = "first entry"
    KNOWN = "known"
    OLDER = "older than another"
    REFUSED = "refused"


WRITTEN: Final = frozenset((RefreshState.MOVED, RefreshState.EQUAL, RefreshState.NEW))


class RefreshRow(Document):
    """A proposal in the table.

    `changed` are the environment parts that moved since the nearest entry. `movement` is the
    largest difference of a metric. `noise` is that difference as a multiple of the spread between
    entries of other environments; None with fewer than two. `score` is 100 for equal bits, 50 at
    the tolerance (or else at the noise), and falls towards 0: 100 / (1 + multiple).
    """

    source: Text
    config: Text
    gate: Text
    state: RefreshState
    commit: Text = ""
    file: Text = ""
    environment: Text = ""
    changed: tuple[Text, ...] = ()
    movement: Movement | None = None
    noise: float | None = Field(default=None, ge=0)
    score: float | None = Field(default=None, ge=0, le=100)
    why: Text = ""


class RefreshTable(Document):
    """The document of `repro-gate baseline refresh`; `written` are paths of the repository."""

    schema_version: Literal["repro-gate.baseline-refresh/1"] = REFRESH_SCHEMA
    created_at: Timestamp
    reason: Text
    rows: Annotated[tuple[RefreshRow, ...], Field(max_length=MAX_OFFERED)]
    written: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Offered:
    """A proposal from `source`, or the `fault` that explains why there is none."""

    source: str
    entry: BaselineEntry | None = None
    package_sha256: str = ""
    fault: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowAndProposal:
    """A row of the table; a judged row also has its gate's request and the proposal."""

    row: RefreshRow
    request: GateRequest | None = None
    proposal: Proposal | None = None


def downloaded(
    adapters: Adapters, top: Path, archives: Sequence[tuple[str, Callable[[Path], str]]]
) -> tuple[Offered, ...]:
    """Return the proposals in artifacts, each read in the confined process."""
    proposals = []
    with HeadFiles(adapters, top) as untrusted:
        for source, fill in archives:
            adapters.progress.step(f"reading {source}")
            try:
                proposals.append(Offered(source=source, entry=untrusted.archived_entry(fill)))
            except GateError as fault:
                proposals.append(Offered(source=source, fault=fault.message))
    return tuple(proposals)


def in_folder(adapters: Adapters, top: Path, folder: Path) -> tuple[Offered, ...]:
    """Return the proposals in files and archives below a folder.

    Raises `BaselineError` if there are none or too many.
    """
    files = adapters.files
    if not files.is_folder(folder):
        raise BaselineError(f"{folder}: no such folder", hint="Name the folder of the downloads.")
    paths = tuple(_below(files, folder, MAX_DEPTH))
    if not paths or len(paths) > MAX_OFFERED:
        raise BaselineError(
            f"{folder}: {len(paths):,} files called {PROPOSED_BASELINE} or *{ARCHIVE_SUFFIX}",
            hint=f"Name a folder with 1 to {MAX_OFFERED:,} of them, such as what `gh run download` "
            "made.",
        )
    proposals = []
    with HeadFiles(adapters, top) as untrusted:
        for path in paths:
            source = path.relative_to(folder).as_posix()
            try:
                files.refuse_links(path, below=folder)
                proposals.append(_read(untrusted, adapters, path, source))
            except GateError as fault:
                proposals.append(Offered(source=source, fault=fault.message))
    return tuple(proposals)


def _below(files: Files, folder: Path, depth: int) -> Iterator[Path]:
    for name in sorted(files.list_names(folder, max_names=MAX_NAMES)):
        path = folder / name
        if name == PROPOSED_BASELINE or name.endswith(ARCHIVE_SUFFIX):
            yield path
        elif depth > 0 and files.is_folder(path):
            yield from _below(files, path, depth - 1)


def _read(untrusted: HeadFiles, adapters: Adapters, path: Path, source: str) -> Offered:
    if path.name == PROPOSED_BASELINE:
        data = adapters.files.read_bytes(path, max_bytes=MAX_ENTRY_BYTES)
        digest = package_digest(path.parent, adapters)
        return Offered(source=source, entry=untrusted.entry(data, source), package_sha256=digest)

    def copied(target: Path) -> str:
        adapters.files.copy_file(path, target, max_bytes=MAX_ARTIFACT_BYTES)
        return path.name

    return Offered(source=source, entry=untrusted.archived_entry(copied))


def refresh_rows(
    requests: Sequence[GateRequest], adapters: Adapters, offered: Sequence[Offered]
) -> tuple[RowAndProposal, ...]:
    """Decide on each proposal: written, already known, or refused with the reason."""
    rows = tuple(_row(requests, adapters, offer) for offer in offered)
    return tuple(_beside_others(number, rows) for number in range(len(rows)))


def _row(requests: Sequence[GateRequest], adapters: Adapters, offered: Offered) -> RowAndProposal:
    entry = offered.entry
    if entry is None:
        return RowAndProposal(row=_refused(offered, offered.fault))
    fits = [request for request in requests if _is_of(entry, request)]
    # a proposal for two gates would be written to one of them by chance
    if len(fits) != 1:
        names = ", ".join(_config(request) for request in fits or requests)
        which = "several gates train this" if fits else "no gate trains this under these settings"
        return RowAndProposal(row=_refused(offered, f"{which}: {names}"))
    (request,) = fits
    try:
        fitted = fitting(proposal_of(request, adapters, entry), request, adapters)
        proposal = replace(fitted, package_sha256=offered.package_sha256)
        # raises for a proposal that rests on too few runs
        accepted(request, adapters, proposal, "refresh", "")
    except GateError as fault:
        return RowAndProposal(row=_refused(offered, fault.message, request))
    known = work_tree_baseline(request, adapters)
    row = _judged(offered.source, request, proposal, known)
    return RowAndProposal(row=row, request=request, proposal=proposal)


def _is_of(entry: BaselineEntry, request: GateRequest) -> bool:
    own = entry.gate_id == request.gate_of_settings
    return own and entry.training == training_settings(request.settings)


def _config(request: GateRequest) -> str:
    return request.repository_path(request.config_name)


def _refused(offered: Offered, why: str, request: GateRequest | None = None) -> RefreshRow:
    entry = offered.entry
    return RefreshRow(
        source=offered.source[:1000],
        config=_config(request) if request is not None else "",
        gate=entry.gate_id if entry is not None else "",
        commit=entry.commit[:64] if entry is not None else "",
        state=RefreshState.REFUSED,
        why=why[:1000],
    )


def _judged(
    source: str, request: GateRequest, proposal: Proposal, baseline: Baseline | None
) -> RefreshRow:
    entry, known = proposal.entry, proposal.known
    row = RefreshRow(
        source=source[:1000],
        config=_config(request),
        gate=entry.gate_id,
        commit=entry.commit,
        file=entry_name(entry),
        environment=_words(entry),
        state=RefreshState.NEW,
    )
    if known is None:
        return row
    moved = known.environment.moved(entry.environment)
    settings = request.settings
    names = (BASELINE_SIDE, NEW)
    movement = movement_of(
        compare_results(known, entry, settings.compare, names),
        settings.compare.tolerances,
        replaced=known.metrics,
        commit=known.commit,
    )
    noise = _noise(movement, entry, baseline)
    state, why = _state(movement, moved, entry, known)
    return row.model_copy(
        update={
            "state": state,
            "why": why,
            "changed": moved,
            "movement": movement,
            "noise": noise,
            "score": score_of(movement, noise),
        }
    )


def _words(entry: BaselineEntry) -> str:
    where = entry.environment
    return ", ".join((where.part("device"), f"torch {where.part('torch')}"))[:1000]


def _state(
    movement: Movement | None, moved: tuple[str, ...], entry: BaselineEntry, known: BaselineEntry
) -> tuple[RefreshState, str]:
    # other data explains a moved result, so the environment would be blamed wrongly
    if not same_data(known.data, entry.data):
        return RefreshState.REFUSED, "the declared data is not that of the entry"
    if movement is None:
        return (RefreshState.EQUAL if moved else RefreshState.KNOWN), ""
    # an equal environment cannot move a result, so the code did: refuse it here
    if not moved:
        return RefreshState.REFUSED, "the result moved, and its environment did not"
    if movement.structure:
        return RefreshState.REFUSED, "it has other metrics, steps or tensors than the entry"
    return RefreshState.MOVED, ""


def _noise(
    movement: Movement | None, entry: BaselineEntry, baseline: Baseline | None
) -> float | None:
    """Return the difference as a multiple of the spread between other environments' entries.

    None with fewer than two such values, or if they are equal.
    """
    if movement is None or movement.step is None or baseline is None:
        return None
    values = [
        value
        for known in baseline.entries
        # provisional entries are far from their peers and would widen the spread
        if known.training == entry.training and not known.provisional
        for series in known.metrics
        if series.name == movement.metric
        for step, value in series.points.pairs()
        if step == movement.step
    ]
    if len(values) < PAIR or max(values) == min(values):
        return None
    difference = abs(float(movement.after) - float(movement.before))
    noise = difference / (max(values) - min(values))
    # the quotient overflows for a tiny spread, and JSON has no infinity
    return noise if math.isfinite(noise) else None


def score_of(movement: Movement | None, noise: float | None) -> float:
    """Return 100 for equal bits, 50 at the tolerance or else the noise, towards 0 beyond it."""
    if movement is None:
        return 100.0
    multiple = noise if movement.tolerances is None else movement.tolerances
    if movement.structure or multiple is None:
        return 0.0
    return 100.0 / (1.0 + multiple)


def _beside_others(number: int, every: Sequence[RowAndProposal]) -> RowAndProposal:
    """Return the row after comparing it with rivals for the same place in the baseline.

    The newer of two commits wins. Two different results of one commit are both refused.
    """
    own = every[number]
    if own.proposal is None or own.row.state not in WRITTEN:
        return own
    mine = own.proposal.entry
    state, why = own.row.state, own.row.why
    for place, rival in enumerate(every):
        if place == number or rival.proposal is None or not _same_place(own, rival):
            continue
        other = rival.proposal.entry
        equal = (mine.checkpoint.root, mine.metrics) == (other.checkpoint.root, other.metrics)
        if mine.commit == other.commit and not equal:
            state = RefreshState.REFUSED
            why = f"{rival.row.source} gave a different result for the same commit and environment"
            break
        # the position breaks a tie of equal times, so that exactly one of the two is written
        if (other.recorded_at, place) > (mine.recorded_at, number):
            state = RefreshState.OLDER
    return replace(own, row=own.row.model_copy(update={"state": state, "why": why}))


def _same_place(own: RowAndProposal, other: RowAndProposal) -> bool:
    if own.proposal is None or other.proposal is None or own.row.config != other.row.config:
        return False
    return not own.proposal.entry.environment.moved(other.proposal.entry.environment)
