"""`repro-gate verify`."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from gate.adapters.clock import SystemClock
from gate.adapters.sigstore.verifier import verify_identity
from gate.attestation.keys import read_trusted_keys
from gate.attestation.packing.instructions import TrustFile, openssl_commands
from gate.attestation.seal import find_bundle, find_seals, seal_paths
from gate.attestation.verify import verify_identity_package, verify_package
from gate.commands.options import AsJson
from gate.commands.program import FILES, MAX_DOCUMENT_BYTES
from gate.errors import SettingsError
from gate.records.sealed.attestation import Expected, SealFile, VerifiedPackage
from gate.records.sealed.identity import Identity, IdentitySigned

AGE = re.compile(r"(?P<number>[0-9]{1,5})(?P<unit>[dh])")
AGE_UNITS = {"d": "days", "h": "hours"}


def _age(text: str) -> timedelta:
    """Days or hours; raises `SettingsError` for anything else."""
    match = AGE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"--max-age {text!r} is not an age", hint="Give days or hours, for example 90d or 12h."
        )
    return timedelta(**{AGE_UNITS[match["unit"]]: int(match["number"])})


def verify_command(  # noqa: PLR0913 - each parameter is an option of the command
    package: Annotated[Path, typer.Argument(help="The package.tar to verify.")],
    commit: Annotated[
        str, typer.Option(help="Full hash of the commit that the package must be about.")
    ],
    trusted_keys: Annotated[
        Path | None, typer.Option(help="Trust file, from a source that you trust.")
    ] = None,
    seal: Annotated[
        Path | None,
        typer.Option("--seal", "--bundle", help="Seal to check; default: all beside the package."),
    ] = None,
    repository: Annotated[
        str, typer.Option(help="owner/name of the repository that it must be about.")
    ] = "",
    max_age: Annotated[
        str, typer.Option(help="Maximum age of the seal, by its own timestamp: 90d, 12h.")
    ] = "",
    *,
    certificate_identity: Annotated[
        str, typer.Option(help="For a seal without a key: the workflow that must have sealed.")
    ] = "",
    certificate_oidc_issuer: Annotated[
        str, typer.Option(help="Who must have told that identity.")
    ] = "",
    trusted_root: Annotated[
        Path | None,
        typer.Option(help="Certificates and log keys to trust; default: the public services'."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a sealed package offline.

    Checks the signature, every byte, the verdict and the commit.

    Example: repro-gate verify demo-out/package.tar --trusted-keys trusted-keys.json --commit SHA
    """
    identity = Identity(name=certificate_identity, issuer=certificate_oidc_issuer)
    by_key = _by_key(trusted_keys, identity, trusted_root)
    oldest = SystemClock().now() - _age(max_age) if max_age else None
    expected = Expected(commit=commit, repository=repository, not_before=oldest)
    if by_key is None:
        bundle = find_bundle(package, FILES, seal)
        found = _by_identity(package, bundle, identity, trusted_root, expected)
        _show(found, "", as_json=as_json)
        return
    trusted = read_trusted_keys(FILES.read_bytes(by_key, max_bytes=MAX_DOCUMENT_BYTES), str(by_key))
    found = verify_package(package, find_seals(package, FILES, seal), trusted, expected, FILES)
    _show(found, _recipe(package, seal, found, by_key), as_json=as_json)


def _recipe(package: Path, seal: Path | None, found: VerifiedPackage, trust: Path) -> str:
    """The commands that verify the same without the gate."""
    commands = openssl_commands(
        str(package),
        commit=found.commit,
        seal=str(seal or next(path for path in seal_paths(package) if FILES.exists(path))),
        trust=TrustFile(path=str(trust), key_id=found.key_id),
    )
    return f"\nThe same without this program:\n{commands}"


def _by_identity(
    package: Path,
    bundle: SealFile,
    identity: Identity,
    trusted_root: Path | None,
    expected: Expected,
) -> VerifiedPackage:
    root = FILES.read_bytes(trusted_root, max_bytes=MAX_DOCUMENT_BYTES) if trusted_root else None

    def check(content: bytes) -> IdentitySigned:
        return verify_identity(content, identity, root)

    return verify_identity_package(package, bundle, check, expected, FILES)


def _by_key(
    trusted_keys: Path | None, identity: Identity, trusted_root: Path | None
) -> Path | None:
    """The trust file, or None for an identity; `SettingsError` unless it is exactly one of both."""
    if trusted_keys is not None and (identity.name or identity.issuer or trusted_root):
        raise SettingsError(
            "--trusted-keys and --certificate-identity are two ways to verify",
            hint="Give the one that the seal was made for: a key, or a job's identity.",
        )
    if trusted_keys is None and not (identity.name and identity.issuer):
        raise SettingsError(
            "nobody is trusted yet",
            hint="Give --trusted-keys; for a seal without a key --certificate-identity and "
            "--certificate-oidc-issuer, both: anybody can have a certificate of another name.",
        )
    return trusted_keys


def _show(found: VerifiedPackage, recipe: str, *, as_json: bool) -> None:
    if as_json:
        facts = {name: getattr(found, name) for name in found.__slots__}
        facts["isolation"] = found.isolation.model_dump(mode="json")
        sys.stdout.write(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        return
    signer = [f"  key        {found.key_id}"]
    if found.identity:
        signer = [
            f"  identity   {found.identity}",
            f"  issuer     {found.issuer}",
            f"  logged     {found.logged_at}",
        ]
    lines = [
        f"verified: {found.outcome}, commit {found.commit}",
        *signer,
        f"  level      {found.level}, {found.strict_runs} equal strict runs",
        f"  made       {found.created_at} (the signer's claim)",
        f"  isolation  {found.isolation.described}",
        f"  checkpoint {found.checkpoint_root}",
        f"  members    {found.members}",
        *(f"  note: {note}" for note in found.notes),
        recipe,
    ]
    sys.stdout.write("\n".join(lines))
