"""Whom the caller trusts to have sealed a package, for all verbs that check a seal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import AttestationError, KeyFileError, SettingsError, StorageError
from gate.package.keys import read_trusted_keys
from gate.package.seal_files import find_seals
from gate.package.seal_records import Expected, SealFile, TrustedKeys, VerifiedPackage
from gate.package.signing import Identity, IdentitySigned
from gate.package.sigstore_verifier import check_trusted_root, verify_identity
from gate.package.ustar import BLOCK_BYTES, looks_like_package
from gate.package.verify import verify_identity_package, verify_package
from gate.pipelines.kept_evidence import PACKAGE_HINT, no_package
from gate.text.package_names import MAX_PACKAGE_BYTES
from gate.text.untrusted_text import safe_line

TrustedKeysFile = Annotated[
    Path | None, typer.Option(help="Trust file, from a source that you trust.")
]
CertificateIdentity = Annotated[
    str, typer.Option(help="For a keyless seal: the workflow that must have sealed.")
]
CertificateIssuer = Annotated[
    str, typer.Option(help="Issuer that must have certified that identity.")
]
TrustedRootFile = Annotated[
    Path | None,
    typer.Option(help="Certificates and log keys to trust; default: the public services'."),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """The keys or the identity that a seal has to be from.

    `keys` is the trust file, or None for a seal by an identity. `root` is the root of trust of the
    identity's services, or None for the public ones.
    """

    keys: Path | None
    identity: Identity
    root: Path | None

    def trusted_keys(self) -> TrustedKeys:
        """Read the trust file; call it only if `keys` is set."""
        assert self.keys is not None  # noqa: S101 - asked where a key is trusted
        return read_trusted_keys(_trusted_bytes(self.keys), str(self.keys))

    def make_ready(self) -> None:
        """Let the Sigstore library store its copy of the public root.

        Call it before verifying in a confined child, which can write no file.
        """
        if self.keys is None and self.root is None:
            # suppressed, because `verified` raises it again after reporting faults of the package
            with suppress(AttestationError):
                check_trusted_root(None)

    def verified(
        self, package: Path, expected: Expected, seals: Sequence[Path] = ()
    ) -> VerifiedPackage:
        """Verify the package and return what its seals say.

        `seals` are the files to check; empty for those beside the package. Raises
        `AttestationError` if a seal does not hold, or is not what `expected` demands, and
        `KeyFileError` for an unusable trust file or trusted root.
        """
        if self.keys is not None:
            trusted = self.trusted_keys()
            verified = _seals(package, seals)
            return verify_package(package, verified, trusted, expected, FILES)
        root = _trusted_bytes(self.root) if self.root else None

        def check(content: bytes) -> IdentitySigned:
            return verify_identity(content, self.identity, root)

        return verify_identity_package(package, _seals(package, seals), check, expected, FILES)


def _trusted_bytes(path: Path) -> bytes:
    """Return the content of a trust file or a trusted root.

    Raises `KeyFileError` if it cannot be read: that is no fault of the package.
    """
    try:
        return FILES.read_bytes(path, max_bytes=MAX_DOCUMENT_BYTES)
    except StorageError as error:
        raise KeyFileError(error.message, hint=error.hint) from error


def _seals(package: Path, seals: Sequence[Path]) -> tuple[SealFile, ...]:
    """Return the seals to check.

    Raises `EvidenceError` if there is no package, and `StorageError` if the path is not a regular
    file, or not a package.
    """
    if not FILES.exists(package):
        raise no_package(package, FILES)
    # Open the package first: for a folder or a pipe, "no seal found" would be a misleading error.
    with FILES.open_binary(package, max_bytes=MAX_PACKAGE_BYTES) as stream:
        is_package = looks_like_package(stream.read(BLOCK_BYTES))
    try:
        return find_seals(package, FILES, seals)
    except AttestationError as error:
        # a file beside a seal may have been a package: then the seal refuses it
        if is_package or seals:
            raise
        raise StorageError(
            f"{safe_line(str(package))} is not a package of repro-gate",
            hint=PACKAGE_HINT,
        ) from error


def judged_for_words(base_branch: str, base_commit: str) -> str:
    """Return what a sealed pass was judged for: a merge, a base commit without one, or neither."""
    if not base_commit:
        return "the commit alone"
    return f"{f'a merge into {base_branch}' if base_branch else 'a base commit'}, at {base_commit}"


def chosen_trust(keys: Path | None, identity: Identity, root: Path | None) -> Trust:
    """Return the trust that the options name.

    Raises `SettingsError` unless they name exactly one: a trust file, or identity and issuer.
    """
    if keys is not None and (identity.name or identity.issuer or root):
        raise SettingsError(
            "--trusted-keys and --certificate-identity are two ways to verify",
            hint="Give the one that the seal was made for: a key, or a job's identity.",
        )
    if keys is None and not (identity.name and identity.issuer):
        raise SettingsError(
            "no trusted key or identity was given",
            hint="Give --trusted-keys FILE. For a keyless seal, give both --certificate-identity "
            "and --certificate-oidc-issuer: anyone can get a certificate for some other identity.",
        )
    return Trust(keys=keys, identity=identity, root=root)
