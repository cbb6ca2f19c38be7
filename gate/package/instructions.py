"""How to verify a package without this program: shell lines for openssl, tar and other tools.

The lines of openssl, `sha256sum` and `tar` rest on nothing else; those of cosign and model-signing
use the key that the first lines took out of the trust file, and the files that they unpacked.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gate.package.identity import Identity
from gate.package.seal_records import ECDSA_P256, PAYLOAD_TYPE, KeyDetails, StatementKind
from gate.package.sealed_provenance import PROVENANCE_PREDICATE
from gate.package.sealed_statement import VERDICT_PREDICATE
from gate.package.ustar import SUMS_NAME
from gate.text.untrusted_text import masked

PREDICATES: Final = {
    StatementKind.VERDICT: VERDICT_PREDICATE,
    StatementKind.PROVENANCE: PROVENANCE_PREDICATE,
}
BARE_ENDING: Final = ".dsse.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustFile:
    """A trust file by its path, and which of its keys is meant by its digest."""

    path: str
    key_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """What is to be verified, by the paths and names that the reader has.

    `seals` holds one file for each statement. The public key is taken out of `trust`, else from the
    file `public_key`; without `algorithm` the lines suit both kinds of keys. `model_folder` is the
    folder of the package that the model's own signature covers. With `identity` the seals are
    without a key, and `trusted_root` is the file that they rest on, empty for the public services'.
    """

    package: str
    commit: str
    seals: Sequence[tuple[StatementKind, str]]
    trust: TrustFile | None = None
    public_key: str = "gate-public-key.pem"
    algorithm: KeyDetails | None = None
    model_folder: str = ""
    identity: Identity | None = None
    trusted_root: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Lines for one tool: what they check, which line the reader has to see, what to type."""

    tool: str
    title: str
    lines: str


def outside_sections(artifact: Artifact) -> tuple[Section, ...]:
    """All tools that can verify this artifact, in the order in which one rests on the other.

    With a key openssl comes first, and the others use what it wrote; a certificate is cosign's.
    """
    by_key = artifact.identity is None
    signed = "the signatures. Must print only 'Verified OK' and 1."
    about = "what the statements are about. Must print only 1."
    sections = [
        Section(
            tool="openssl",
            title=f"openssl: {signed if by_key else about}",
            lines=openssl_lines(artifact),
        ),
        Section(
            tool="tar",
            title="tar and sha256sum: the files. Each line must end with OK.",
            lines=file_lines(artifact),
        ),
    ]
    cosign = _cosign_lines(artifact)
    if cosign:
        title = f"cosign: the {'same ' if by_key else ''}seals. Must print 'Verified OK' for each."
        section = Section(tool="cosign", title=title, lines=cosign)
        sections.insert(len(sections) if by_key else 0, section)
    signature = dict(artifact.seals).get(StatementKind.MODEL)
    if signature is not None:
        title = "model-signing: the model. Must print 'Verification succeeded'."
        lines = _model_lines(artifact, signature)
        sections.append(Section(tool="model_signing", title=title, lines=lines))
    return tuple(sections)


def openssl_lines(artifact: Artifact) -> str:
    """Shell lines that verify every seal with sed and openssl, from where the paths start.

    The key must come from a place that the reader trusts, such as the protected branch, never from
    beside the package. What is signed is DSSE's encoding: type and payload, each after its length
    in bytes. What the lines write goes to a new folder in the system's own for such: names in the
    reader's own folder could be links of somebody else.
    """
    signature = _signature_lines(artifact)
    lines = [
        "w=$(mktemp -d)",
        *_key_lines(artifact),
        f"# One seal: its statement{', and the signature over it' if signature else ''}.",
        "seal() {",
        f"  {_field('payload', '$w/$1.json')}",
        *(f"  {line}" for line in signature),
        "}",
        *(f"seal {kind.value} {_quoted(path)}" for kind, path in artifact.seals),
        "# The package and the commit that both statements are about.",
        f"sha256=$(openssl dgst -sha256 -r {_quoted(artifact.package)} | cut -d ' ' -f 1)",
        *_named_in(artifact),
    ]
    return "\n".join(lines) + "\n"


def _key_lines(artifact: Artifact) -> list[str]:
    if artifact.identity is not None:
        return []
    if artifact.trust is None:
        return [f'cp {_quoted(artifact.public_key)} "$w/key.pem"']
    return ["# The public key, out of the trust file.", _key(artifact.trust)]


def _signature_lines(artifact: Artifact) -> list[str]:
    if artifact.identity is not None:
        return []
    return [
        _field("sig", "$w/$1.sig"),
        f"printf 'DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} %s ' \\",
        """  "$(wc -c < "$w/$1.json" | tr -d ' ')" > "$w/$1.pae" """.rstrip(),
        'cat "$w/$1.json" >> "$w/$1.pae"',
        _key_verification(artifact.algorithm),
    ]


def _named_in(artifact: Artifact) -> list[str]:
    kinds = [kind for kind, _ in artifact.seals if kind in PREDICATES]
    return [
        f'grep -c {what} "$w/{kind.value}.json"'
        for kind in kinds
        for what in ('"$sha256"', _quoted(artifact.commit))
    ]


def _key_verification(algorithm: KeyDetails | None) -> str:
    if algorithm == ECDSA_P256:
        return 'openssl dgst -sha256 -verify "$w/key.pem" -signature "$w/$1.sig" "$w/$1.pae"'
    # prints another sentence, and takes keys of both kinds from OpenSSL 3 on
    return (
        'openssl pkeyutl -verify -pubin -inkey "$w/key.pem" -rawin -in "$w/$1.pae" \\\n'
        '    -sigfile "$w/$1.sig" > "$w/told" && echo "Verified OK" || cat "$w/told"'
    )


def file_lines(artifact: Artifact) -> str:
    """Shell lines that unpack into the new folder and compare every file with its sum."""
    return (
        f'mkdir "$w/files" && tar -xf {_quoted(artifact.package)} -C "$w/files"\n'
        f'(cd "$w/files" && sha256sum -c {SUMS_NAME})\n'
    )


def _cosign_lines(artifact: Artifact) -> str:
    """For each seal in the form that cosign takes: bare with a key, else a bundle."""
    calls = []
    for kind, path in artifact.seals:
        if kind not in PREDICATES or path.endswith(BARE_ENDING) is (artifact.identity is not None):
            continue
        words = [f"--type {PREDICATES[kind]}", *_cosign_trust(artifact, path)]
        calls.append(" \\\n  ".join(["cosign verify-blob-attestation", *words]))
    return "".join(f"{call} {_quoted(artifact.package)}\n" for call in calls)


def _cosign_trust(artifact: Artifact, path: str) -> list[str]:
    if artifact.identity is None:
        return ['--key "$w/key.pem" --insecure-ignore-tlog', f"--signature {_quoted(path)}"]
    root = [f"--trusted-root {_quoted(artifact.trusted_root)}"] if artifact.trusted_root else []
    return [
        f"--certificate-identity {_quoted(artifact.identity.name)}",
        f"--certificate-oidc-issuer {_quoted(artifact.identity.issuer)}",
        *root,
        f"--new-bundle-format --bundle {_quoted(path)}",
    ]


def _model_lines(artifact: Artifact, signature: str) -> str:
    return (
        f'model_signing verify key "$w/files/{artifact.model_folder}" --no-ignore-git-paths \\\n'
        f'  --signature {_quoted(signature)} --public_key "$w/key.pem"\n'
    )


def _key(trust: TrustFile) -> str:
    """Take the key out of a trust file, whatever its line ends."""
    entry = f'"key_id": *"{trust.key_id}"[^}}]*"raw_bytes": *"\\([^"]*\\)"'
    return (
        f"tr '\\n' ' ' < {_quoted(trust.path)} | sed -n 's/.*{entry}.*/\\1/p' | \\\n"
        '  openssl base64 -d -A | openssl pkey -pubin -inform DER -out "$w/key.pem"'
    )


def _field(key: str, target: str) -> str:
    """Take one base64 field out of a seal, which is a single line, and decode it."""
    pattern = f's/.*"{key}":"\\([^"]*\\)".*/\\1/p'
    return f"""sed -n '{pattern}' "$2" | openssl base64 -d -A > "{target}" """.rstrip()


def _quoted(text: str) -> str:
    return shlex.quote(masked(text))
