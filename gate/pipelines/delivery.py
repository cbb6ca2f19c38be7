"""A call is carried out, and its verdict becomes files: documents, reports, package and seals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gate.attestation.instructions import package_readme
from gate.attestation.keys import load_private_key
from gate.attestation.member_index import STATE_MEMBER
from gate.attestation.package import pack
from gate.attestation.seal import seal, seal_paths, write_seals
from gate.codec.digests import sha256_hex
from gate.codec.documents import write_document
from gate.errors import AttestationError, ExitCode, GateError, StorageError
from gate.evidence.capture import FIRST_STATE
from gate.evidence.folder import evidence_documents
from gate.pipelines.gate import Gated, judge, read_baselines, train_all
from gate.pipelines.imported_evidence import take_over
from gate.pipelines.runs import Adapters
from gate.ports import Files, Secrets
from gate.records.baseline import PROPOSED_BASELINE, Baseline
from gate.records.observed.evidence import EvidenceSet
from gate.records.report import ReportLinks
from gate.records.request import GateRequest
from gate.records.runs import RunMode
from gate.records.sealed.attestation import Package, PackageMember, SealContext
from gate.records.verdict import Verdict
from gate.records.version import VERSION
from gate.report.comment.comment import comment_text
from gate.report.comment.summary import summary_text
from gate.report.page.page import page_html
from gate.report.page.page_sources import PageSources, page_sources
from gate.verdict.assemble import error_verdict

PACKAGE = "package.tar"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reports:
    """The texts that a verdict was rendered to, and the links in them."""

    comment: str
    summary: str
    links: ReportLinks


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """Where the key comes from, and what the statement says of the baseline (SHA-256 or empty)."""

    secrets: Secrets
    allow_plain_key: bool
    baseline_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealing:
    """The seal that was written, as a bundle; `why_not` says why there is none."""

    bundle: Path | None = None
    why_not: str = ""


def write_package(
    verdict: Verdict,
    evidence: EvidenceSet,
    baseline: Baseline | None,
    request: GateRequest,
    files: Files,
) -> Package:
    """Write `package.tar`: the verdict and all that it rests on, the same bytes every time."""
    path = request.out / PACKAGE
    members = [
        PackageMember(name="verdict.json", content=write_document(verdict)),
        PackageMember(name="repro-gate.yml", content=request.settings_text),
        *_evidence_members(evidence, request),
    ]
    if baseline is not None:
        members.append(PackageMember(name="baseline.json", content=write_document(baseline)))
    readme = package_readme(
        verdict,
        member_names=[member.name for member in members],
        reproduce_command=_reproduce_command(verdict, request),
    )
    members.append(PackageMember(name="README.md", content=readme.encode("utf-8")))
    # a package that was cut short has no name: it appears whole, or not at all
    with files.replacing(path) as target:
        return pack(members, path=path, target=target, files=files)


def _evidence_members(evidence: EvidenceSet, request: GateRequest) -> list[PackageMember]:
    members = [
        PackageMember(name=f"evidence/{name}", content=data)
        for name, data in evidence_documents(evidence)
    ]
    for kept in evidence.kept:
        name = STATE_MEMBER if kept.name == FIRST_STATE else f"evidence/{kept.name}"
        path = request.out / "evidence" / kept.name
        members.append(PackageMember(name=name, path=path, sha256=kept.sha256))
    return members


def _reproduce_command(verdict: Verdict, request: GateRequest) -> str:
    config = request.repository_path(request.config_name)
    return f"repro-gate gate --config {config} --commit {verdict.commit}"


def seal_package(
    verdict: Verdict,
    package: Package,
    request: GateRequest,
    signer: Signer,
    files: Files,
) -> Sealing:
    """Sign a pass when there is a key; every other case says why it is not signed.

    Raises `AttestationError` when there is a key that cannot be used: a missing seal must not be
    found out months later.
    """
    if not verdict.passes:
        return Sealing(why_not="only a pass is sealed")
    # before the key is read: whoever wrote a fork's code must not have it used for that code
    if request.from_fork:
        return Sealing(why_not="a pull request from a fork is never sealed")
    if verdict.changed_files:
        return Sealing(why_not="there were uncommitted changes, so no commit can be sealed")
    # only here: no process of the training lives any more (T1 in docs/architecture.md)
    pem = signer.secrets.signing_key()
    if pem is None:
        return Sealing(why_not="no signing key was given")
    key = load_private_key(pem, signer.secrets.passphrase(), allow_plain=signer.allow_plain_key)
    context = SealContext(
        gate_version=VERSION,
        repository=request.repository,
        run_id=request.run_url,
        baseline_digest=signer.baseline_digest,
    )
    seals = seal(verdict, package, context, key)
    _, bundle = write_seals(seals, package.path, files)
    return Sealing(bundle=bundle)


def verify_line(verdict: Verdict, request: GateRequest, trusted_keys: str) -> str:
    """The command that verifies the seal, as the reader can paste it."""
    package = request.shown_out / PACKAGE
    return f"repro-gate verify {package} --trusted-keys {trusted_keys} --commit {verdict.commit}"


def write_reports(
    verdict: Verdict,
    request: GateRequest,
    links: ReportLinks,
    files: Files,
    sources: PageSources | None = None,
) -> Reports:
    """Render the verdict for every reader and write each text to the output folder.

    The page is drawn from `sources`; a fault has none.
    """
    gate_id = request.settings.report.gate_id
    comment = comment_text(verdict, links, gate_id=gate_id)
    summary = summary_text(verdict, links, gate_id=gate_id)
    # of the same verdict as comment and summary: no reader is told another thing
    page = page_html(verdict, links, gate_id=gate_id, sources=sources)
    documents = {
        "verdict.json": write_document(verdict),
        "comment.md": comment.encode("utf-8"),
        "summary.md": summary.encode("utf-8"),
        "report.html": page.encode("utf-8"),
    }
    for name, data in documents.items():
        files.write_bytes(request.out / name, data)
    return Reports(comment=comment, summary=summary, links=links)


def stale_outputs(out: Path) -> tuple[Path, ...]:
    """What an earlier call may have left, which would otherwise look like this call's."""
    names = ("verdict.json", "comment.md", "summary.md", "report.html", PROPOSED_BASELINE)
    package = out / PACKAGE
    return (*(out / name for name in names), package, *seal_paths(package))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveredVerdict:
    """The result of a gate call; `fault` is what stopped it, if anything did."""

    verdict: Verdict
    reports: Reports
    sealing: Sealing
    package: Path | None
    out: Path
    exit_code: ExitCode
    fault: GateError | None = None


Pipeline = Callable[[GateRequest, Adapters], Gated]


def run_only(request: GateRequest, adapters: Adapters) -> Path:
    """The first of two jobs: train, judge nothing; the folder with the evidence."""
    with adapters.files.held_folder(request.out):
        # this call judges nothing: an older verdict beside its evidence would be read as its own
        for path in stale_outputs(request.out):
            adapters.files.remove_tree(path)
        train_all(request, adapters, read_baselines(request, adapters))
    return request.out / "evidence"


def judging(folder: Path) -> Pipeline:
    """The second of two jobs: judge the evidence in a folder; nothing is trained."""

    def judge_imported(request: GateRequest, adapters: Adapters) -> Gated:
        baselines = read_baselines(request, adapters)
        imported = take_over(request, adapters, folder)
        counted = imported.evidence.runs_of(RunMode.AUDIT)
        failure = (
            "" if counted or not request.settings.operator_audit else "the job that ran took none"
        )
        return judge(
            request,
            baselines,
            imported.evidence,
            imported.isolation,
            operator_audit_failure=failure,
        )

    return judge_imported


def run_and_deliver(
    request: GateRequest,
    adapters: Adapters,
    secrets: Secrets,
    pipeline: Pipeline,
    *,
    trusted_keys: str = "",
    allow_plain_key: bool = False,
) -> DeliveredVerdict:
    """Come to a verdict, then write every document; a fault on the way is written down as well.

    `trusted_keys` is the file that the verify command names, where it is not the one of the
    settings. Settings, usage and cancellation are no verdict: their errors pass through, and so
    does that of another call which works in the output folder.
    """
    with adapters.files.held_folder(request.out):
        # a call that fails early must not leave an older verdict and its seal to be read as its own
        for path in stale_outputs(request.out):
            adapters.files.remove_tree(path)
        # now, for a fault's report too: git does not look at a clone that was trained beside
        commit = request.commit or adapters.git.resolve("HEAD")
        try:
            gated = pipeline(request, adapters)
        except GateError as fault:
            if fault.exit_code is not ExitCode.ERROR:
                raise
            return _deliver_fault(request, adapters, commit, fault)
        try:
            named = trusted_keys or request.repository_path(request.settings.signing.trusted_keys)
            return _deliver(
                request, adapters, gated, secrets, named, allow_plain_key=allow_plain_key
            )
        except AttestationError as fault:
            # asked for a seal that cannot be made: no verdict stands without it, and none is lost
            return _deliver_fault(request, adapters, commit, fault)


def _deliver(
    request: GateRequest,
    adapters: Adapters,
    gated: Gated,
    secrets: Secrets,
    trusted_keys: str,
    *,
    allow_plain_key: bool,
) -> DeliveredVerdict:
    adapters.progress.step("packing and sealing")
    package = write_package(gated.verdict, gated.evidence, gated.baseline, request, adapters.files)
    signer = Signer(
        secrets=secrets,
        allow_plain_key=allow_plain_key,
        # of the canonical form: line ends of a checkout do not change what was compared with
        baseline_digest=sha256_hex(write_document(gated.baseline)) if gated.baseline else "",
    )
    sealing = seal_package(gated.verdict, package, request, signer, adapters.files)
    if gated.proposed is not None:
        path = request.out / PROPOSED_BASELINE
        adapters.files.write_bytes(path, write_document(gated.proposed))
    command = (
        verify_line(gated.verdict, request, trusted_keys) if sealing.bundle is not None else ""
    )
    shown = request.shown_out / package.path.name
    links = ReportLinks(run_url=request.run_url, package_path=str(shown), verify_command=command)
    drawn = page_sources(gated.verdict, gated.evidence, gated.baseline)
    return DeliveredVerdict(
        verdict=gated.verdict,
        reports=write_reports(gated.verdict, request, links, adapters.files, drawn),
        sealing=sealing,
        package=package.path,
        out=request.out,
        exit_code=gated.verdict.exit_code,
    )


def _deliver_fault(
    request: GateRequest, adapters: Adapters, commit: str, fault: GateError
) -> DeliveredVerdict:
    now = adapters.clock.now().isoformat()
    verdict = error_verdict(request, commit, now, fault)
    links = ReportLinks(run_url=request.run_url)
    try:
        reports = write_reports(verdict, request, links, adapters.files)
    except StorageError as second:
        # the first fault is the answer; that it could not be written down as well is a second one
        raise fault from second
    return DeliveredVerdict(
        verdict=verdict,
        reports=reports,
        sealing=Sealing(why_not="only a pass is sealed"),
        package=None,
        out=request.out,
        exit_code=verdict.exit_code,
        fault=fault,
    )
