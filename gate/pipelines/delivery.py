"""A verdict becomes files: documents, reports, the package and, for a pass, its seals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gate.attestation.instructions import package_readme
from gate.attestation.keys import load_private_key
from gate.attestation.member_index import STATE_MEMBER
from gate.attestation.package import pack
from gate.attestation.seal import seal, seal_paths, write_seals
from gate.codec.documents import write_document
from gate.evidence.capture import FIRST_STATE
from gate.evidence.folder import evidence_documents
from gate.ports import Files, Secrets
from gate.records.baseline import PROPOSED_BASELINE, Baseline
from gate.records.observed.evidence import EvidenceSet
from gate.records.report import ReportLinks
from gate.records.request import GateRequest
from gate.records.sealed.attestation import Package, PackageMember, SealContext
from gate.records.verdict import Verdict
from gate.records.version import VERSION
from gate.report.comment.badge import badge_json
from gate.report.comment.comment import comment_text
from gate.report.comment.summary import summary_text
from gate.report.page.page import page_html
from gate.report.page.page_sources import PageSources

PACKAGE = "package.tar"
BADGE = "badge.json"


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
    """The seals that were written, the same one in two forms; `why_not` says why there is none."""

    bare: Path | None = None
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
    bare, bundle = write_seals(seals, package.path, files)
    return Sealing(bare=bare, bundle=bundle)


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
        BADGE: badge_json(verdict, gate_id=gate_id),
    }
    for name, data in documents.items():
        files.write_bytes(request.out / name, data)
    return Reports(comment=comment, summary=summary, links=links)


def stale_outputs(out: Path) -> tuple[Path, ...]:
    """What an earlier call may have left, which would otherwise look like this call's."""
    names = ("verdict.json", "comment.md", "summary.md", "report.html", BADGE, PROPOSED_BASELINE)
    package = out / PACKAGE
    return (*(out / name for name in names), package, *seal_paths(package))
