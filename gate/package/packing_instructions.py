"""The README inside a package: what it is, how to verify it, how to run it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gate.package.instructions import Artifact, file_lines, openssl_lines
from gate.package.seal_files import (
    BARE_SUFFIX,
    BUNDLE_SUFFIX,
    MODEL_SUFFIX,
    PROVENANCE_BARE_SUFFIX,
    PROVENANCE_BUNDLE_SUFFIX,
    seal_path,
)
from gate.package.seal_records import StatementKind
from gate.package.ustar import SUMS_NAME
from gate.settings.mode import SigningMethod
from gate.text.untrusted_text import masked
from gate.verdict.verdict import Verdict

README_NAME = "README.md"
# a name that ends with a slash is a folder, whose files are not listed one by one
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
    "source.pack": "the commit itself: its files as a pack of git",
    "uncommitted.diff": "what was not committed when it was trained",
    SUMS_NAME: "SHA-256 of every other file; check with `sha256sum -c SHA256SUMS`",
}
MAX_VALUES = 5
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
WITH_SOURCE = "Anywhere: the package holds the code. With repro-gate and what the code imports:"
WITHOUT_SOURCE = (
    "In a clone of the repository that has this commit, with repro-gate and what the code imports:"
)
AGAIN = (
    "It checks the seal, trains the commit again, and compares with the numbers in here; no "
    "baseline is needed. The same bits are promised in the same environment only "
    "(`environment.json`); elsewhere it says what moved, and how far the numbers are apart."
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
    """The README.md of a package, in Markdown; the same verdict gives the same text.

    `member_names` need not name the README itself, nor `SHA256SUMS`.
    """
    opening = (
        f"The smoke training of commit `{_shown(verdict.commit)}`, judged by repro-gate on "
        f"{_shown(verdict.created_at)}: **{verdict.outcome}**."
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
    """The last values of the first metrics, so that the number that somebody claims is here."""
    shown = [series for series in verdict.series if series.last_decimal][:MAX_VALUES]
    if not shown:
        return ()
    values = ", ".join(f"`{_shown(one.name)}` {_shown(one.last_decimal)}" for one in shown)
    rest = len(verdict.series) - len(shown)
    return (f"Last values: {values}" + (f", and {rest} more in `verdict.json`." if rest else "."),)


def _states(verdict: Verdict) -> tuple[str, ...]:
    """The digests that the seal names, each with the command that prints it."""
    lines = [
        f"- `repro-gate digest {_shown(state.member)}`: `{_shown(state.root)}`"
        for state in verdict.states
        if state.member
    ]
    return (DIGESTS, "\n".join(lines)) if lines else ()


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


def _member_lines(names: set[str]) -> Iterator[str]:
    """What is known in the order of the table, folders as one; then whatever else there is."""
    for known, meaning in MEMBER_MEANINGS.items():
        if any(name == known or (known.endswith("/") and name.startswith(known)) for name in names):
            yield f"- `{known}`: {meaning}"
    folders = tuple(known for known in MEMBER_MEANINGS if known.endswith("/"))
    others = {name for name in names if not name.startswith(folders)} - MEMBER_MEANINGS.keys()
    yield from (f"- `{_shown(name)}`" for name in sorted(others))


def _shown(text: str) -> str:
    """One line of text that cannot end the code span it stands in."""
    return masked(text).replace("`", "?")


def _block(text: str) -> str:
    """An indented code block: no fence, so nothing inside can close it."""
    return "\n".join(f"    {line}" for line in text.splitlines())
