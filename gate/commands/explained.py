"""`verify --explain`: what to type to verify this very package without the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gate.package.identity import Identity
from gate.package.identity_bundle import read_identity_bundle
from gate.package.instructions import Artifact, TrustFile, outside_sections
from gate.package.model_signing import model_folder
from gate.package.opening import Opened, open_seals, opened_seal
from gate.package.provenance import read_provenance
from gate.package.seal_files import find_seals, seal_places
from gate.package.seal_records import ED25519, Expected, StatementKind, TrustedKeys
from gate.package.signing import decode_base64
from gate.package.statement import read_statement
from gate.package.verify import check_expected
from gate.system.files.port import Files

HEAD = (
    "# Verifies the package without repro-gate; paste it part by part where you are now.\n"
    "# Stop where a part prints something else; do not unpack such a package then."
)
ED25519_NOTE = (
    "# No model signature: OpenSSF Model Signing takes no Ed25519 key.\n"
    "# The provenance lists the same files with their SHA-256."
)


def explain_by_key(
    package: Path,
    chosen: Sequence[Path],
    trusted: tuple[str, TrustedKeys],
    expected: Expected,
    files: Files,
) -> str:
    """The commands for seals by a key; `trusted` is the trust file's path and content.

    The package itself is not read. Raises `AttestationError` for seals that do not hold, and for
    those of another commit.
    """
    path, document = trusted
    opened, key = open_seals(find_seals(package, files, chosen), document)
    check_expected(read_statement(opened.payload(StatementKind.VERDICT, package)), expected)
    model = model_folder(read_provenance(opened.payload(StatementKind.PROVENANCE, package)).model)
    if model is not None and key.key_details != ED25519:
        opened.payload(StatementKind.MODEL, package)
    artifact = Artifact(
        package=str(package),
        commit=expected.commit.lower(),
        seals=_one_of_each(opened, package, chosen, files),
        trust=TrustFile(path=path, key_id=key.key_id),
        algorithm=key.key_details,
        model_folder=model.name if model is not None else "",
    )
    note = ED25519_NOTE if key.key_details == ED25519 else ""
    return _script(artifact, note)


def identity_artifact(
    package: Path, chosen: Sequence[Path], identity: Identity, expected: Expected, files: Files
) -> Artifact:
    """A package with seals without a key, as it lies there; whoever types the commands checks it.

    Raises `AttestationError` for a file that is no bundle of such a seal, and for another commit.
    """
    paths = [path for path, _ in seal_places(package, files, chosen)]
    seals = []
    for path, seal in zip(paths, find_seals(package, files, chosen), strict=True):
        envelope = read_identity_bundle(seal).dsse_envelope
        payload = decode_base64(envelope.payload, f"{seal.name}: the payload")
        kind = opened_seal(seal, envelope.payload_type, payload, "").kind
        if kind is StatementKind.VERDICT:
            # the repository may stand in the certificate alone, which whoever types this looks at
            check_expected(read_statement(payload), replace(expected, repository=""))
        seals.append((kind, str(path)))
    commit = expected.commit.lower()
    return Artifact(package=str(package), commit=commit, seals=seals, identity=identity)


def explain_by_identity(artifact: Artifact, *, trusted_root: str) -> str:
    """The commands for seals without a key: cosign checks certificate, log and signature.

    `trusted_root` is the path of what they rest on, empty for the public services' root.
    """
    return _script(replace(artifact, trusted_root=trusted_root), "")


def _one_of_each(
    opened: Opened, package: Path, chosen: Sequence[Path], files: Files
) -> tuple[tuple[StatementKind, str], ...]:
    """For each statement the first file that holds it: a bare envelope where there is one."""
    places = [str(path) for path, _ in seal_places(package, files, chosen)]
    first: dict[StatementKind, str] = {}
    for place, kind in zip(places, opened.kinds, strict=True):
        first.setdefault(kind, place)
    return tuple(first.items())


def _script(artifact: Artifact, note: str) -> str:
    parts = [f"# {part.title}\n{part.lines}" for part in outside_sections(artifact)]
    return "\n".join((HEAD, "", *parts)) + (f"\n{note}\n" if note else "")
