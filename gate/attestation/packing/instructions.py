"""How to verify a package without this program, and the README inside a package."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from gate.attestation.dsse import PAYLOAD_TYPE
from gate.attestation.packing.ustar import SUMS_NAME
from gate.attestation.seal import BARE_SUFFIX
from gate.codec.untrusted_text import masked
from gate.records.request import SigningMethod
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
LIMIT = (
    "The seal proves who signed and what was compared. It cannot prove that the training code "
    "was honest about its numbers."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustFile:
    """A trust file by its path, and which of its keys is meant by its digest."""

    path: str
    key_id: str


def openssl_commands(
    package: str,
    *,
    commit: str,
    seal: str = "",
    public_key: str = "gate-public-key.pem",
    trust: TrustFile | None = None,
) -> str:
    """Shell lines that verify a seal with sed and openssl, in the folder where the paths start.

    `seal` is the envelope's path; without one it is the bare form beside the package. The public
    key is taken out of `trust`, else from the file `public_key`. It must come from a place that the
    reader trusts, such as the protected branch, never from beside the package. The encoding that
    is signed is DSSE's: type and payload, each after its length in bytes. What the lines write
    goes to a new folder in the system's own for such.
    """
    name, key = _quoted(package), _quoted(public_key)
    envelope = _quoted(seal or str(PurePath(package).with_suffix(BARE_SUFFIX)))
    encoding = f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} %s "
    # a new folder: names in the reader's own could be links of somebody else
    lines = ["w=$(mktemp -d)"]
    if trust is not None:
        key = '"$w/key.pem"'
        lines += ["# The public key, out of the trust file.", _key(trust)]
    lines += [
        "# The signature over the statement: must print 'Verified OK'.",
        _field("payload", envelope, '"$w/statement.json"'),
        _field("sig", envelope, '"$w/statement.sig"'),
        """bytes=$(wc -c < "$w/statement.json" | tr -d ' ')""",
        f"""printf '{encoding}' "$bytes" > "$w/statement.pae" """.rstrip(),
        'cat "$w/statement.json" >> "$w/statement.pae"',
        f'openssl dgst -sha256 -verify {key} -signature "$w/statement.sig" "$w/statement.pae"',
        "# The package and the commit that the statement is about: each must print 1.",
        f'grep -c "$(openssl dgst -sha256 -r {name} | cut -d " " -f 1)" "$w/statement.json"',
        f'grep -c {_quoted(commit)} "$w/statement.json"',
    ]
    return "\n".join(lines) + "\n"


def _key(trust: TrustFile) -> str:
    """Take the key out of a trust file, whatever its line ends."""
    entry = f'"key_id": *"{trust.key_id}"[^}}]*"raw_bytes": *"\\([^"]*\\)"'
    return (
        f"tr '\\n' ' ' < {_quoted(trust.path)} | sed -n 's/.*{entry}.*/\\1/p' | "
        'openssl base64 -d -A | openssl pkey -pubin -inform DER -out "$w/key.pem"'
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
        return (
            "With `repro-gate[sigstore]`, and the name of the workflow that must have sealed it:",
            _block(f"repro-gate verify {package} {WORKFLOW_OPTIONS} {about}"),
        )
    return (
        "With repro-gate, and the trust file from your protected branch:",
        _block(f"repro-gate verify {package} --trusted-keys trusted-keys.json {about}"),
        "Or with openssl alone, and the public key from a place that you trust:",
        _block(openssl_commands(package, commit=commit)),
    )


def _member_line(name: str) -> str:
    meaning = MEMBER_MEANINGS.get(name)
    return f"- `{_shown(name)}`: {meaning}" if meaning else f"- `{_shown(name)}`"


def _field(key: str, source: str, target: str) -> str:
    """Take one base64 field out of a seal, which is a single line, and decode it."""
    pattern = f's/.*"{key}":"\\([^"]*\\)".*/\\1/p'
    return f"sed -n '{pattern}' {source} | openssl base64 -d -A > {target}"


def _quoted(text: str) -> str:
    return shlex.quote(masked(text))


def _shown(text: str) -> str:
    """One line of text that cannot end the code span it stands in."""
    return masked(text).replace("`", "?")


def _block(text: str) -> str:
    """An indented code block: no fence, so nothing inside can close it."""
    return "\n".join(f"    {line}" for line in text.splitlines())
