"""Collect the members of a package and write `package.tar`; equal results give equal bytes."""

from __future__ import annotations

from typing import Final

from gate.baseline.entry import Baseline
from gate.evidence.capture import FIRST_STATE, SAVED_FOLDER
from gate.evidence.evidence_folder import READABLE_NAMES, WrittenDocument
from gate.evidence.run_evidence import EvidenceSet
from gate.package.aibom import AIBOM_NAME, aibom
from gate.package.instructions import WORKFLOW_OPTIONS, package_readme
from gate.package.packing import CALL_NAME, SOURCE_MEMBER, CallDocument, code_members, pack
from gate.package.seal_files import PACKAGE
from gate.package.seal_records import Package, PackageMember
from gate.settings.event import SigningMethod
from gate.system.files.port import Files
from gate.system.version import VERSION
from gate.text.documents import write_document
from gate.text.package_names import MODEL_FOLDER, STATE_MEMBER
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

STUDY_NAME: Final = "study.json"


def write_package(
    verdict: Verdict,
    evidence: EvidenceSet,
    baseline: Baseline | None,
    request: GateRequest,
    files: Files,
    documents: tuple[WrittenDocument, ...],
) -> Package:
    """Write `package.tar` with the verdict and everything that it relies on.

    `documents` are the evidence's files in the output folder. Their known digests are passed on, so
    that packing notices a file that has changed since.
    """
    path = request.out / PACKAGE
    kept = _evidence_members(evidence, request, documents)
    state = next((member.sha256 for member in kept if member.name == STATE_MEMBER), "") or ""
    members = [
        PackageMember(name="verdict.json", content=write_document(verdict)),
        PackageMember(name="repro-gate.yml", content=request.settings_text),
        PackageMember(name=AIBOM_NAME, content=aibom(verdict, evidence, request, state)),
        *kept,
        *code_members(request.out, evidence.locks, files),
    ]
    if request.study is not None:
        members.append(PackageMember(name=STUDY_NAME, content=write_document(request.study)))
    source = any(member.name == SOURCE_MEMBER for member in members)
    call = _call(verdict, request, source=source)
    members.append(PackageMember(name=CALL_NAME, content=write_document(call)))
    if baseline is not None:
        members.append(PackageMember(name="baseline.json", content=write_document(baseline)))
    readme = package_readme(
        verdict,
        member_names=[member.name for member in members],
        reproduce_command=_reproduce_command(verdict, request),
        sign=request.sign,
    )
    members.append(PackageMember(name="README.md", content=readme.encode("utf-8")))
    # Written under a temporary name: an interrupted call leaves no truncated package.
    with files.replacing(path) as target:
        return pack(members, path=path, target=target, files=files)


def _evidence_members(
    evidence: EvidenceSet, request: GateRequest, documents: tuple[WrittenDocument, ...]
) -> list[PackageMember]:
    folder = request.out / "evidence"
    files = [(document.name, document.sha256) for document in documents]
    files += [(member.name, member.sha256) for member in evidence.kept]
    return [
        PackageMember(name=_member_name(name), path=folder / name, sha256=sha256)
        for name, sha256 in files
    ]


def _member_name(name: str) -> str:
    if name == FIRST_STATE:
        return STATE_MEMBER
    if name.startswith(SAVED_FOLDER):
        return f"{MODEL_FOLDER}/{name.removeprefix(SAVED_FOLDER)}"
    # at the top level, where a person looks first
    return name if name in READABLE_NAMES else f"evidence/{name}"


def _call(verdict: Verdict, request: GateRequest, *, source: bool) -> CallDocument:
    return CallDocument(
        commit=verdict.commit,
        config=request.repository_path(request.config_name),
        settings_digest=verdict.settings_digest,
        snapshot_digest=verdict.snapshot_digest,
        created_at=verdict.created_at,
        gate_version=VERSION,
        repository=request.repository,
        run_url=request.run_url,
        source=source,
    )


def _reproduce_command(verdict: Verdict, request: GateRequest) -> str:
    if not verdict.passes or verdict.changed_files:
        # such a verdict is never sealed, so there is nothing to verify first
        return f"repro-gate reproduce {PACKAGE} --unsealed"
    if request.sign is SigningMethod.SIGSTORE:
        return f"repro-gate reproduce {PACKAGE} {WORKFLOW_OPTIONS}"
    return f"repro-gate reproduce {PACKAGE} --trusted-keys trusted-keys.json"
