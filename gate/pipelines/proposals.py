"""Turns a proposed entry into a committed one: finds, checks, shows and accepts it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gate.baseline.entry import MAX_ENTRY_BYTES, PROPOSED_BASELINE, Baseline, BaselineEntry
from gate.baseline.folder import read_entry, refuse_future
from gate.baseline.select import select_entry
from gate.errors import BaselineError, DocumentError, EvidenceError, RepositoryError, StorageError
from gate.isolation.confined_look import read_apart
from gate.package.seal_files import PACKAGE
from gate.pipelines.adapters import Adapters
from gate.pipelines.entries import compared_entry, with_compared
from gate.pipelines.policy_files import HeadFiles, work_tree_baseline
from gate.settings.load import training_settings
from gate.system.github.records import MAX_ARTIFACT_BYTES
from gate.text.documents import RecordForm, read_document
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Outcome, Verdict

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
NAMED_SETTINGS = 8
PIECE_BYTES = 1024 * 1024
# GitHub packs artifacts as zip archives
ARCHIVE_SUFFIX = ".zip"
# not imported from where packages are opened, which is slow to import
VERDICT_NAME: Final = "verdict.json"
MAX_VERDICT_BYTES: Final = 64 * 1024 * 1024
DIFFERS: Final[RecordForm[bool]] = RecordForm(bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """An entry that may be accepted, with the known entry that it would replace or is closest to.

    `head` is the commit that is checked out. `resume_differs`: the gate call that made the proposal
    ended with `resume-differs`, as far as that is known. `package_sha256` is the digest of the
    package beside the proposal, or empty. `entry` is compared with this clone's entries: how far it
    moves the result, whether it is far from its peers, how often it was recorded.
    """

    entry: BaselineEntry
    known: BaselineEntry | None
    head: str
    package_sha256: str = ""
    resume_differs: bool = False


def last_proposal(request: GateRequest, adapters: Adapters) -> Proposal:
    """Return the last gate call's proposal in this clone; raise `BaselineError` without one."""
    path = request.out / PROPOSED_BASELINE
    if not adapters.files.exists(path):
        raise BaselineError(
            f"{path}: nothing to accept",
            hint="Run `repro-gate gate` first. No entry is proposed for a run that was not "
            "repeatable, not finite or not committed.",
        )
    data = adapters.files.read_bytes(path, max_bytes=MAX_ENTRY_BYTES)
    proposal = proposal_of(request, adapters, read_entry(data, PROPOSED_BASELINE))
    # the output folder may be from a call of another gate, or with older settings
    _refuse_other_training(
        proposal.entry,
        request,
        hint="The last gate call in this folder was another gate's, or the settings changed since. "
        "Run `repro-gate gate` with this settings file first.",
    )
    return _with_beside(proposal, request.out, adapters)


def proposal_at(request: GateRequest, adapters: Adapters, path: Path) -> Proposal:
    """Return a proposal from a downloaded file, folder or archive, read in the confined process.

    Raises `BaselineError` if it does not fit this clone, `DocumentError` for a broken one.
    """
    if path.suffix == ARCHIVE_SUFFIX and not adapters.files.is_folder(path):

        def copied(target: Path) -> str:
            adapters.files.copy_file(path, target, max_bytes=MAX_ARTIFACT_BYTES)
            return path.name

        return archived_proposal(request, adapters, copied)
    file = path / PROPOSED_BASELINE if adapters.files.is_folder(path) else path
    if not adapters.files.exists(file):
        raise BaselineError(
            f"{file}: no such file",
            hint=f"Name the artifact's folder, its zip archive, or the {PROPOSED_BASELINE} in it. "
            "A run that was not repeatable, not finite or not committed proposes nothing.",
        )
    data = adapters.files.read_bytes(file, max_bytes=MAX_ENTRY_BYTES)
    with HeadFiles(adapters, request.top) as untrusted:
        entry = untrusted.entry(data, file.name)
    proposal = fitting(proposal_of(request, adapters, entry), request, adapters)
    return _with_beside(proposal, file.parent, adapters)


def _with_beside(proposal: Proposal, folder: Path, adapters: Adapters) -> Proposal:
    """Return the proposal with what the package and the verdict in its folder add."""
    differs = proposal.resume_differs or _resume_differs(folder / VERDICT_NAME, adapters)
    sha256 = package_digest(folder, adapters)
    return replace(proposal, package_sha256=sha256, resume_differs=differs)


def _resume_differs(path: Path, adapters: Adapters) -> bool:
    """Return whether a verdict says so; false where there is none that this version can read."""
    if not adapters.files.exists(path):
        return False

    def look() -> bool:
        data = adapters.files.read_bytes(path, max_bytes=MAX_VERDICT_BYTES)
        verdict = read_document(Verdict, data, path.name, max_bytes=MAX_VERDICT_BYTES)
        return verdict.outcome is Outcome.RESUME_DIFFERS

    try:
        # it may come from a pull request's run, so this process does not parse it (T5)
        return read_apart(DIFFERS, look, what=path.name)
    except (DocumentError, EvidenceError, StorageError):
        return False


def archived_proposal(
    request: GateRequest, adapters: Adapters, fill: Callable[[Path], str]
) -> Proposal:
    """Return a proposal from an artifact's archive, which `fill` writes to a path.

    Raises the same errors as `proposal_at`.
    """
    # an artifact may come from a pull request's run, so this process does not parse it (T5)
    with HeadFiles(adapters, request.top) as untrusted:
        entry = untrusted.archived_entry(fill)
    return fitting(proposal_of(request, adapters, entry), request, adapters)


def accepted(
    request: GateRequest, adapters: Adapters, proposal: Proposal, reason: str, who: str
) -> Baseline:
    """Return the work tree's baseline with the proposed entry, its reason and who accepts it.

    Raises `BaselineError` if the entry rests on fewer equal runs than the settings require.
    """
    entry, least = proposal.entry, request.settings.baseline.record_repeats
    if entry.equal_runs < least:
        raise BaselineError(
            f"not accepted: it rests on {entry.equal_runs} equal runs, and "
            f"baseline.record_repeats asks for {least}",
            hint=f"Run `repro-gate gate --repeats {least}` and accept that, or record it here with "
            "`repro-gate baseline record`.",
        )
    entry = entry.model_copy(
        update={
            "reason": reason,
            "accepted_by": who,
            "package_sha256": proposal.package_sha256,
        }
    )
    known = work_tree_baseline(request, adapters)
    return with_compared(entry, known, request.settings, outcome=_outcome(entry))


def _outcome(entry: BaselineEntry) -> str:
    """Return the gate's outcome for a proposal; the movement itself is measured again here."""
    return entry.moved.outcome if entry.moved is not None else ""


def package_digest(folder: Path, adapters: Adapters) -> str:
    """Return the digest of the package in a folder, or an empty text; the package is not parsed."""
    path = folder / PACKAGE
    if not adapters.files.exists(path):
        return ""
    with adapters.files.open_binary(path, max_bytes=MAX_ARTIFACT_BYTES) as file:
        digest = hashlib.sha256()
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def proposal_of(request: GateRequest, adapters: Adapters, offered: BaselineEntry) -> Proposal:
    """Return a proposed entry compared with this clone's; raise for an entry with a future date."""
    refuse_future(Baseline(entries=(offered,)), adapters.clock.now(), PROPOSED_BASELINE)
    known = work_tree_baseline(request, adapters)
    nearest = select_entry(known, offered.environment, offered.training, ()).entry
    entry = compared_entry(offered, known, request.settings, outcome=_outcome(offered))
    differs = _outcome(offered) == Outcome.RESUME_DIFFERS
    head = adapters.git.resolve("HEAD")
    return Proposal(entry=entry, known=nearest, head=head, resume_differs=differs)


def fitting(proposal: Proposal, request: GateRequest, adapters: Adapters) -> Proposal:
    """Return the proposal, or raise `BaselineError` if it does not belong to this clone.

    Its commit has to be in the clone, and its settings have to be those of the work tree.
    """
    entry = proposal.entry
    try:
        # a branch or tag name in the place of a hash would resolve too
        known = COMMIT.fullmatch(entry.commit) and adapters.git.resolve(entry.commit)
    except RepositoryError:
        known = None
    if known != entry.commit:
        raise BaselineError(
            f"not accepted: it was recorded from commit {entry.commit[:12]!r}, which this clone "
            "does not have",
            hint="Fetch and check out the branch that the run was about, then accept it there.",
        )
    _refuse_other_training(
        entry,
        request,
        hint="A pull request runs with the base commit's settings. Merge changes to them "
        "first, or run `repro-gate baseline record` here.",
    )
    return proposal


def _refuse_other_training(entry: BaselineEntry, request: GateRequest, *, hint: str) -> None:
    if entry.gate_id != request.gate_of_settings:
        raise BaselineError(
            f"not accepted: it was recorded by {_gate(entry.gate_id)}, and {request.config_name} "
            f"is that of {_gate(request.gate_of_settings)}",
            hint="Name the settings file of that gate with --config, or run `repro-gate gate` with "
            "this one.",
        )
    here = training_settings(request.settings)
    names = sorted(
        name for name in {*here, *entry.training} if here.get(name) != entry.training.get(name)
    )
    if names:
        raise BaselineError(
            "not accepted: it was recorded under other settings of the training than "
            f"{request.config_name} has here",
            hint=hint,
            details=tuple(
                f"{name}: {_said(entry.training.get(name))} instead of {_said(here.get(name))}"
                for name in names[:NAMED_SETTINGS]
            ),
        )


def _gate(gate_id: str) -> str:
    return f"gate {gate_id}" if gate_id else "a gate without an id"


def _said(value: str | None) -> str:
    return "nothing" if value is None else value[:80]
