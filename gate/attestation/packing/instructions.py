"""The README inside a package: what it is, how to verify it, how to run it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gate.attestation.packing.outside import Artifact, file_lines, openssl_lines
from gate.attestation.packing.ustar import SUMS_NAME
from gate.attestation.seal_files import (
    BARE_SUFFIX,
    BUNDLE_SUFFIX,
    MODEL_SUFFIX,
    PROVENANCE_BARE_SUFFIX,
    PROVENANCE_BUNDLE_SUFFIX,
    seal_path,
)
from gate.codec.untrusted_text import masked
from gate.records.request import SigningMethod
from gate.records.sealed.attestation import StatementKind
from gate.records.verdict import Verdict

README_NAME = "README.md"
MEMBER_MEANINGS = {
    "verdict.json": "the verdict: outcome, findings, comparisons, figures",
    "evidence/environment.json": "where it was trained: packages, machine, lock files",
    SUMS_NAME: "SHA-256 of every other file; check with `sha256sum -c SHA256SUMS`",
    README_NAME: "this page",
}
WORKFLOW_OPTIONS = (
    "--certificate-oidc-issuer https://token.actions.githubusercontent.com "
    "--certificate-identity https://github.com/OWNER/NAME/.github/workflows/FILE@REF"
)
BUNDLES = (
    "Beside it lie its seals: the verdict in `{}`, how it was made in `{}`. A package without both "
    "is not verified."
)
SEALS = (
    "Beside it lie its seals, made in one call with one key: the verdict in `{}`, how it was made "
    "in `{}` (SLSA provenance), both again as Sigstore bundles, and with an ECDSA key the model's "
    "own signature in `{}` (OpenSSF Model Signing). A package without them is not verified."
)
OUTSIDE = (
    "The same command with `--explain` prints what to type for openssl, cosign and model-signing. "
    "With openssl 3 alone, and the public key from a place that you trust:"
)
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
    """The README.md of a package, in Markdown; the same verdict gives the same text.

    `member_names` need not name the README itself, nor `SHA256SUMS`.
    """
    opening = (
        f"The smoke training of commit `{_shown(verdict.commit)}`, judged by repro-gate on "
        f"{_shown(verdict.created_at)}: **{verdict.outcome}**."
    )
    parts = (
        "# Reproducibility package",
        opening,
        "## What is in it",
        "\n".join(_member_line(name) for name in sorted({*member_names, README_NAME, SUMS_NAME})),
        "## Verify it",
        *_verification(package_name, verdict.commit, sign),
        LIMIT,
        "## Reproduce it",
        _block(masked(reproduce_command)),
        "The same bits are promised in the same environment only; `verdict.json` lists it.",
    )
    return "\n\n".join(parts) + "\n"


def _verification(package: str, commit: str, sign: SigningMethod) -> tuple[str, ...]:
    about = f"--commit {_shown(commit)}"
    if sign is SigningMethod.SIGSTORE:
        bundles = (_beside(package, each) for each in (BUNDLE_SUFFIX, PROVENANCE_BUNDLE_SUFFIX))
        return (
            BUNDLES.format(*bundles),
            "With `repro-gate[sigstore]`, and the name of the workflow that must have sealed it:",
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


def _member_line(name: str) -> str:
    meaning = MEMBER_MEANINGS.get(name)
    return f"- `{_shown(name)}`: {meaning}" if meaning else f"- `{_shown(name)}`"


def _shown(text: str) -> str:
    """One line of text that cannot end the code span it stands in."""
    return masked(text).replace("`", "?")


def _block(text: str) -> str:
    """An indented code block: no fence, so nothing inside can close it."""
    return "\n".join(f"    {line}" for line in text.splitlines())
