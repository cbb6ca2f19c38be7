"""Who has to have sealed a package: what the verbs that check a seal have in common."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import AttestationError, SettingsError, StorageError
from gate.package.keys import read_trusted_keys
from gate.package.seal_files import find_seals
from gate.package.seal_records import Expected, SealFile, TrustedKeys, VerifiedPackage
from gate.package.signing import Identity, IdentitySigned
from gate.package.sigstore_verifier import check_trusted_root, verify_identity
from gate.package.ustar import BLOCK_BYTES, looks_like_package
from gate.package.verify import verify_identity_package, verify_package
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
    """A trust file, or else an identity; `root` is that of the identity's services."""

    keys: Path | None
    identity: Identity
    root: Path | None

    def trusted_keys(self) -> TrustedKeys:
        """The keys of the trust file, which has to be there."""
        assert self.keys is not None  # noqa: S101 - asked where a key is trusted
        data = FILES.read_bytes(self.keys, max_bytes=MAX_DOCUMENT_BYTES)
        return read_trusted_keys(data, str(self.keys))

    def make_ready(self) -> None:
        """Have what a confined reader could not write: the library's copy of the public root."""
        if self.keys is None and self.root is None:
            # `verified` raises it, after what else is wrong
            with suppress(AttestationError):
                check_trusted_root(None)

    def verified(
        self, package: Path, expected: Expected, seals: Sequence[Path] = ()
    ) -> VerifiedPackage:
        """The package under its seals; `AttestationError` where one of them does not hold."""
        if self.keys is not None:
            trusted = self.trusted_keys()
            verified = _seals(package, seals)
            return verify_package(package, verified, trusted, expected, FILES)
        root = FILES.read_bytes(self.root, max_bytes=MAX_DOCUMENT_BYTES) if self.root else None

        def check(content: bytes) -> IdentitySigned:
            return verify_identity(content, self.identity, root)

        return verify_identity_package(package, _seals(package, seals), check, expected, FILES)


def _seals(package: Path, seals: Sequence[Path]) -> tuple[SealFile, ...]:
    """Those to check; `StorageError` where there is no package, or no file."""
    if not FILES.exists(package):
        raise StorageError(
            f"there is no package at {safe_line(str(package))}",
            hint="Name the package.tar that a gate call wrote.",
        )
    # said before what is missing beside it: a folder, a pipe or another file has no seals
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
            hint="Name the package.tar that a gate call wrote.",
        ) from error


def chosen_trust(keys: Path | None, identity: Identity, root: Path | None) -> Trust:
    """What the options say; `SettingsError` unless it is exactly one of key and identity."""
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
