"""A signer in a PKCS#11 token, and the conversion of public keys to DER.

The token's library comes from its vendor and runs in a separate process, `token_program.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

import gate
from gate.errors import AttestationError, SettingsError, StorageError
from gate.package.keys import OCTET_STRING, DerReader, object_identifier
from gate.settings.signer_places import TokenPlace
from gate.system.files.port import Files
from gate.system.programs import SECONDS, Program, nobody_elses
from gate.text.untrusted_text import safe_line

_FORM = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def der_of(data: bytes, source: str) -> bytes:
    """Return the DER SubjectPublicKeyInfo of a key in PEM or DER.

    `source` names the key in the `AttestationError` that is raised for anything else.
    """
    try:
        pem = data.lstrip().startswith(b"-----BEGIN")
        key = load_pem_public_key(data) if pem else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AttestationError(
            f"{source} gave no public key",
            hint="Print it as PEM (-----BEGIN PUBLIC KEY-----) or DER.",
        ) from error
    return key.public_bytes(*_FORM)


def der_of_ed25519(data: bytes, source: str) -> bytes:
    """Return the DER SubjectPublicKeyInfo of an Ed25519 key of 32 bytes, like `der_of`."""
    try:
        return Ed25519PublicKey.from_public_bytes(data).public_bytes(*_FORM)
    except ValueError as error:
        raise AttestationError(
            f"{source} gave no Ed25519 key of 32 bytes", hint="Check which key is meant."
        ) from error


def der_of_point(data: bytes, source: str) -> bytes:
    """Return the DER SubjectPublicKeyInfo of an X9.62-encoded point on P-256, like `der_of`."""
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), data)
    except ValueError as error:
        raise AttestationError(
            f"{source} gave no point on P-256", hint="Check which key is meant."
        ) from error
    return key.public_bytes(*_FORM)


PIN_VARIABLE: Final = "REPRO_GATE_PKCS11_PIN"
MAX_PIN_BYTES: Final = 1024
# For `python -I -S`: isolated and without .pth files, so that nothing of the caller's folder or
# environment is imported. The folders to import from are given as arguments.
PROGRAM: Final = (
    "import sys; sys.path += sys.argv[1:]; from gate.package.token_program import main; main()"
)
PIN_HINT: Final = f"Set {PIN_VARIABLE}, or name a file with the PIN by pin-source=/FILE."
WRONG_PIN_HINT: Final = (
    f"Check {PIN_VARIABLE}, or the file at pin-source; a token locks itself after a few wrong PINs."
)
LIST_HINT: Final = "See what it holds with `pkcs11-tool --module MODULE --login --list-objects`."
P256: Final = object_identifier("1.2.840.10045.3.1.7")
# The curve by its number (RFC 8410), or by its name, which some tokens use.
ED25519: Final = (object_identifier("1.3.101.112"), b"\x13\x0cedwards25519")


_Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=2000)]


class _Answer(BaseModel):
    point: _Hex = ""
    parameters: _Hex = ""
    signature: _Hex = ""
    fault: str = ""


_ANSWER = TypeAdapter(_Answer)


class TokenSigner:
    """A `Signer` in a token; each request opens the token again, in a separate process."""

    def __init__(
        self,
        place: TokenPlace,
        files: Files,
        variables: Mapping[str, str],
        *,
        seconds: float = SECONDS,
    ) -> None:
        check_token_place(place, files, variables)
        self._place = place
        self._pin = _pin(place, files, variables)
        root = str(Path(gate.__file__).resolve().parents[1])
        # Absolute folders only: a relative one would be inside the commit under test.
        folders = dict.fromkeys((root, *filter(os.path.isabs, sys.path)))
        self._program = Program(
            name=f"the token's library {safe_line(place.module.name)}",
            argv=(sys.executable, "-I", "-S", "-B", "-c", PROGRAM, *folders),
            variables=variables,
            seconds=seconds,
        )
        self._public = b""

    def public_key(self) -> bytes:
        """Return DER SubjectPublicKeyInfo of the public key beside the private one in the token."""
        if not self._public:
            self._public = _public(self._ask({}))
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Return the token's signature; ECDSA's r and s, which tokens concatenate, become DER."""
        # Both, because only the token knows its kind of key: ECDSA signs the digest, Ed25519 the
        # message.
        digest = hashlib.sha256(message).hexdigest()
        answer = self._ask({"message": message.hex(), "digest": digest})
        signature = bytes.fromhex(answer.signature)
        if bytes.fromhex(answer.parameters) in ED25519:
            return signature
        half = len(signature) // 2
        r, s = signature[:half], signature[half:]
        return encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))

    def _ask(self, more: Mapping[str, str]) -> _Answer:
        place = self._place
        question = {
            "module": str(place.module),
            "token": place.token,
            "serial": place.serial,
            "key_label": place.key_label,
            "key_id": place.key_id.hex(),
            "pin": self._pin,
            **more,
        }
        try:
            answer = _ANSWER.validate_json(self._program.ask(json.dumps(question).encode("utf-8")))
        except ValidationError as error:
            raise AttestationError(
                "the token's library gave an unknown answer",
                hint=f"Check that {safe_line(str(place.module))} is a PKCS#11 library.",
            ) from error
        if answer.fault:
            raise AttestationError(
                f"the token cannot be used: {safe_line(answer.fault)}",
                hint=WRONG_PIN_HINT if "PIN" in answer.fault else LIST_HINT,
            )
        return answer


def _public(answer: _Answer) -> bytes:
    """Return the token's point and parameters as DER SubjectPublicKeyInfo."""
    try:
        point = DerReader(bytes.fromhex(answer.point))
        content = point.take(OCTET_STRING)
        point.end()
    except ValueError:
        # PKCS#11 wraps the point in an OCTET STRING, but some tokens return it bare.
        content = bytes.fromhex(answer.point)
    parameters = bytes.fromhex(answer.parameters)
    if parameters in ED25519:
        return der_of_ed25519(content, "the token")
    if parameters != P256:
        raise AttestationError(
            "the token's key is neither an ECDSA key on P-256 nor an Ed25519 key",
            hint="Make one in the token, such as `pkcs11-tool --keypairgen --key-type "
            "EC:prime256v1`.",
        )
    return der_of_point(content, "the token")


def check_token_place(place: TokenPlace, files: Files, variables: Mapping[str, str]) -> None:
    """Raise `SettingsError` if package, library or PIN is missing; nothing secret is read."""
    if find_spec("pkcs11") is None:
        raise SettingsError(
            "pkcs11: needs the package python-pkcs11",
            hint="Install it next to the gate: `pip install 'python-pkcs11>=0.9'`.",
        )
    if not files.exists(place.module):
        raise SettingsError(
            f"pkcs11: there is no library {safe_line(str(place.module))}",
            hint="Set module-path to the library file of the token's vendor.",
        )
    if not nobody_elses(place.module):
        raise SettingsError(
            f"pkcs11: others can change the library {safe_line(str(place.module))}",
            hint="Make root or this account its owner, and remove write permission for others.",
        )
    if place.pin_source is None and not variables.get(PIN_VARIABLE):
        raise SettingsError("pkcs11: there is no PIN", hint=PIN_HINT)
    if place.pin_source is not None and not files.exists(place.pin_source):
        raise SettingsError("pkcs11: there is no file at pin-source", hint=PIN_HINT)


def _pin(place: TokenPlace, files: Files, variables: Mapping[str, str]) -> str:
    if place.pin_source is None:
        return variables[PIN_VARIABLE]
    try:
        content = files.read_bytes(place.pin_source, max_bytes=MAX_PIN_BYTES)
        # an editor's line end is not part of the PIN
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except (StorageError, UnicodeDecodeError) as error:
        raise AttestationError("the PIN cannot be read", hint=PIN_HINT) from error
