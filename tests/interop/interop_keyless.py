"""Seals without a key, by services that are played here, and what other tools say of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attestation_cases import CONTEXT, FILES, MAKING, members_of, pack_to, verdict_of
from fake_sigstore import IDENTITY, FakeSigstore
from github_client import AT_ONCE
from interop_scenes import SAVED, Fault, Scene, finish, unpack
from interop_tools import Tools
from interop_verifiers import BUNDLES, Verifier, ends_well, ours, typed

from gate.commands.verify import explain_by_identity, identity_artifact
from gate.package.keyless import seal_by_identity
from gate.package.seal import statements_of
from gate.package.seal_files import BUNDLE_SUFFIX, PROVENANCE_BUNDLE_SUFFIX, seal_file, write_seals
from gate.package.seal_records import Expected, PackageMember, SealContext
from gate.package.sigstore_services import SigstoreServices

ROOT = Path(__file__).resolve().parents[2]
TRUSTED_ROOT = "root.json"
CERTIFICATE = (None,)
# no key, so another root of trust in its place
NO_MODEL = tuple(fault for fault in Fault if fault is not Fault.MODEL)


def keyless_scenes(folder: Path) -> dict[Fault, Scene]:
    """One scene for each fault, all sealed by the same job."""
    with FakeSigstore() as sigstore, FakeSigstore() as other:
        roots = {fault: sigstore.trusted_root() for fault in Fault}
        roots[Fault.KEY] = other.trusted_root()
        return {
            fault: _scene(folder / fault.value, fault, sigstore, root)
            for fault, root in roots.items()
        }


def _scene(folder: Path, fault: Fault, sigstore: FakeSigstore, root: bytes) -> Scene:
    folder.mkdir(parents=True)
    scene = Scene(folder=folder, algorithm=None, fault=fault)
    verdict = verdict_of()
    members = [
        *members_of(verdict),
        *(PackageMember(name=name, content=content) for name, content in SAVED.items()),
    ]
    package = pack_to(scene.package, *members)
    context = SealContext(gate_version=CONTEXT.gate_version, repository="o/model")
    statements = statements_of(verdict, package, context, MAKING)
    services = SigstoreServices(sigstore.settings(), AT_ONCE)
    made = [
        seal_file(
            package.path,
            suffix,
            seal_by_identity(payload, sigstore.request(), services, sigstore.trusted_root()).bundle,
        )
        for payload, suffix in (
            (statements.verdict, BUNDLE_SUFFIX),
            (statements.provenance, PROVENANCE_BUNDLE_SUFFIX),
        )
    ]
    write_seals(made, package.path, FILES)
    (folder / TRUSTED_ROOT).write_bytes(root)
    unpack(scene, SAVED)
    finish(scene)
    return scene


def keyless_verifiers(tools: Tools) -> list[Verifier]:
    """Those that can check a certificate and a log, offline."""
    found = [
        Verifier(
            tool="repro-gate verify",
            seal="all seals",
            accepts=lambda scene: ours(
                scene,
                *("--certificate-identity", IDENTITY.name),
                *("--certificate-oidc-issuer", IDENTITY.issuer),
                *("--trusted-root", scene.folder / TRUSTED_ROOT),
            ),
            keys=CERTIFICATE,
        )
    ]
    if tools.cosign is not None and tools.openssl is not None:
        cosign = tools.cosign.parent
        found.append(
            Verifier(
                tool="cosign, openssl, sha256sum",
                seal="all seals, as explained",
                accepts=lambda scene: _explained(scene, cosign),
                keys=CERTIFICATE,
            )
        )
    if tools.node_modules is not None:
        modules = tools.node_modules
        found += [
            Verifier(
                tool="@sigstore/verify",
                seal=f"`{name}`",
                accepts=_javascript(modules, name),
                keys=CERTIFICATE,
                looks_at=(Fault.NONE, Fault.PAYLOAD, Fault.SIGNATURE, Fault.KEY),
            )
            for name, _ in BUNDLES.values()
        ]
    return found


def _explained(scene: Scene, cosign: Path) -> bool:
    good = scene.folder.parent / Fault.NONE.value
    about = Expected(commit=scene.commit)
    artifact = identity_artifact(good / "package.tar", (), IDENTITY, about, FILES)
    root = scene.folder / TRUSTED_ROOT
    script = explain_by_identity(artifact, trusted_root=str(root))
    done = typed(script.replace(str(good), str(scene.folder)), str(cosign))
    told = done.stdout.splitlines()
    files = told[6:]
    stated = told[:6] == ["1"] * 6 and all(line.endswith(": OK") for line in files)
    return stated and bool(files) and done.stderr.count("Verified OK") == len(BUNDLES)


def _javascript(modules: Path, name: str) -> Callable[[Scene], bool]:
    script = ROOT / "scripts" / "verify_bundle.mjs"

    def accepts(scene: Scene) -> bool:
        given = (scene.folder / name, scene.folder / TRUSTED_ROOT, IDENTITY.name, IDENTITY.issuer)
        return ends_well(("node", script, modules, *given))

    return accepts
