"""`repro-gate rollback`: find the newest sealed pass that verifies, and hand out its model.

Packages come from a registry or from a folder. They are tried newest first. One that is not taken
is reported with its reason. One that does not verify stops the call, unless `--older` is given:
an older model would hide that somebody changed the newest package (docs/rollback.md).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gate.commands.options import AsJson, Config, Quiet, Verbose, data_places, progress_for, show
from gate.commands.program import FILES, INTERRUPTS
from gate.commands.registry_names import (
    clone_settings,
    commits_on,
    full_hash,
    gate_name,
    registry_place,
)
from gate.commands.trust import (
    CertificateIdentity,
    CertificateIssuer,
    Trust,
    TrustedKeysFile,
    TrustedRootFile,
    chosen_trust,
    judged_for_words,
)
from gate.errors import (
    AttestationError,
    CancelledError,
    EvidenceError,
    GateError,
    KeyFileError,
    SettingsError,
)
from gate.fleet.lines import call_facts
from gate.fleet.remote_stores import opened_store
from gate.fleet.stores import append
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.isolation.modes import IsolationMode
from gate.package.seal_records import Expected, VerifiedPackage
from gate.package.signing import Identity
from gate.package.statement import utc_time
from gate.pipelines.call_setup import build_adapters
from gate.pipelines.opening import HEADLINES, ReproductionCall, ReproductionOutcome
from gate.pipelines.reproduce import checked_and_run
from gate.pipelines.rollback import (
    MODEL,
    Demands,
    PackedModel,
    Rollback,
    RollbackCandidate,
    Skipped,
    SkipReason,
    by_branch_order,
    chosen_files,
    from_registry,
    hand_out,
    packages_in,
    packed_model,
)
from gate.pipelines.snapshots import held_out
from gate.publishing.artifact import PACKAGE_FILE, WantedPackage
from gate.publishing.registry import OciRegistry
from gate.report.terminal_lines import Sentence
from gate.report.wording import short
from gate.system.clock import SystemClock
from gate.system.console import Progress
from gate.system.gate_names import DEFAULT_GATE
from gate.system.http import UnansweredError
from gate.text.documents import RecordForm, write_document
from gate.text.package_names import MAX_PACKAGE_BYTES
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line
from gate.verdict.history_lines import RollbackLine

LAST_GOOD: Final = "last-good"
OUT: Final = Path("repro-gate-rollback")
DOCUMENT: Final = "rollback.json"
LABEL_WIDTH: Final = 13
Looked = tuple[VerifiedPackage, PackedModel]
LOOKED: Final[RecordForm[Looked]] = RecordForm(Looked)
CANDIDATES: Final[RecordForm[tuple[RollbackCandidate, ...]]] = RecordForm(
    tuple[RollbackCandidate, ...]
)
OLDER_HINT: Final = (
    "Nothing was handed out. Find out why first; --older skips it, reports that, and takes the "
    "next "
    "older package that verifies."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Where packages come from: a local folder, or a repository in a registry.

    `folder` is None for a registry. Packages of a registry are downloaded to `out`.
    """

    folder: Path | None
    place: str
    digest: str
    gate_id: str
    out: Path
    max_bytes: int

    @property
    def shown(self) -> str:
        return safe_line(str(self.folder)) if self.folder is not None else self.place

    def candidates(self, commits: Sequence[str] | None) -> Iterable[RollbackCandidate]:
        """The packages to try, newest first, or in the order of `commits` if these are given."""
        if self.folder is None:
            listed = self._registry().listed(self.gate_id, commits)
            return map(from_registry, listed)
        folder = self.folder
        # the folder may be from anyone: its archives are opened in a confined child only (T5)
        releases = read_apart(
            CANDIDATES, lambda: packages_in(folder, FILES), what=self.shown, seconds=600.0
        )
        return releases if commits is None else by_branch_order(releases, commits)

    def package(self, candidate: RollbackCandidate) -> tuple[Path, str]:
        """Return the package's path, which has its seals beside it, and its registry reference.

        Downloads the package first if it is in a registry. The reference is empty for a folder.
        """
        if self.folder is not None:
            return Path(candidate.path), ""
        # the folder may hold an earlier candidate, or the package of an earlier call
        FILES.remove_tree(self.out)
        package = WantedPackage(
            commit=candidate.commit,
            gate_id=self.gate_id,
            digest=candidate.digest,
            max_bytes=self.max_bytes,
        )
        pulled = self._registry().pull(package, self.out)
        return self.out / PACKAGE_FILE, pulled.reference

    def _registry(self) -> OciRegistry:
        return OciRegistry(self.place, os.environ, FILES)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    """A package that verifies and meets every demand of the caller."""

    candidate: RollbackCandidate
    package: Path
    reference: str
    verified: VerifiedPackage
    model: PackedModel


@dataclass(kw_only=True, slots=True)
class _Choice:
    """The rules by which a package is chosen, and the list of those passed over.

    `take` appends each newer package that it does not take to `skipped`. `commits` are the commits
    of the branch, newest first, or None if any branch is accepted. `only` is the commit that the
    caller asks for, or empty for the newest pass.
    """

    source: _Source
    trust: Trust
    demands: Demands
    excepted: frozenset[str]
    commits: Sequence[str] | None
    older: bool
    only: str
    skipped: list[Skipped] = field(default_factory=list)

    def take(self, progress: Progress) -> _Taken:
        """Return the newest package that satisfies all rules, and record each newer one.

        Raises `AttestationError` or `EvidenceError` for a package that does not verify, unless
        `older` allows skipping it. Raises `EvidenceError` when no package is left, and
        `KeyFileError` for an unusable trust file or trusted root.
        """
        known = frozenset(self.commits or ())
        for candidate in self.source.candidates(self.commits):
            # A package that names no commit may belong to any commit, so it is not skipped here:
            # its seal has to say.
            if self.only and candidate.commit not in {self.only, ""}:
                continue
            if candidate.commit in self.excepted:
                self._skip(candidate, SkipReason.EXCEPTED, "--except names its commit")
            elif self.commits is not None and candidate.commit and candidate.commit not in known:
                self._skip(candidate, SkipReason.NOT_ON_BRANCH, "the branch of --on lacks it")
            elif not candidate.sealed:
                self._skip(candidate, SkipReason.NOT_SEALED, "no seal is next to it")
            else:
                progress.step(f"verifying {candidate.shown}")
                taken = self._verified(candidate)
                if taken is not None:
                    return taken
        raise EvidenceError(
            f"{self.source.shown} has no sealed pass to go back to",
            hint="Only a sealed pass counts. Name another source with --from or --packages, or "
            "another gate with --gate-id.",
            details=tuple(map(skipped_words, self.skipped)),
        )

    def _verified(self, candidate: RollbackCandidate) -> _Taken | None:
        try:
            if candidate.fault:
                raise EvidenceError(candidate.fault)
            package, reference = self.source.package(candidate)
            verified, model = _looked_at(package, candidate, self.trust)
        except (CancelledError, KeyFileError, SettingsError, UnansweredError):
            # These are faults of this call, not of the package: an older package would meet them
            # too, and skipping the newest one for a lost connection would roll back too far.
            raise
        except GateError as fault:
            if not self.older:
                kind = AttestationError if isinstance(fault, AttestationError) else EvidenceError
                raise kind(
                    f"the newest sealed pass does not verify: {_named(candidate)}: {fault.message}",
                    hint=OLDER_HINT,
                    details=(*fault.details, *map(skipped_words, self.skipped)),
                ) from fault
            self._skip(candidate, SkipReason.NOT_VERIFIED, fault.message.rstrip("."))
            return None
        if not model.files:
            self._skip(candidate, SkipReason.NO_MODEL, "its settings keep no model in the package")
            return None
        unmet = self.demands.unmet(verified)
        if unmet:
            self._skip(candidate, SkipReason.NOT_DEMANDED, unmet)
            return None
        return _Taken(
            candidate=candidate,
            package=package,
            reference=reference,
            verified=verified,
            model=model,
        )

    def _skip(self, candidate: RollbackCandidate, reason: SkipReason, why: str) -> None:
        self.skipped.append(
            Skipped(
                package=candidate.shown,
                commit=candidate.commit,
                created_at=candidate.created_at,
                reason=reason,
                why=why,
            )
        )

    def newer_commits(self, commit: str) -> int | None:
        """Count the commits of the branch that are newer than this one; None without a branch."""
        return None if self.commits is None else list(self.commits).index(commit)


def _looked_at(package: Path, candidate: RollbackCandidate, trust: Trust) -> Looked:
    """Verify a package in a confined child, and return what its seals say and where its model is.

    No saved state is parsed, because this process may hold a login of the registry. Comparing the
    bytes with the sealed digests is enough. Raises `AttestationError` if a seal does not hold, or
    if the listed time differs from the sealed one.
    """
    trust.make_ready()

    def look() -> Looked:
        verified = trust.verified(package, Expected(commit=candidate.commit))
        return verified, packed_model(package, verified.package_sha256, FILES)

    # the package is read twice: once for its seals, once for the places of the model's files
    seconds = 2 * reading_seconds(package)
    checked, model = read_apart(LOOKED, look, what=candidate.shown, seconds=seconds)
    # Packages were sorted by the listed time, which nobody signs. A forged later time would put an
    # old model first, so it has to equal the time under the seal.
    if not candidate.created_at or utc_time(candidate.created_at) != checked.created_at:
        said = candidate.created_at or "nothing"
        raise AttestationError(
            f"it was listed as made at {safe_line(said)}, and its seal says {checked.created_at}"
        )
    return checked, model


def _named(candidate: RollbackCandidate) -> str:
    return f"{candidate.shown} ({short(candidate.commit)})" if candidate.commit else candidate.shown


def skipped_words(skipped: Skipped) -> str:
    """Describe a package that was not taken, in one line.

    For example `passed over commit-c0ffee… of 2026-11-23T09:00:00Z: --except names its commit`.
    """
    made = f" of {safe_line(skipped.created_at)}" if skipped.created_at else ""
    return f"passed over {skipped.package}{made}: {safe_line(skipped.why)}"


To = Annotated[
    str, typer.Option("--to", help="`last-good`, the newest sealed pass; or a commit's package.")
]
Model = Annotated[
    str, typer.Option("--model", help="Hand out this file of the model alone; default: all of it.")
]
From = Annotated[
    str, typer.Option("--from", help="registry/name; default: publish.oci of the settings.")
]
Packages = Annotated[
    Path | None,
    typer.Option(help="Folder of packages with their seals next to them, instead of a registry."),
]
On = Annotated[str, typer.Option(help="Only commits that this branch of the clone contains.")]
Except = Annotated[
    list[str] | None, typer.Option("--except", help="Commit that is not good; repeatable.")
]
Older = Annotated[
    bool, typer.Option("--older", help="Skip packages that do not verify, and report them.")
]
Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="Run the package again first, as `reproduce` does.")
]
Repository = Annotated[str, typer.Option(help="owner/name of the repository it must be about.")]
Base = Annotated[str, typer.Option(help="Branch that it must have been judged for, such as main.")]
Least = Annotated[
    IsolationMode, typer.Option(help="Weakest isolation of the training that is accepted.")
]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=PATH", help="Where declared data is, for --rehearse."),
]
HistoryPlace = Annotated[
    str, typer.Option(help="History that counts this rollback: a folder, s3://… or oci://….")
]
Clone = Annotated[Path | None, typer.Option(help="A clone that has the commit, for --rehearse.")]


def rollback_command(  # noqa: PLR0913 - each parameter is an option of the command
    to: To = LAST_GOOD,
    model: Model = "",
    source: From = "",
    packages: Packages = None,
    trusted_keys: TrustedKeysFile = None,
    *,
    on: On = "",
    excepted: Except = None,
    older: Older = False,
    rehearse: Rehearse = False,
    clone: Clone = None,
    data: Data = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for everything that is written.")
    ] = OUT,
    config: Config = "",
    gate_id: Annotated[
        str, typer.Option(help="Gate of the repository; default: report.gate_id of the settings.")
    ] = "",
    max_bytes: Annotated[
        int, typer.Option(min=1, help="A package above this size is refused.")
    ] = MAX_PACKAGE_BYTES,
    repository: Repository = "",
    base: Base = "",
    least_isolation: Least = IsolationMode.NONE,
    history: HistoryPlace = "",
    certificate_identity: CertificateIdentity = "",
    certificate_oidc_issuer: CertificateIssuer = "",
    trusted_root: TrustedRootFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Hand out the model of the newest sealed pass.

    Seals and every byte of its package are verified; one that does not verify stops the call.

    Example: repro-gate rollback --to last-good --trusted-keys trusted-keys.json --on main
    """
    progress = progress_for(quiet=quiet or as_json, verbose=verbose)
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    trust = chosen_trust(trusted_keys, identity, trusted_root)
    folder = out if out.is_absolute() else Path.cwd() / out
    choice = _Choice(
        source=_source(source, packages, config, gate_id, folder / "package", max_bytes),
        trust=trust,
        demands=Demands(repository=repository, base_branch=base, least_isolation=least_isolation),
        excepted=frozenset(full_hash(commit) for commit in excepted or ()),
        commits=commits_on(on),
        older=older,
        only="" if to == LAST_GOOD else full_hash(to),
    )
    places = data_places(data or [])
    rehearsal = ReproductionCall(
        package=folder, out=folder / "rehearsal", repository=clone, data=places
    )
    kept = _Kept(place=history, gate_id=choice.source.gate_id, repository=repository)
    with held_out(folder, FILES), kept.line() as line:
        rollback = _rolled_back(choice, model, rehearsal if rehearse else None, folder, progress)
        line.append(rollback)
    if quiet and not as_json:
        sys.stdout.write("".join(f"{safe_line(file.path)}\n" for file in rollback.model))
        return
    show(rollback, rollback_view(rollback), as_json=as_json)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """The history to which this call adds a line; `place` is empty if the caller names none."""

    place: str
    gate_id: str
    repository: str

    @contextmanager
    def line(self) -> Iterator[list[Rollback]]:
        """Add a line to the history when the body ends, also when it fails.

        Yields a list. The body appends its `Rollback` to it on success; an empty list is recorded
        as a failed rollback.
        """
        if not self.place:
            yield []
            return
        # before the rollback: a wrong address fails now, not after the model has been handed out
        store = opened_store(self.place, os.environ, FILES)
        clock, done = SystemClock(), list[Rollback]()
        started_at = clock.now()
        try:
            yield done
        finally:
            call = call_facts(os.environ, gate_id=self.gate_id, repository=self.repository)
            now = clock.now()
            line = RollbackLine(
                judged_at=now.isoformat(),
                run_id=call.run_id,
                gate_id=self.gate_id or DEFAULT_GATE,
                repository=(done[0].repository if done else "") or call.repository,
                commit=done[0].commit if done else "",
                succeeded=bool(done),
                seconds=(now - started_at).total_seconds(),
            )
            try:
                append(store, line)
            except GateError as fault:
                # Only a note: either the model has been handed out already, or another exception is
                # on its way to the user, and raising here would hide it.
                sys.stderr.write(f"no line in the history: {fault.message}\n")


def _rolled_back(
    choice: _Choice,
    name: str,
    rehearsal: ReproductionCall | None,
    folder: Path,
    progress: Progress,
) -> Rollback:
    """Choose a package, rehearse it if asked, hand out its model, and write `rollback.json`.

    `name` is the only file of the model to hand out; empty for all. `rehearsal` is None if the
    package is not to be run again first.
    """
    clock = SystemClock()
    started_at = clock.now()
    # if this call fails, the model of an earlier call must not be mistaken for its answer
    FILES.remove_tree(folder / MODEL)
    taken = choice.take(progress)
    chosen = chosen_files(taken.model, name)
    outcome = None
    if rehearsal is not None:
        call = replace(rehearsal, package=taken.package)
        outcome = _rehearsed(call, choice.trust, progress)
    progress.step("handing out the model")
    handed_out = hand_out(taken.package, chosen, folder / MODEL, FILES)
    now = clock.now()
    verified = taken.verified
    rollback = Rollback(
        created_at=now.isoformat(),
        wall_seconds=(now - started_at).total_seconds(),
        commit=verified.commit,
        outcome=verified.outcome,
        level=verified.level,
        made_at=verified.created_at,
        key_id=verified.key_id,
        identity=verified.identity,
        repository=verified.repository,
        base_branch=verified.base_branch,
        base_commit=verified.base_commit,
        config=taken.model.config,
        package=str(taken.package),
        reference=taken.reference,
        package_sha256=verified.package_sha256,
        model=handed_out,
        skipped=tuple(choice.skipped),
        newer_commits=choice.newer_commits(verified.commit),
        rehearsal=outcome,
        notes=verified.notes,
    )
    FILES.write_bytes(folder / DOCUMENT, write_document(rollback))
    return rollback


def _source(
    source: str, packages: Path | None, config: str, gate_id: str, out: Path, max_bytes: int
) -> _Source:
    if packages is not None:
        if source or gate_id:
            raise SettingsError(
                "--packages names a folder in place of a registry",
                hint="Leave out --from and --gate-id: a folder has the packages of one gate.",
            )
        return _Source(
            folder=packages, place="", digest="", gate_id="", out=out, max_bytes=max_bytes
        )
    settings, _ = clone_settings(config)
    place, digest = registry_place(source, settings)
    if digest:
        raise SettingsError(
            "rollback finds the package itself",
            hint="Leave out the digest, or get that package with repro-gate fetch.",
        )
    return _Source(
        folder=None,
        place=place,
        digest=digest,
        gate_id=gate_name(gate_id, settings),
        out=out,
        max_bytes=max_bytes,
    )


def _rehearsed(call: ReproductionCall, trust: Trust, progress: Progress) -> ReproductionOutcome:
    progress.step("running the package again")
    rehearsal = checked_and_run(
        call,
        trust.verified,
        FILES,
        lambda top: build_adapters(FILES, top, progress, INTERRUPTS, os.environ),
    )
    if not rehearsal.outcome.good:
        raise AttestationError(
            f"the rehearsal failed: {HEADLINES[rehearsal.outcome]}",
            hint="Nothing was handed out. `repro-gate reproduce` with this package prints what "
            "differs; without --rehearse the sealed model is handed out as it is.",
            details=(safe_line(str(call.package)),),
        )
    return rehearsal.outcome


def rollback_view(rollback: Rollback) -> RenderableType:
    """Show the commit, its signer, the packages that were passed over, and the model's files."""
    signer = rollback.identity or f"key {short(rollback.key_id)}"
    judged = judged_for_words(rollback.base_branch, rollback.base_commit)
    rows = [
        ("made", f"{rollback.made_at} (the signer's claim)"),
        ("sealed by", signer),
        ("judged for", judged),
        ("settings", rollback.config),
        ("package", rollback.reference or rollback.package),
        *(("model", f"{file.path}  sha256 {file.sha256}") for file in rollback.model),
        *(
            ("passed over", skipped_words(skipped).removeprefix("passed over "))
            for skipped in rollback.skipped
        ),
    ]
    if rollback.newer_commits is not None:
        rows.append(("newer", f"{count(rollback.newer_commits, 'commit')} of the branch"))
    if rollback.rehearsal is not None:
        rows.append(("rehearsed", HEADLINES[rollback.rehearsal]))
    rows += [("note", note) for note in rollback.notes]
    head = f"✅ last good: commit {rollback.commit}, {rollback.outcome}"
    parts: list[RenderableType] = [Text(head, style="bold green")]
    parts += [
        Sentence(safe_line(text), lead=f"  {label:<{LABEL_WIDTH}}", indent=LABEL_WIDTH + 2)
        for label, text in rows
    ]
    return Group(*parts)
