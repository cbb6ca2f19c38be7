"""A pass is sealed: with a key, or with the job's identity."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gate.errors import AttestationError, SettingsError
from gate.evidence.run_evidence import EvidenceSet
from gate.package.identity import Identity
from gate.package.members import PACKAGE
from gate.package.seal_files import (
    BUNDLE_SUFFIX,
    PROVENANCE_BUNDLE_SUFFIX,
    seal_file,
    seal_path,
    write_seals,
)
from gate.package.seal_records import Package, SealContext
from gate.package.seal_services import SealServices
from gate.package.signing_ports import Secrets
from gate.pipelines.signing_key import open_signing_key
from gate.settings.mode import SigningMethod
from gate.system.files.port import Files
from gate.system.version import VERSION
from gate.text.untrusted_text import masked
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

if TYPE_CHECKING:
    from gate.package.seal import Statements

IDENTITY_HINT = "Run in a job of GitHub Actions that has the permission `id-token: write`."


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSigner:
    """Where key or certificate come from, and what the statement says of the baseline.

    `baseline_digest` is a SHA-256 or empty; `trusted_root` the text of the file that the settings
    name, None where they name none. `services` are asked for only where a seal has no key.
    """

    secrets: Secrets
    allow_plain_key: bool
    baseline_digest: str
    services: Callable[[], SealServices]
    trusted_root: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealing:
    """The verdict's seal that was written, as a bundle; `why_not` says why there is none.

    `identity` says whose a seal without a key is.
    """

    bundle: Path | None = None
    identity: Identity | None = None
    why_not: str = ""


def seal_package(
    verdict: Verdict,
    evidence: EvidenceSet,
    package: Package,
    request: GateRequest,
    signer: PackageSigner,
    files: Files,
) -> Sealing:
    """Sign a pass when there is a key or an identity; every other case says why it is not signed.

    Raises `AttestationError` when one is there and cannot be used: a missing seal must not be
    found out months later.
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
    # only here: no process of the training lives any more (T1 in docs/architecture.md)
    plain = signer.allow_plain_key
    key = None if by_identity else open_signing_key(signer.secrets, allow_plain=plain)
    if key is None and not by_identity:
        return Sealing(why_not="no signing key was given")
    # slow to import, and most calls seal nothing
    from gate.package.making import making_of  # noqa: PLC0415
    from gate.package.seal import seal, statements_of  # noqa: PLC0415

    statements = statements_of(verdict, package, context, making_of(evidence, request))
    if key is None:
        return _seal_by_identity(statements, package, signer, files)
    write_seals(seal(statements, package, key), package.path, files)
    return Sealing(bundle=seal_path(package.path, BUNDLE_SUFFIX))


def _why_never(verdict: Verdict, request: GateRequest) -> str:
    """Why there is no seal, whatever key there is; asked before the key is read."""
    if not verdict.passes:
        return "only a pass is sealed"
    # whoever wrote a fork's code must not have the key used for that code
    if request.from_fork:
        return "a pull request from a fork is never sealed"
    if _by_own_rules(request):
        return "the settings, which decide, come with the pull request"
    if verdict.changed_files:
        return "there were uncommitted changes, so no commit can be sealed"
    return ""


def _seal_by_identity(
    statements: Statements, package: Package, signer: PackageSigner, files: Files
) -> Sealing:
    wanted = signer.secrets.identity_request()
    if wanted is None:
        raise AttestationError("this job may not ask for an identity token", hint=IDENTITY_HINT)
    # as above
    from gate.package.keyless import seal_by_identity  # noqa: PLC0415

    seals, identity = [], None
    # each with a key, a certificate and a token of its own; none is written unless both are made
    for payload, suffix in (
        (statements.verdict, BUNDLE_SUFFIX),
        (statements.provenance, PROVENANCE_BUNDLE_SUFFIX),
    ):
        sealed = seal_by_identity(payload, wanted, signer.services(), signer.trusted_root)
        seals.append(seal_file(package.path, suffix, sealed.bundle))
        identity = sealed.identity
    write_seals(seals, package.path, files)
    return Sealing(bundle=seal_path(package.path, BUNDLE_SUFFIX), identity=identity)


def may_seal_by_identity(request: GateRequest) -> bool:
    """Whether this call asks for the job's identity token if it comes to a pass."""
    own_rules = _by_own_rules(request)
    return request.sign is SigningMethod.SIGSTORE and not request.from_fork and not own_rules


def _by_own_rules(request: GateRequest) -> bool:
    """Whether the change under test brings the settings that it is judged by.

    A seal would say that it kept rules which nobody approved, and a token would be sent to where
    they say (T2).
    """
    return request.pull_request and request.settings_from == "head"


def refuse_unready(request: GateRequest, secrets: Secrets, *, has_sigstore: bool) -> None:
    """`SettingsError` where a seal without a key cannot come about; an hour of training earlier."""
    if request.sign is not SigningMethod.SIGSTORE or request.from_fork:
        return
    if not secrets.may_identify():
        raise SettingsError("sign: sigstore needs the job's identity token", hint=IDENTITY_HINT)
    if not has_sigstore:
        raise SettingsError(
            "sign: sigstore needs the package sigstore",
            hint="Install it beside the gate: `pip install 'repro-gate[sigstore]'`.",
        )


def verify_line(verdict: Verdict, request: GateRequest, sealing: Sealing, trusted_keys: str) -> str:
    """The command that verifies the seal, as the reader can paste it; empty without a seal."""
    if sealing.bundle is None:
        return ""
    package = request.shown_out / PACKAGE
    trust = f"--trusted-keys {trusted_keys}"
    if sealing.identity is not None:
        # a branch's name stands in it, which may hold what a shell obeys
        name, issuer = (shlex.quote(each) for each in _words(sealing.identity))
        trust = f"--certificate-identity {name} --certificate-oidc-issuer {issuer}"
        root = request.settings.signing.trusted_root
        trust += f" --trusted-root {request.repository_path(root)}" if root else ""
    return f"repro-gate verify {package} {trust} --commit {verdict.commit}"


def _words(identity: Identity) -> tuple[str, str]:
    return masked(identity.name), masked(identity.issuer)
