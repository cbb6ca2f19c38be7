"""From a place to the signer there, and what can be said of it before anything secret is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gate.errors import SettingsError
from gate.package.command import CommandSigner, checked_program
from gate.package.pkcs11 import TokenSigner, check_token_place
from gate.package.signers import VaultSigner, check_files, checked_address, token_file
from gate.package.signing_ports import Signer
from gate.settings.sealed_signer_places import (
    CommandPlace,
    FilePlace,
    SignerPlace,
    TokenPlace,
    VaultPlace,
)
from gate.system.files.port import Files
from gate.text.untrusted_text import safe_line


def open_signer(
    place: CommandPlace | TokenPlace | VaultPlace, files: Files, variables: Mapping[str, str]
) -> Signer:
    """The signer at a place that is no file; reads its token or PIN."""
    if isinstance(place, CommandPlace):
        return CommandSigner(place, variables)
    if isinstance(place, VaultPlace):
        return VaultSigner(place, files, variables)
    return TokenSigner(place, files, variables)


def check_place(place: SignerPlace, files: Files, variables: Mapping[str, str]) -> None:
    """`SettingsError` where the place can give no signature, as far as that shows from outside."""
    if isinstance(place, CommandPlace):
        checked_program(place, variables)
    elif isinstance(place, VaultPlace):
        checked_address(variables)
        check_files(files, variables)
    elif isinstance(place, TokenPlace):
        check_token_place(place, files, variables)
    elif not files.exists(place.path):
        raise SettingsError(
            f"there is no signing key {safe_line(str(place.path))}", hint="Correct the path."
        )
    # asked of the file system: what is in the file is read after the training
    elif place.path.is_dir() or not os.access(place.path, os.R_OK):
        raise SettingsError(
            f"the signing key {safe_line(str(place.path))} is no file that can be read",
            hint="Name the PEM file, and let this account read it.",
        )


def secret_files(place: SignerPlace, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """The files of a place that hold a key, a PIN or a token, whether they are there or not."""
    found: Path | None = None
    if isinstance(place, FilePlace):
        found = place.path
    elif isinstance(place, TokenPlace):
        found = place.pin_source
    elif isinstance(place, VaultPlace):
        found = token_file(variables)
    return () if found is None else (found.absolute(),)


def refuse_programs_below(
    folder: Path, place: SignerPlace | None, variables: Mapping[str, str]
) -> None:
    """`SettingsError` for a program or library in a work tree that a pull request fills.

    It would be started with the gate's account, beside the token that signs.
    """
    paths: tuple[str, ...] = ()
    if isinstance(place, CommandPlace):
        paths = (checked_program(place, variables), *place.argv)
    elif isinstance(place, TokenPlace):
        paths = (str(place.module),)
    top = folder.resolve()
    for path in paths:
        if path.startswith("/") and Path(path).resolve().is_relative_to(top):
            raise SettingsError(
                f"{safe_line(path)} is in the checkout, which the pull request fills",
                hint="Keep what signs outside of it: in the image, or on the runner.",
            )
