"""Checks before the training whether the key can sign and the project's trust file lists it.

A private key is opened in a child that limits itself and ends at once. A vault, a token or a
program is asked only for the public key, which signs nothing, in a child that ends too. Only the
key's id comes back. So this process holds no key, PIN or token before the training has ended (T1).

A service that is down says nothing about the key, and only a pass needs its signature. So that is a
warning, and a drift still gets its diagnosis.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from gate.errors import AttestationError, KeyServiceDownError, SettingsError
from gate.isolation.confined_look import SECONDS, read_apart
from gate.package.seal_records import KeyStatus, TrustedKey, TrustedKeys
from gate.package.signing import Secrets
from gate.pipelines.adapters import Adapters
from gate.settings.event import SigningMethod
from gate.system.git.repository import MAX_FILE_BYTES
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line
from gate.verdict.request import GateRequest

KEY_ID: Final[RecordForm[str]] = RecordForm(str)
SHOWN: Final = 16
# long, because a busy vault is asked again for a while
ELSEWHERE_SECONDS: Final = 300.0


def check_trusted_signer(
    request: GateRequest,
    adapters: Adapters,
    secrets: Secrets,
    *,
    trusted_keys: str,
    allow_plain: bool,
) -> None:
    """Raise `SettingsError` for an unusable, retired or revoked key.

    A key that is not listed and a service that is down are warnings. `trusted_keys` replaces the
    settings' trust file in the verify command.
    """
    if request.from_fork or request.sign is not SigningMethod.KEY or not secrets.names_key():
        return
    try:
        key = _key_id(secrets, allow_plain=allow_plain)
    except KeyServiceDownError as fault:
        adapters.progress.step(
            f"warning: {fault.message}, so the signing key is not checked; a pass cannot be sealed "
            "unless the service answers after the training"
        )
        return
    shown = trusted_keys or request.repository_path(request.settings.signing.trusted_keys)
    data = _trust_file(request, adapters, trusted_keys)
    if data is None:
        return
    from gate.package.keys import read_trusted_keys  # noqa: PLC0415 - slow to import

    now = adapters.clock.now()
    try:
        warning = signer_warning(key, read_trusted_keys(data, shown), shown, now)
    except AttestationError as fault:
        raise SettingsError(fault.message, hint=fault.hint, details=fault.details) from fault
    if warning:
        adapters.progress.step(f"warning: {warning}")


def signer_warning(key_id: str, trusted: TrustedKeys, shown: str, now: datetime) -> str:
    """Return why a seal by this key would not verify yet, or an empty text.

    Raises `SettingsError` for a key whose seals are no longer valid.
    """
    name = safe_line(shown)
    known = next((key for key in trusted.keys if key.key_id == key_id), None)
    if known is None:
        return (
            f"the signing key {key_id[:SHOWN]} is not listed in {name}: its seal verifies only "
            "once it is (`repro-gate keys add`)"
        )
    if _counts(known, now):
        return ""
    raise SettingsError(
        f"the signing key {key_id[:SHOWN]} is {known.status.value} in {name}: no "
        "seal by it is valid",
        hint="Sign with an active key; `repro-gate keys generate` makes one and lists it.",
    )


def _counts(key: TrustedKey, now: datetime) -> bool:
    if key.status is KeyStatus.RETIRED and key.retired_at is not None:
        return now < datetime.fromisoformat(key.retired_at)
    return key.status is KeyStatus.ACTIVE


def _trust_file(request: GateRequest, adapters: Adapters, named: str) -> bytes | None:
    """Return the trust file of the verify command.

    On a pull request the settings' file is read from the base commit (T2).
    """
    own = request.repository_path(request.settings.signing.trusted_keys)
    if not named and request.pull_request and request.base_commit:
        return adapters.git.read_file(request.base_commit, own)
    path = Path(named) if named else request.top / own
    files = adapters.files
    return files.read_bytes(path, max_bytes=MAX_FILE_BYTES) if files.exists(path) else None


def _key_id(secrets: Secrets, *, allow_plain: bool) -> str:
    """Return the key's id, which proves that the key exists and is readable.

    Raises `KeyServiceDownError` if its service does not answer, and `SettingsError` for other
    faults.
    """
    # imported here: the import is slow, and most calls sign nothing
    from gate.package.keys import (  # noqa: PLC0415
        key_id,
        load_private_key,
        public_key,
    )

    elsewhere = not secrets.names_file()

    def look() -> str:
        if elsewhere:
            signer = secrets.signer()
            assert signer is not None  # noqa: S101 - asked where a key is named
            return key_id(public_key(signer.public_key(), "the signing key"))
        key = load_private_key(
            secrets.signing_key() or b"", secrets.passphrase(), allow_plain=allow_plain
        )
        return key_id(key.public_key())

    try:
        return read_apart(
            KEY_ID,
            look,
            what="the signing key",
            seconds=ELSEWHERE_SECONDS if elsewhere else SECONDS,
            # not confined: a vault needs the network, and a token needs a program to be started
            confined=not elsewhere,
            hint="Call the gate again when the key's service answers.",
        )
    except KeyServiceDownError:
        raise
    except AttestationError as fault:
        raise SettingsError(fault.message, hint=fault.hint) from fault
