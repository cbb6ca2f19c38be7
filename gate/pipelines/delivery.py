"""Turns a verdict into files: documents, reports, package and seals."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gate.baseline.entry import PROPOSED_BASELINE, entry_name
from gate.diagnosis.touched_lines import where_raised
from gate.errors import (
    AttestationError,
    CancelledError,
    ExitCode,
    GateError,
    RepositoryError,
    SettingsError,
    StorageError,
)
from gate.evidence.run_evidence import EvidenceSet
from gate.package.members import write_package
from gate.package.seal_files import (
    BUNDLE_SUFFIX,
    PACKAGE,
    PROVENANCE_BUNDLE_SUFFIX,
    seal_file,
    seal_path,
    write_seals,
)
from gate.package.seal_records import Package, SealContext
from gate.package.signing import Identity, Sealing, SealServices, Secrets, Signer, has_sigstore
from gate.pipelines.adapters import Adapters
from gate.pipelines.case import Gated
from gate.pipelines.committed_policy import with_policy_checked
from gate.pipelines.publish import keep_line, publish
from gate.pipelines.signing_key import check_trusted_signer
from gate.pipelines.snapshots import BADGE, clear_out, held_out, lines_of_the_change
from gate.report.assembly import ReportLinks
from gate.report.comment import comment_text, summary_text
from gate.report.page.page import page_html
from gate.report.page.page_sources import PageSources, page_sources
from gate.report.runner_files import badge_json
from gate.settings.delivery_sections import OCI, S3
from gate.settings.event import SigningMethod
from gate.system.files.port import Files
from gate.system.git.changes import Change
from gate.system.git.repository import Git
from gate.system.version import VERSION
from gate.text.digests import sha256_hex
from gate.text.documents import document_chunks, write_document
from gate.text.untrusted_text import masked, safe_line
from gate.verdict.assemble import error_verdict, fault_place, fault_verdict
from gate.verdict.named_places import with_named_places
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

if TYPE_CHECKING:
    from gate.package.seal import Statements


def refuse_unusable_key(request: GateRequest, secrets: Secrets, *, allow_plain: bool) -> None:
    """Raise `SettingsError` before the training if the given key cannot sign."""
    # a pull request from a fork is never sealed
    if not request.from_fork:
        # the pull request controls the checkout, so no program in it may run beside the key
        checkout = request.top if request.pull_request else None
        secrets.check_signer(checkout=checkout, allow_plain=allow_plain)


def with_secrets_closed(request: GateRequest, adapters: Adapters, secrets: Secrets) -> Adapters:
    """Return adapters that close the secrets' files to other accounts during a training."""
    publishing, publishers = request.settings.publish, adapters.publishers
    history = publishing.history or ""
    files = list(secrets.secret_files())
    if publishing.oci or history.startswith(OCI):
        files += publishers.login_files
    if history.startswith(S3):
        files += publishers.s3_files

    def closed(places: tuple[Path, ...], way: Path) -> AbstractContextManager[None]:
        return adapters.closed((*places, *files), way)

    return replace(adapters, closed=closed)


def open_signing_key(secrets: Secrets, *, allow_plain: bool) -> Signer | None:
    """Return the given key, in a file or a key service; None if none was given.

    Call it only after the last process of the training is gone (T1 in docs/architecture.md). Raises
    `AttestationError` for an unusable key.
    """
    elsewhere = secrets.signer()
    if elsewhere is not None:
        return elsewhere
    pem = secrets.signing_key()
    if pem is None:
        return None
    # imported here: the import is slow, and most calls have no key
    from gate.package.keys import KeyFile, load_private_key  # noqa: PLC0415

    return KeyFile(load_private_key(pem, secrets.passphrase(), allow_plain=allow_plain))


NOTHING_TRAINED = "nothing was run: the seal of the entry's own package remains valid"
MAX_NAMED = 3
IDENTITY_HINT = "Run in a job of GitHub Actions that has the permission `id-token: write`."


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSigner:
    """The sources of key or certificate, and what the statement says about the baseline.

    `baseline_digest` is a SHA-256 or empty. `trusted_root` is the content of the file that the
    settings name, or None. `services` is called only for a seal without a key.
    """

    secrets: Secrets
    allow_plain_key: bool
    baseline_digest: str
    services: Callable[[], SealServices]
    trusted_root: bytes | None


def seal_package(
    verdict: Verdict,
    evidence: EvidenceSet,
    package: Package,
    request: GateRequest,
    signer: PackageSigner,
    files: Files,
) -> Sealing:
    """Sign a pass if there is a key or an identity; otherwise return why it is not signed.

    Raises `AttestationError` if a key or identity is there and unusable: otherwise the missing seal
    would be noticed months later.
    """
    why_not = _why_never(verdict, request)
    if why_not:
        return Sealing(why_not=why_not)
    context = SealContext(
        gate_version=VERSION,
        repository=request.repository,
        run_id=request.run_url,
        baseline_digest=signer.baseline_digest,
    )
    by_identity = request.sign is SigningMethod.SIGSTORE
    # not earlier: now no process of the training lives any more (T1 in docs/architecture.md)
    plain = signer.allow_plain_key
    key = None if by_identity else open_signing_key(signer.secrets, allow_plain=plain)
    if key is None and not by_identity:
        return Sealing(why_not="no signing key was given")
    # imported here: the import is slow, and most calls seal nothing
    from gate.package.provenance import making_of  # noqa: PLC0415
    from gate.package.seal import seal, statements_of  # noqa: PLC0415

    statements = statements_of(verdict, package, context, making_of(evidence, request))
    if key is None:
        return _seal_by_identity(statements, package, signer, files)
    write_seals(seal(statements, package, key), package.path, files)
    return Sealing(bundle=seal_path(package.path, BUNDLE_SUFFIX))


def _why_never(verdict: Verdict, request: GateRequest) -> str:
    """Return why no key may seal this verdict, or an empty text; asked before a key is read."""
    if not verdict.passes:
        return "only a pass is sealed"
    # the author of a fork must not get a signature over that code
    if request.from_fork:
        return "a pull request from a fork is never sealed"
    if request.by_own_rules:
        return "the settings, which decide, come with the pull request"
    if verdict.changed_files:
        return "there were uncommitted changes, so no commit can be sealed"
    if request.uncommitted_policy:
        names = ", ".join(map(safe_line, request.uncommitted_policy[:MAX_NAMED]))
        return f"it was judged by what no commit has: {names}"
    return ""


def _seal_by_identity(
    statements: Statements, package: Package, signer: PackageSigner, files: Files
) -> Sealing:
    identity_request = signer.secrets.identity_request()
    if identity_request is None:
        raise AttestationError("this job may not ask for an identity token", hint=IDENTITY_HINT)
    # imported here for the same reason
    from gate.package.keyless import seal_by_identity  # noqa: PLC0415

    seals, identity = [], None
    # each seal has its own key, certificate and token; both are written, or neither
    for payload, suffix in (
        (statements.verdict, BUNDLE_SUFFIX),
        (statements.provenance, PROVENANCE_BUNDLE_SUFFIX),
    ):
        sealed = seal_by_identity(payload, identity_request, signer.services(), signer.trusted_root)
        seals.append(seal_file(package.path, suffix, sealed.bundle))
        identity = sealed.identity
    write_seals(seals, package.path, files)
    return Sealing(bundle=seal_path(package.path, BUNDLE_SUFFIX), identity=identity)


def may_seal_by_identity(request: GateRequest) -> bool:
    """Decide whether this call requests the job's identity token for a pass."""
    asked = request.sign is SigningMethod.SIGSTORE
    return asked and not request.from_fork and not request.by_own_rules


def refuse_unready(request: GateRequest, secrets: Secrets, *, has_sigstore: bool) -> None:
    """Raise `SettingsError` before the training if a seal without a key is impossible."""
    if request.sign is not SigningMethod.SIGSTORE or request.from_fork:
        return
    if not secrets.may_identify():
        raise SettingsError("sign: sigstore needs the job's identity token", hint=IDENTITY_HINT)
    if not has_sigstore:
        raise SettingsError(
            "sign: sigstore needs the package sigstore",
            hint="Install it next to the gate: `pip install 'sigstore>=4.5'`.",
        )


def verify_line(verdict: Verdict, request: GateRequest, sealing: Sealing, trusted_keys: str) -> str:
    """Return the command that verifies the seal, ready to paste; empty without a seal."""
    if sealing.bundle is None:
        return ""
    package = request.shown_out / PACKAGE
    trust = f"--trusted-keys {trusted_keys}"
    if sealing.identity is not None:
        # the identity contains a branch's name, which can contain shell syntax
        name, issuer = (shlex.quote(word) for word in _words(sealing.identity))
        trust = f"--certificate-identity {name} --certificate-oidc-issuer {issuer}"
        root = request.settings.signing.trusted_root
        trust += f" --trusted-root {request.repository_path(root)}" if root else ""
    return f"repro-gate verify {package} {trust} --commit {verdict.commit}"


def _words(identity: Identity) -> tuple[str, str]:
    return masked(identity.name), masked(identity.issuer)


# a place in a file beyond these limits is shown as the run names it, not as a checked fact
MAX_CODE_FILES = 5000
MAX_CODE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Reports:
    """The texts that a verdict was rendered to, and the links in them."""

    comment: str
    summary: str
    links: ReportLinks


def write_reports(
    verdict: Verdict,
    request: GateRequest,
    links: ReportLinks,
    files: Files,
    sources: PageSources | None = None,
) -> Reports:
    """Render the verdict for every kind of reader and write the texts to the output folder.

    The page is drawn from `sources` too; an error verdict has none.
    """
    gate_id = request.gate_id
    comment = comment_text(verdict, links, gate_id=gate_id)
    summary = summary_text(verdict, links, gate_id=gate_id)
    # from the same verdict as comment and summary, so that no two readers see different facts
    page = page_html(verdict, links, gate_id=gate_id, sources=sources)
    documents = {
        "comment.md": comment.encode("utf-8"),
        "summary.md": summary.encode("utf-8"),
        "report.html": page.encode("utf-8"),
        BADGE: badge_json(verdict, gate_id=gate_id),
    }
    with files.replacing(request.out / "verdict.json") as file:
        file.writelines(document_chunks(verdict))
    for name, data in documents.items():
        files.write_bytes(request.out / name, data)
    return Reports(comment=comment, summary=summary, links=links)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveredVerdict:
    """The result of a gate call; `fault` is the error that stopped the call, or None.

    `proposed_target` is the path in the repository for the proposed entry, or empty. `lines` maps
    each Python file of the commit to its number of lines. `kept` says where the history's line and
    the metrics were kept, or why they were not.
    """

    verdict: Verdict
    reports: Reports
    sealing: Sealing
    package: Path | None
    out: Path
    fault: GateError | None = None
    proposed_target: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    kept: tuple[str, ...] = ()


def _python_lines(git: Git, commit: str) -> Mapping[str, int]:
    """Return the line counts against which a verdict's places are checked; empty if git fails."""
    try:
        return git.python_lines(commit, max_files=MAX_CODE_FILES, max_bytes=MAX_CODE_BYTES)
    except RepositoryError:
        # the export of the commit reports the fault
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """Where the result of a call goes, collected before its training.

    `trusted_keys` is the trust file that the verify command names. `trusted_root` is the content of
    the root file, or None. `lines` are the line counts of the commit's Python files.
    """

    request: GateRequest
    adapters: Adapters
    secrets: Secrets
    allow_plain_key: bool
    trusted_keys: str
    commit: str
    trusted_root: bytes | None
    change: Change | None
    lines: Mapping[str, int]

    def deliver(self, gated: Gated) -> DeliveredVerdict:
        """Write the package, seal it, publish it and write the reports.

        If a requested seal cannot be made, that fault is the result: no verdict is delivered
        without it.
        """
        # first of all, so that every report and the package name the same places
        gated = replace(gated, verdict=with_named_places(gated.verdict, self.lines))
        if gated.verdict.unaffected is not None:
            return self._without_package(gated.verdict, NOTHING_TRAINED)
        try:
            return self._sealed(gated)
        except AttestationError as fault:
            judged = f"the runs themselves were judged: {gated.verdict.outcome}"
            fault.details = (*fault.details, judged)
            return replace(self, change=None).fault(fault)

    def _sealed(self, gated: Gated) -> DeliveredVerdict:
        request, adapters, files = self.request, self.adapters, self.adapters.files
        verdict, evidence, baseline = gated.verdict, gated.evidence, gated.baseline
        adapters.progress.step("writing the package and the reports")
        package = write_package(verdict, evidence, baseline, request, files, gated.documents)
        signer = PackageSigner(
            secrets=self.secrets,
            allow_plain_key=self.allow_plain_key,
            # digest of the canonical form: line endings of a checkout must not change it
            baseline_digest=sha256_hex(write_document(baseline)) if baseline else "",
            services=partial(adapters.seal_services, request.settings.signing),
            trusted_root=self.trusted_root,
        )
        sealing = seal_package(verdict, evidence, package, request, signer, files)
        target = ""
        if gated.proposed is not None:
            folder = request.repository_path(request.settings.baseline.path)
            target = f"{folder}/{entry_name(gated.proposed)}"
            # written in chunks: an entry grows with the training, and its text is never held as a
            # whole
            with files.replacing(request.out / PROPOSED_BASELINE) as file:
                file.writelines(document_chunks(gated.proposed))
        links = ReportLinks(
            run_url=request.run_url,
            package_path=str(request.shown_out / package.path.name),
            verify_command=verify_line(verdict, request, sealing, self.trusted_keys),
            history=request.history.lines,
            published=publish(gated, package, sealing, request, adapters),
        )
        drawn = page_sources(verdict, evidence, baseline)
        return DeliveredVerdict(
            verdict=verdict,
            reports=write_reports(verdict, request, links, files, drawn),
            sealing=sealing,
            package=package.path,
            out=request.out,
            proposed_target=target,
            lines=self.lines,
        )

    def fault(self, fault: GateError) -> DeliveredVerdict:
        """Write the reports of the error that stopped the call."""
        request = self.request
        now = self.adapters.clock.now().isoformat()
        folder = request.repository_path(request.settings.train.workdir)
        shown = where_raised(self.change, fault_place(fault), folder)
        verdict = error_verdict(request, self.commit, now, fault, shown)
        verdict = with_named_places(verdict, self.lines)
        try:
            delivered = self._without_package(verdict, "only a pass is sealed")
        except StorageError as second:
            # raise the first fault: the failure to write its report is only a consequence
            raise fault from second
        return replace(delivered, fault=fault)

    def _without_package(self, verdict: Verdict, why_not_sealed: str) -> DeliveredVerdict:
        """Write the reports alone, because there is no evidence to pack."""
        request = self.request
        links = ReportLinks(run_url=request.run_url, history=request.history.lines)
        return DeliveredVerdict(
            verdict=verdict,
            reports=write_reports(verdict, request, links, self.adapters.files),
            sealing=Sealing(why_not=why_not_sealed),
            package=None,
            out=request.out,
            lines=self.lines,
        )


def prepared_delivery(
    request: GateRequest,
    adapters: Adapters,
    secrets: Secrets,
    *,
    trusted_keys: str,
    allow_plain_key: bool,
) -> Delivery:
    """Collect what delivery needs of the repository; the gate does not ask git after a training."""
    # resolved now, because the report of a fault names the commit too
    commit = request.commit or adapters.git.resolve("HEAD")
    named = trusted_keys or request.repository_path(request.settings.signing.trusted_keys)
    return Delivery(
        request=request,
        adapters=adapters,
        secrets=secrets,
        allow_plain_key=allow_plain_key,
        trusted_keys=named,
        commit=commit,
        trusted_root=_trusted_root(request, adapters, commit),
        change=lines_of_the_change(request, adapters.git),
        lines=_python_lines(adapters.git, commit),
    )


def _trusted_root(request: GateRequest, adapters: Adapters, commit: str) -> bytes | None:
    """Return the trusted root file out of the commit that decides (T2); None if none is needed.

    It is read before the training, so that a missing or broken file raises `SettingsError` at once.
    """
    if not may_seal_by_identity(request):
        return None
    signing = request.settings.signing
    path = request.repository_path(signing.trusted_root) if signing.trusted_root else ""
    text = _committed_root(request, adapters.git, commit, path) if path else None
    try:
        adapters.seal_services(signing).check_root(text)
    except AttestationError as error:
        about = f"{path}: {error.message}" if path else error.message
        raise SettingsError(about, hint=error.hint, details=error.details) from error
    return text


def _committed_root(request: GateRequest, git: Git, commit: str, path: str) -> bytes:
    decides = (request.base_commit if request.pull_request else None) or commit
    text = git.read_file(decides, path)
    if text is None:
        raise SettingsError(
            f"{path}: not in commit {decides[:12]}",
            hint="Commit the file that signing.trusted_root names; on a pull request its base "
            "counts.",
        )
    return text


Pipeline = Callable[[GateRequest, Adapters, Change | None], Gated]


def run_and_deliver(
    request: GateRequest,
    adapters: Adapters,
    secrets: Secrets,
    pipeline: Pipeline,
    *,
    trusted_keys: str = "",
    allow_plain_key: bool = False,
) -> DeliveredVerdict:
    """Come to a verdict and write every document; an error on the way becomes a report as well.

    `trusted_keys` replaces the settings' trust file in the verify command. Errors of settings,
    usage and cancellation are no verdict and pass through. So does the error of another call that
    works in the output folder.
    """
    refuse_unready(request, secrets, has_sigstore=has_sigstore())
    refuse_unusable_key(request, secrets, allow_plain=allow_plain_key)
    adapters = with_secrets_closed(request, adapters, secrets)
    with held_out(request.out, adapters.files):
        request = with_policy_checked(request, adapters)
        check_trusted_signer(
            request,
            adapters,
            secrets,
            trusted_keys=trusted_keys,
            allow_plain=allow_plain_key,
        )
        clear_out(request.out, adapters.files)
        delivery = prepared_delivery(
            request,
            adapters,
            secrets,
            trusted_keys=trusted_keys,
            allow_plain_key=allow_plain_key,
        )
        try:
            gated = pipeline(request, adapters, delivery.change)
        except CancelledError as fault:
            now = adapters.clock.now().isoformat()
            keep_line(fault_verdict(delivery.commit, now, fault), request, adapters, cancelled=True)
            raise
        except GateError as fault:
            if fault.exit_code is not ExitCode.ERROR:
                raise
            delivered = delivery.fault(fault)
        else:
            delivered = delivery.deliver(gated)
        # only now: every process of the training is gone (T1)
        sealed = delivered.sealing.bundle is not None
        kept = keep_line(delivered.verdict, request, adapters, sealed=sealed)
        return replace(delivered, kept=kept)
