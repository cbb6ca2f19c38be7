"""What goes into a package, beside what it rests on: one file, the same bytes every time."""

from __future__ import annotations

from gate.attestation.packing.instructions import package_readme
from gate.attestation.packing.package import pack
from gate.codec.documents import write_document
from gate.evidence.capture import FIRST_STATE
from gate.evidence.folder import evidence_documents
from gate.ports import Files
from gate.records.baseline import Baseline
from gate.records.observed.evidence import EvidenceSet
from gate.records.observed.state_roots import STATE_MEMBER
from gate.records.request import GateRequest
from gate.records.sealed.attestation import Package, PackageMember
from gate.records.verdict import Verdict

PACKAGE = "package.tar"


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
        sign=request.sign,
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
