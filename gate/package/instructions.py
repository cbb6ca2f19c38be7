"""Instructions for verifying a package, with this program and without: its README, and shell lines.

The lines for openssl, `sha256sum` and `tar` need nothing else. The lines for cosign and
model-signing use the key that the first lines took from the trust file, and the files that they
unpacked.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.package.provenance import COMMIT, PROVENANCE_PREDICATE
from gate.package.seal_files import (
    BARE_SUFFIX,
    BUNDLE_SUFFIX,
    MODEL_SUFFIX,
    PROVENANCE_BARE_SUFFIX,
    PROVENANCE_BUNDLE_SUFFIX,
    seal_path,
)
from gate.package.seal_records import ECDSA_P256, PAYLOAD_TYPE, KeyDetails, StatementKind
from gate.package.signing import Identity
from gate.package.statement import VERDICT_PREDICATE
from gate.package.ustar import SUMS_NAME
from gate.settings.event import SigningMethod
from gate.text.untrusted_text import masked
from gate.verdict.verdict import Verdict, judged_words

PREDICATES: Final = {
    StatementKind.VERDICT: VERDICT_PREDICATE,
    StatementKind.PROVENANCE: PROVENANCE_PREDICATE,
}
BARE_ENDING: Final = ".dsse.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustFile:
    """A trust file by its path, and the id of the key in it that signed."""

    path: str
    key_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """The package and seals to verify, by the paths and names that the reader has.

    `seals` has one file for each statement. The public key is taken from `trust`, or from the file
    `public_key` if that is None. Without `algorithm` the lines work for both kinds of keys.
    `model_folder` is the folder of the package that the model's own signature covers. With
    `identity` the seals were made without a key; `trusted_root` is then the file to verify with,
    empty for the public services' own.
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
class ToolSection:
    """Shell lines for one tool; `title` says what they check and which output to expect."""

    tool: str
    title: str
    lines: str


def outside_sections(artifact: Artifact) -> tuple[ToolSection, ...]:
    """Return the sections of every tool that can verify this artifact, in the order to run them.

    With a key, openssl comes first, because the other tools use the files that it writes. Without a
    key, only cosign can check the certificate, so cosign comes first.
    """
    by_key = artifact.identity is None
    signed = "the signatures. Must print only 'Verified OK' and 1."
    about = "what the statements are about. Must print only 1."
    sections = [
        ToolSection(
            tool="openssl",
            title=f"openssl: {signed if by_key else about}",
            lines=openssl_lines(artifact),
        ),
        ToolSection(
            tool="tar",
            title="tar and sha256sum: the files. Each line must end with OK.",
            lines=file_lines(artifact),
        ),
    ]
    # Empty if no seal has the form that cosign takes; the section is then left out.
    cosign = _cosign_lines(artifact)
    if cosign:
        title = f"cosign: the {'same ' if by_key else ''}seals. Must print 'Verified OK' for each."
        section = ToolSection(tool="cosign", title=title, lines=cosign)
        sections.insert(len(sections) if by_key else 0, section)
    signature = dict(artifact.seals).get(StatementKind.MODEL)
    if signature is not None:
        title = "model-signing: the model. Must print 'Verification succeeded'."
        lines = _model_lines(artifact, signature)
        sections.append(ToolSection(tool="model_signing", title=title, lines=lines))
    return tuple(sections)


def openssl_lines(artifact: Artifact) -> str:
    """Return shell lines that verify every seal with sed and openssl.

    The paths are relative to where the reader runs them. The key must come from a place that the
    reader trusts, such as the protected branch, never from beside the package. DSSE signs type and
    payload, each preceded by its length in bytes. The lines write to a new folder of `mktemp`:
    names in the reader's own folder could be links that somebody else placed there.
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
        "# What each statement is, and the package and the commit that it is about.",
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
        # `pae` of envelope.py, rebuilt in the shell.
        f"printf 'DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} %s ' \\",
        """  "$(wc -c < "$w/$1.json" | tr -d ' ')" > "$w/$1.pae" """.rstrip(),
        'cat "$w/$1.json" >> "$w/$1.pae"',
        _key_verification(artifact.algorithm),
    ]


def _named_in(artifact: Artifact) -> list[str]:
    """Return lines that search a statement for whole objects, in the notation of canonical JSON.

    A bare digest would also match inside a text that a training or a branch name chose. Whole
    objects cannot: in a JSON string each quotation mark is escaped by a backslash.
    """
    commit = f'{{"digest":{{"gitCommit":"{artifact.commit}"}},"name":"{COMMIT}"}}'
    whats = ("""'"subject":[{"digest":{"sha256":"'"$sha256"'"},'""", _quoted(commit))
    return [
        f'grep -cF {what} "$w/{kind.value}.json"'
        for kind, _ in artifact.seals
        if kind in PREDICATES
        for what in (_quoted(f'"predicateType":"{PREDICATES[kind]}"'), *whats)
    ]


def _key_verification(algorithm: KeyDetails | None) -> str:
    if algorithm == ECDSA_P256:
        return 'openssl dgst -sha256 -verify "$w/key.pem" -signature "$w/$1.sig" "$w/$1.pae"'
    # pkeyutl takes both kinds of keys from OpenSSL 3 on, but prints a different sentence.
    return (
        'openssl pkeyutl -verify -pubin -inkey "$w/key.pem" -rawin -in "$w/$1.pae" \\\n'
        '    -sigfile "$w/$1.sig" > "$w/told" && echo "Verified OK" || cat "$w/told"'
    )


def file_lines(artifact: Artifact) -> str:
    """Return shell lines that unpack the package into the new folder and check every file's sum."""
    return (
        f'mkdir "$w/files" && tar -xf {_quoted(artifact.package)} -C "$w/files"\n'
        f'(cd "$w/files" && sha256sum -c {SUMS_NAME})\n'
    )


def _cosign_lines(artifact: Artifact) -> str:
    """Return cosign calls for the seals in the form it takes: bare with a key, else bundles."""
    calls = []
    for kind, path in artifact.seals:
        if kind not in PREDICATES or path.endswith(BARE_ENDING) is (artifact.identity is not None):
            continue
        words = [f"--type {PREDICATES[kind]}", *_cosign_trust(artifact, path)]
        calls.append(" \\\n  ".join(["cosign verify-blob-attestation", *words]))
    return "".join(f"{call} {_quoted(artifact.package)}\n" for call in calls)


def _cosign_trust(artifact: Artifact, path: str) -> list[str]:
    if artifact.identity is None:
        # A seal by key has no entry in a transparency log.
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
        # Without the option, model_signing skips folders such as .github, which the signature
        # covers.
        f'model_signing verify key "$w/files/{artifact.model_folder}" --no-ignore-git-paths \\\n'
        f'  --signature {_quoted(signature)} --public_key "$w/key.pem"\n'
    )


def _key(trust: TrustFile) -> str:
    """Return a shell line that extracts the key from a trust file with any kind of line ends."""
    # `[^}]*` stays inside one entry: the next key must not be taken.
    entry = f'"key_id": *"{trust.key_id}"[^}}]*"raw_bytes": *"\\([^"]*\\)"'
    return (
        f"tr '\\n' ' ' < {_quoted(trust.path)} | sed -n 's/.*{entry}.*/\\1/p' | \\\n"
        '  openssl base64 -d -A | openssl pkey -pubin -inform DER -out "$w/key.pem"'
    )


def _field(key: str, target: str) -> str:
    """Return a shell line that decodes one base64 field of a seal, which is a single line."""
    pattern = f's/.*"{key}":"\\([^"]*\\)".*/\\1/p'
    return f"""sed -n '{pattern}' "$2" | openssl base64 -d -A > "{target}" """.rstrip()


def _quoted(text: str) -> str:
    return shlex.quote(masked(text))


README_NAME = "README.md"
# A name that ends with a slash is a folder, listed once instead of file by file.
MEMBER_MEANINGS = {
    README_NAME: "this page",
    "verdict.json": "the verdict: outcome, findings, comparisons, figures",
    "repro-gate.yml": "the settings of the gate, as they decided",
    "call.json": "which commit, which settings file, by which version and job",
    "environment.json": "where it was trained: packages, machine, lock files",
    "cluster.json": "on what: accelerators, interconnect, host",
    "data.json": "declared data: digests, counts, statistics",
    "seeds.json": "seeds of every generator, and what the script seeded itself",
    "baseline.json": "the baseline that it was compared with",
    "checkpoint/": "model and optimizer as the gate captured them at the end",
    "model/": "what the training's script saved itself",
    "evidence/": "each run: metrics at full precision, digests of steps and tensors, output",
    "locks/": "lock files of the commit",
    "aibom.cdx.json": "a bill of materials (CycloneDX): model, data, packages, how it was made",
    "source.pack": "the commit itself: its files as a git pack",
    "study.json": "mean and spread over seeds, measured before this call at this commit",
    "uncommitted.diff": "what was not committed when it was trained",
    SUMS_NAME: "SHA-256 of every other file; check with `sha256sum -c SHA256SUMS`",
}
MAX_VALUES = 5
WORKFLOW_OPTIONS = (
    "--certificate-oidc-issuer https://token.actions.githubusercontent.com "
    "--certificate-identity https://github.com/OWNER/NAME/.github/workflows/FILE@REF"
)
BUNDLES = (
    "Its seals are next to it: the verdict in `{}`, how it was made in `{}`. A package without "
    "both is not verified."
)
SEALS = (
    "Its seals are next to it, made in one call with one key: the verdict in `{}`, how it was made "
    "in `{}` (SLSA provenance), both again as Sigstore bundles, and with an ECDSA key the model's "
    "own signature in `{}` (OpenSSF Model Signing). A package without them is not verified."
)
OUTSIDE = (
    "The same command with `--explain` prints what to type for openssl, cosign and model-signing. "
    "With openssl 3 alone, and the public key from a place that you trust:"
)
WITH_SOURCE = "Anywhere: the package holds the code. With repro-gate and what the code imports:"
WITHOUT_SOURCE = (
    "In a clone of the repository that has this commit, with repro-gate and what the code imports:"
)
AGAIN = (
    "It checks the seal, trains the commit again, and compares with the numbers in here; no "
    "baseline is needed. The same bits are promised in the same environment only "
    "(`environment.json`); elsewhere the command reports what changed, and how far apart the "
    "numbers are."
)
DIGESTS = "Digests of the states, which the seal names; each is what the command prints:"
LIMIT = (
    "The seal proves who signed and what was compared. It cannot prove that the training code "
    "was honest about its numbers."
)


def package_readme(
    verdict: Verdict,
    *,
    member_names: Sequence[str],
    reproduce_command: str,
    package_name: str = "package.tar",
    sign: SigningMethod = SigningMethod.KEY,
) -> str:
    """Return the README.md of a package, in Markdown; equal verdicts give equal texts.

    `member_names` may leave out the README itself and `SHA256SUMS`.
    """
    opening = (
        f"The smoke training of commit `{_shown(verdict.commit)}`, judged by repro-gate on "
        f"{_shown(verdict.created_at)}: **{judged_words(verdict.outcome, passes=verdict.passes)}**."
    )
    has_source = "source.pack" in member_names
    parts = (
        "# Reproducibility package",
        opening,
        *_results(verdict),
        "## Run it again",
        WITH_SOURCE if has_source else WITHOUT_SOURCE,
        _block(masked(reproduce_command)),
        AGAIN,
        "## What is in it",
        "\n".join(_member_lines({*member_names, README_NAME, SUMS_NAME})),
        *_states(verdict),
        "## Verify it",
        *_verification(package_name, verdict.commit, sign),
        LIMIT,
    )
    return "\n\n".join(parts) + "\n"


def _results(verdict: Verdict) -> tuple[str, ...]:
    """Return a line with the last values of the first metrics, to hold against a claimed number."""
    shown = [series for series in verdict.series if series.last_decimal][:MAX_VALUES]
    if not shown:
        return ()
    values = ", ".join(f"`{_shown(metric.name)}` {_shown(metric.last_decimal)}" for metric in shown)
    rest = len(verdict.series) - len(shown)
    return (f"Last values: {values}" + (f", and {rest} more in `verdict.json`." if rest else "."),)


def _states(verdict: Verdict) -> tuple[str, ...]:
    """Return the sealed digests of the packed states, each with the command that prints it."""
    lines = [
        f"- `repro-gate digest {_shown(state.member)}`: `{_shown(state.root)}`"
        for state in verdict.states
        if state.member
    ]
    return (DIGESTS, "\n".join(lines)) if lines else ()


def _verification(package: str, commit: str, sign: SigningMethod) -> tuple[str, ...]:
    about = f"--commit {_shown(commit)}"
    if sign is SigningMethod.SIGSTORE:
        bundles = (_beside(package, suffix) for suffix in (BUNDLE_SUFFIX, PROVENANCE_BUNDLE_SUFFIX))
        return (
            BUNDLES.format(*bundles),
            "With the package sigstore, and the name of the workflow that must have sealed it:",
            _block(f"repro-gate verify {package} {WORKFLOW_OPTIONS} {about}"),
        )
    verdict, provenance = (
        _beside(package, suffix) for suffix in (BARE_SUFFIX, PROVENANCE_BARE_SUFFIX)
    )
    seals = ((StatementKind.VERDICT, verdict), (StatementKind.PROVENANCE, provenance))
    artifact = Artifact(package=package, commit=commit, seals=seals)
    return (
        SEALS.format(verdict, provenance, _beside(package, MODEL_SUFFIX)),
        "With repro-gate, and the trust file from your protected branch:",
        _block(f"repro-gate verify {package} --trusted-keys trusted-keys.json {about}"),
        OUTSIDE,
        _block(openssl_lines(artifact) + file_lines(artifact)),
        "It must print only `Verified OK`, `1` and a line with `OK` for each file.",
    )


def _beside(package: str, suffix: str) -> str:
    return seal_path(Path(package), suffix).name


def _member_lines(names: set[str]) -> Iterator[str]:
    """Yield a line for each known member in the table's order, then one for each other member."""
    for known, meaning in MEMBER_MEANINGS.items():
        if any(name == known or (known.endswith("/") and name.startswith(known)) for name in names):
            yield f"- `{known}`: {meaning}"
    folders = tuple(known for known in MEMBER_MEANINGS if known.endswith("/"))
    others = {name for name in names if not name.startswith(folders)} - MEMBER_MEANINGS.keys()
    yield from (f"- `{_shown(name)}`" for name in sorted(others))


def _shown(text: str) -> str:
    """Return one line of text that cannot end the code span around it."""
    return masked(text).replace("`", "?")


def _block(text: str) -> str:
    """Return an indented code block: unlike a fence, no content can close it."""
    return "\n".join(f"    {line}" for line in text.splitlines())
