"""Change the trust file: add a key, retire it, revoke it; no step can be undone.

Retired and revoked keys stay listed, because old packages are still verified against them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gate.errors import AttestationError, KeyFileError, SettingsError
from gate.package.keys import MAX_TRUST_BYTES, PublicKey, usable_public_key
from gate.package.seal_records import KeyStatus, TrustedKey, TrustedKeys
from gate.package.signing import printable

PUBLIC_HINT: Final = "A public key begins with `-----BEGIN PUBLIC KEY-----`."
NEW_KEY_HINT: Final = "This cannot be undone; make a new key with `repro-gate keys generate`."
LIST_HINT: Final = "See the ids with `repro-gate keys list`; give more of one."
MAX_NAMED = 5
_BEGINNING = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")


def read_public_key(pem: bytes, source: str) -> PublicKey:
    """Return the one public key in a PEM file: ECDSA on P-256 or Ed25519.

    Raises `KeyFileError` for anything else. No message repeats the file's content.
    """
    kinds = _BEGINNING.findall(pem)
    # Asked first, so that giving the wrong file of a key pair gets a clear message.
    if any(b"PRIVATE KEY" in kind for kind in kinds):
        raise KeyFileError(
            f"{source} holds a private key, which has no place in a trust file",
            hint="Give its public half: `openssl pkey -in KEY -pubout -out PUBLIC.pem`.",
        )
    # The PEM reader would silently ignore a second key.
    if len(kinds) > 1:
        raise KeyFileError(
            f"{source} holds {len(kinds)} PEM blocks", hint="Give a file with one public key."
        )
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{source} is not a public key in PEM", hint=PUBLIC_HINT) from error
    try:
        return usable_public_key(key, f"the key in {source}")
    except AttestationError as error:
        raise KeyFileError(error.message, hint=error.hint) from error


def find_key(document: TrustedKeys, prefix: str, source: str) -> TrustedKey:
    """Return the one key whose id begins with `prefix`, in either case.

    Raises `SettingsError` if no key or several keys do.
    """
    if not prefix:
        raise SettingsError("the id of the key is empty", hint=LIST_HINT)
    keys = [key for key in document.keys if key.key_id.startswith(prefix.lower())]
    if len(keys) == 1:
        return keys[0]
    count = f"{len(keys)} keys" if keys else "no key"
    raise SettingsError(
        f"{count} of {source} begin{'' if keys else 's'} with {printable(prefix)!r}",
        hint=LIST_HINT if keys else "See the ids with `repro-gate keys list`.",
        details=tuple(key.key_id for key in keys[:MAX_NAMED]),
    )


def with_key_retired(document: TrustedKeys, key: TrustedKey, *, at: str) -> TrustedKeys:
    """Return the document with an active key retired at a time (ISO 8601 with an offset).

    Raises `SettingsError` for a key that is retired or revoked: a later date would let seals
    count that do not count now.
    """
    if key.status is not KeyStatus.ACTIVE:
        raise _is_already(key)
    return _replaced(document, key, {"status": KeyStatus.RETIRED, "retired_at": at})


def with_key_revoked(
    document: TrustedKeys, key: TrustedKey, *, at: str, reason: str = ""
) -> TrustedKeys:
    """Return the document with a key revoked, so that none of its seals counts any more.

    `at` is the time from which the key may have been in other hands (ISO 8601 with an offset).
    Raises `SettingsError` for a key that is revoked already.
    """
    if key.status is KeyStatus.REVOKED:
        raise _is_already(key)
    changes = {"status": KeyStatus.REVOKED, "revoked_at": at, "reason": reason}
    return _replaced(document, key, changes)


def write_trusted_keys(document: TrustedKeys) -> bytes:
    """Return the trust file as JSON, sorted by key id, with each fact on a separate line.

    Raises `SettingsError` for a file that would be too large to be read.
    """
    # Other documents have a whole key on one line. Here a reviewer has to see each changed fact.
    text = json.dumps(
        document.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False
    )
    data = f"{text}\n".encode()
    if len(data) > MAX_TRUST_BYTES:
        raise SettingsError(
            f"the trust file would have more than {MAX_TRUST_BYTES:,} bytes",
            hint="Begin a new file for new keys; keep this one with what it verifies.",
        )
    return data


def _replaced(document: TrustedKeys, key: TrustedKey, changes: Mapping[str, str]) -> TrustedKeys:
    # Validate again: pydantic's `model_copy` would not check the dates.
    changed = TrustedKey.model_validate({**key.model_dump(), **changes})
    others = [other for other in document.keys if other.key_id != key.key_id]
    return TrustedKeys(keys=tuple(sorted((*others, changed), key=lambda trusted: trusted.key_id)))


def _is_already(key: TrustedKey) -> SettingsError:
    since = key.revoked_at if key.status is KeyStatus.REVOKED else key.retired_at
    return SettingsError(
        f"key {key.key_id[:16]} is already {key.status}, since {since}",
        hint=NEW_KEY_HINT,
    )
