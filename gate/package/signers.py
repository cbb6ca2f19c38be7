"""Signers behind a program or in a Vault, and the checks of a signer's place before the training.

A program is called in two ways. `COMMAND public-key` prints the public key, PEM or DER. `COMMAND
sign` reads the message from standard input and prints the signature: DER for ECDSA, 64 bytes for
Ed25519. It may print either in base64, as the programs of key services do.

Vault: "Transit secrets engine (API)", version 1, `keys/:name` and `sign/:name`. The private key
never leaves the vault.

Security rule T1 splits the work: before the training, the checks here read nothing secret. Tokens,
PINs and keys are read by the signers' constructors, after the last training process is gone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, TypeAdapter

from gate.errors import AttestationError, SealServiceError, SettingsError, StorageError
from gate.package.keys import ENCRYPT_HINT, object_identifier, other_kind
from gate.package.pkcs11 import P256, TokenSigner, check_token_place, der_of, der_of_ed25519
from gate.package.signing import Signer
from gate.package.sigstore_services import LOOPBACK, Service, ServiceAnswer
from gate.settings.signer_places import CommandPlace, FilePlace, SignerPlace, TokenPlace, VaultPlace
from gate.system.files.port import Files
from gate.system.http import GITHUB_POLICY, RetryPolicy
from gate.system.programs import SECONDS, Program, find_program
from gate.text.untrusted_text import safe_line

_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class CommandSigner:
    """A `Signer` that calls a program, once for the public key and once for each signature."""

    def __init__(
        self, place: CommandPlace, variables: Mapping[str, str], *, seconds: float = SECONDS
    ) -> None:
        program = checked_program(place, variables)
        self._program = Program(
            name=_name(place),
            argv=(program, *place.argv[1:]),
            variables=variables,
            seconds=seconds,
        )
        self._public = b""

    def public_key(self) -> bytes:
        """Return DER SubjectPublicKeyInfo; the program is asked once and its answer is kept."""
        if not self._public:
            answer = _bytes(self._program.ask(b"", "public-key"))
            self._public = der_of(answer, f"{self._program.name} public-key")
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Return the program's signature over the message.

        Raises `AttestationError` if it prints nothing.
        """
        signature = _bytes(self._program.ask(message, "sign"))
        if not signature:
            raise AttestationError(
                f"{self._program.name} sign printed nothing",
                hint="It has to print the signature: its bytes, or base64 of them.",
            )
        return signature


def checked_program(place: CommandPlace, variables: Mapping[str, str]) -> str:
    """Return the program's full path.

    Raises `SettingsError` if there is no such program, or if others could replace it.
    """
    program = find_program(place.argv[0], variables)
    if not program:
        raise SettingsError(
            f"{_name(place)}: no such program",
            hint="Give the full path of an executable file, or the name of one on the PATH; it "
            "counts if it belongs to root or to this account, and others cannot write to it.",
        )
    return program


def _bytes(answer: bytes) -> bytes:
    """Return the answer, decoded if it is base64.

    This cannot mistake raw bytes: DER never looks like base64, and 64 random bytes practically
    never do.
    """
    text = b"".join(answer.split())
    return base64.b64decode(text) if text and _BASE64.fullmatch(text) else answer


def _name(place: CommandPlace) -> str:
    return f"exec:{safe_line(place.argv[0])}"


ADDRESS_VARIABLE: Final = "VAULT_ADDR"
TOKEN_VARIABLE: Final = "VAULT_TOKEN"  # noqa: S105 - the name, not the secret
TOKEN_FILE_VARIABLE: Final = "VAULT_TOKEN_FILE"  # noqa: S105 - as above
NAMESPACE_VARIABLE: Final = "VAULT_NAMESPACE"
AUTHORITY_VARIABLE: Final = "VAULT_CACERT"
# `vault login` writes its token to this file in the home folder.
LOGIN_FILE: Final = ".vault-token"
MAX_TOKEN_BYTES: Final = 16 * 1024
OK: Final = 200
MAX_WORDS: Final = 3
ECDSA: Final = "ecdsa-p256"
PLAIN_LABEL: Final = "-----BEGIN PRIVATE KEY-----"
SEC1_LABEL: Final = "-----BEGIN EC PRIVATE KEY-----"
PARAMETERS_LABEL: Final = "-----BEGIN EC PARAMETERS-----"
OTHER_LABELS: Final = tuple(f"-----BEGIN {kind} PRIVATE KEY-----" for kind in ("RSA", "DSA"))
# the first header field of RFC 1421's encrypted PEM, as much of it as is needed
OLD_ENCRYPTION: Final = "Proc-Typ"
MAX_LABEL: Final = 80
# Numbers of base64 characters to read: to the length field of a SEC1 key, to the name of Ed25519,
# and to the name of a curve. All of them end before the secret begins.
SEC1_HEAD: Final = 8
ED25519_HEAD: Final = 16
EC_HEAD: Final = 20
EC_ID: Final = object_identifier("1.2.840.10045.2.1")
# The object identifiers of X25519, X448, Ed25519 and Ed448 differ from each other only in the last
# byte.
EDWARDS: Final = object_identifier("1.3.101.112")[:-1]
# RSA, RSA-PSS, X25519, X448, Ed448
OTHER_IDS: Final = tuple(
    map(
        object_identifier,
        (
            "1.2.840.113549.1.1.1",
            "1.2.840.113549.1.1.10",
            "1.3.101.110",
            "1.3.101.111",
            "1.3.101.113",
        ),
    )
)
ED25519: Final = "ed25519"
ADDRESS_HINT: Final = f"Set {ADDRESS_VARIABLE}, such as https://vault.example.org:8200."
ANSWER_HINT: Final = f"Check {ADDRESS_VARIABLE}, and the proxy in between."
TOKEN_HINT: Final = (
    f"Set {TOKEN_VARIABLE}, or {TOKEN_FILE_VARIABLE} to the file that holds the token."
)


class _KeyData(BaseModel):
    type: str = Field(max_length=100)
    latest_version: int = Field(ge=1)
    derived: bool = False
    keys: dict[str, Any] = Field(max_length=10_000)


class _KeyAnswer(BaseModel):
    data: _KeyData


class _Signed(BaseModel):
    signature: str = Field(max_length=1000)


class _SignAnswer(BaseModel):
    data: _Signed


_KEY_ANSWER = TypeAdapter(_KeyAnswer)
_SIGN_ANSWER = TypeAdapter(_SignAnswer)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pinned:
    """The key version that signs: its number, type and public half in DER."""

    version: int
    kind: str
    public: bytes = field(repr=False)


class VaultSigner:
    """A `Signer` whose key is in a Vault.

    The version whose public key was read first is also the one that signs, even if the key is
    rotated in between.
    """

    def __init__(
        self,
        place: VaultPlace,
        files: Files,
        variables: Mapping[str, str],
        policy: RetryPolicy = GITHUB_POLICY,
    ) -> None:
        self._place = place
        self._address = checked_address(variables)
        self._token = _token(files, variables)
        self._variables = variables
        self._policy = policy
        self._pinned: _Pinned | None = None

    def public_key(self) -> bytes:
        """Return DER SubjectPublicKeyInfo of the version that the place names, or the latest."""
        return self._key().public

    def sign(self, message: bytes) -> bytes:
        """Return the signature that the vault makes over the message."""
        key = self._key()
        body: dict[str, object] = {"key_version": key.version}
        if key.kind == ECDSA:
            # Only the digest is sent, because a statement may be larger than a request to a vault.
            # Ed25519 signs the message itself (RFC 8032), so the branch below has to send all of
            # it.
            digest = hashlib.sha256(message).digest()
            body |= {"input": _encoded(digest), "prehashed": True, "hash_algorithm": "sha2-256"}
            body |= {"marshaling_algorithm": "asn1"}
        else:
            body |= {"input": _encoded(message)}
        answer = self._ask("POST", f"sign/{self._place.key}", body)
        return _signature(answer.read_as(_SIGN_ANSWER, ANSWER_HINT).data.signature, key.version)

    def _key(self) -> _Pinned:
        if self._pinned is None:
            answer = self._ask("GET", f"keys/{self._place.key}")
            self._pinned = self._read(answer.read_as(_KEY_ANSWER, ANSWER_HINT).data)
        return self._pinned

    def _read(self, data: _KeyData) -> _Pinned:
        if data.type not in {ECDSA, ED25519} or data.derived:
            kind = f"derived {data.type}" if data.derived else data.type
            raise AttestationError(
                f"{self._shown} is of type {safe_line(kind)}",
                hint=f"Make a key of type {ECDSA} or {ED25519} that is not derived.",
            )
        version = self._place.version or data.latest_version
        entry = data.keys.get(str(version))
        text = entry.get("public_key") if isinstance(entry, dict) else None
        if not isinstance(text, str):
            raise AttestationError(
                f"{self._shown} has no version {version}",
                hint=f"Its latest version is {data.latest_version}; name that one, or none.",
            )
        source = f"{self._shown}, version {version},"
        if data.type == ECDSA or text.startswith("-----BEGIN"):
            public = der_of(text.encode("utf-8"), source)
        else:
            public = der_of_ed25519(_decoded(text, source), source)
        return _Pinned(version=version, kind=data.type, public=public)

    def _ask(self, method: str, path: str, body: object = None) -> ServiceAnswer:
        headers = {"X-Vault-Request": "true"}
        if self._variables.get(NAMESPACE_VARIABLE):
            headers["X-Vault-Namespace"] = self._variables[NAMESPACE_VARIABLE]
        with Service(
            "Vault",
            self._address,
            self._policy,
            secret=self._token,
            headers=headers,
            authority=self._variables.get(AUTHORITY_VARIABLE, ""),
        ) as service:
            answer = service.ask(method, f"{self._address}/v1/{self._place.mount}/{path}", body)
            if answer.status != OK:
                fault = service.refused(answer, self._hint(answer.status))
                words = _words(answer.content, self._token)
                raise SealServiceError(fault.message, hint=fault.hint, details=words)
        return answer

    def _hint(self, status: int) -> str:
        place = self._place
        # A standby node redirects to the active one. Following it would send the token to an
        # address that the settings do not name.
        if 300 <= status < 400:  # noqa: PLR2004 - the redirects
            return f"Redirects are not followed; set {ADDRESS_VARIABLE} to the active node."
        if status == 404:  # noqa: PLR2004 - not found
            return "Check mount and key, and VAULT_NAMESPACE."
        return (
            f"The token's policy needs read on {place.mount}/keys/{place.key} and update on "
            f"{place.mount}/sign/{place.key}."
        )

    @property
    def _shown(self) -> str:
        return f"vault:{self._place.mount}/{self._place.key}"


def checked_address(variables: Mapping[str, str]) -> str:
    """Return the vault's address without a final slash.

    Raises `SettingsError` if it is missing, not an address, or would send the token unencrypted.
    """
    address = variables.get(ADDRESS_VARIABLE, "").strip().rstrip("/")
    if not address:
        raise SettingsError(f"vault: {ADDRESS_VARIABLE} is not set", hint=ADDRESS_HINT)
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    # A user name or password in the address would show up in messages.
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise SettingsError(f"vault: {ADDRESS_VARIABLE} is not an address", hint=ADDRESS_HINT)
    if parts.scheme != "https" and (parts.scheme != "http" or host not in LOOPBACK):
        raise SettingsError(
            f"vault: {ADDRESS_VARIABLE} does not begin with https://",
            hint="Anyone on the network path could read the token.",
        )
    return address


def check_files(files: Files, variables: Mapping[str, str]) -> None:
    """Raise `SettingsError` if there is no token, or no file of certificates; neither is read."""
    authority = variables.get(AUTHORITY_VARIABLE, "")
    if authority and not files.exists(Path(authority)):
        raise SettingsError(
            f"vault: there is no file at {AUTHORITY_VARIABLE}", hint="Correct the path."
        )
    _check_token(files, variables)


def _check_token(files: Files, variables: Mapping[str, str]) -> None:
    path = token_file(variables)
    if not variables.get(TOKEN_VARIABLE, "").strip() and (path is None or not files.exists(path)):
        raise SettingsError("vault: there is no token", hint=TOKEN_HINT)


def _token(files: Files, variables: Mapping[str, str]) -> str:
    _check_token(files, variables)
    token = variables.get(TOKEN_VARIABLE, "").strip()
    path = token_file(variables)
    if not token and path is not None:
        try:
            token = files.read_bytes(path, max_bytes=MAX_TOKEN_BYTES).decode("ascii").strip()
        except (StorageError, UnicodeDecodeError) as error:
            raise AttestationError("the vault's token cannot be read", hint=TOKEN_HINT) from error
    # The token becomes an HTTP header, where a line end would begin another header.
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise AttestationError("the vault's token is not one word", hint=TOKEN_HINT)
    return token


def token_file(variables: Mapping[str, str]) -> Path | None:
    """Return the file with the token in case `VAULT_TOKEN` is empty, or None if none is known."""
    if named := variables.get(TOKEN_FILE_VARIABLE):
        return Path(named)
    home = variables.get("HOME")
    return Path(home) / LOGIN_FILE if home else None


def _signature(text: str, version: int) -> bytes:
    """Return the signature's bytes from `vault:v1:BASE64`.

    Raises `AttestationError` if a different version of the key made it.
    """
    vault, _, rest = text.partition(":")
    made_by, _, encoded = rest.partition(":")
    if (vault, made_by) != ("vault", f"v{version}"):
        raise AttestationError(
            f"Vault signed with another version than {version}: {safe_line(text)[:20]!r}",
            hint="Run the gate again; check who rotates this key.",
        )
    return _decoded(encoded, "Vault's signature")


def _decoded(text: str, source: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AttestationError(f"{source} is not base64", hint=ANSWER_HINT) from error


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _words(content: bytes, token: str) -> tuple[str, ...]:
    """Return the error lines of the vault's answer, with the token masked in case it repeats it."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return ()
    errors = answer.get("errors") if isinstance(answer, dict) else None
    lines = [text for text in errors if isinstance(text, str)] if isinstance(errors, list) else []
    return tuple(safe_line(line.replace(token, "***")) for line in lines[:MAX_WORDS])


def open_signer(
    place: CommandPlace | TokenPlace | VaultPlace, files: Files, variables: Mapping[str, str]
) -> Signer:
    """Return the signer at a place that is not a file; reads its token or PIN."""
    if isinstance(place, CommandPlace):
        return CommandSigner(place, variables)
    if isinstance(place, VaultPlace):
        return VaultSigner(place, files, variables)
    return TokenSigner(place, files, variables)


def check_place(place: SignerPlace, files: Files, variables: Mapping[str, str]) -> None:
    """Raise `SettingsError` if the place cannot sign, as far as that shows without its secrets."""
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
    # Only the file system is asked: the key's content must not be read before the training ends.
    elif not place.path.is_file() or not os.access(place.path, os.R_OK):
        raise SettingsError(
            f"the signing key {safe_line(str(place.path))} is not a readable file",
            hint="Name the PEM file, and let this account read it.",
        )


def key_head(file: BinaryIO) -> str:
    """Return the first line of a PEM key, and the characters after it that show the key's kind.

    Nothing of the secret is read, because training processes may still run. The secret comes after
    these characters, and is read when the last process is gone (T1).
    """
    label = ""
    # byte by byte: reading a whole line or block would take the secret into memory
    while len(label) < MAX_LABEL and not label.endswith("\n"):
        sign = file.read(1).decode("ascii", "replace")
        if not sign:
            break
        label += sign
    if label.startswith(SEC1_LABEL):
        return label + _characters(file, SEC1_HEAD)
    if not label.startswith(PLAIN_LABEL):
        return label
    head = _characters(file, ED25519_HEAD)
    # For Ed25519 the secret begins right after these characters. Every other kind has a longer name
    # before its secret, so reading on is safe.
    return label + head + ("" if EDWARDS in _decoded_head(head) else _characters(file, EC_HEAD))


def _characters(file: BinaryIO, count: int) -> str:
    return file.read(count).decode("ascii", "replace")


def _decoded_head(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def refuse_head(head: str, shown: str, *, allow_plain: bool) -> None:
    """Raise `SettingsError` if the beginning of a PEM file shows that the key cannot sign.

    Otherwise that would only come out after the whole training. `shown` names the key in messages.
    """
    label, _, body = head.partition("\n")
    for kind, words in (("PUBLIC KEY", "a public key"), ("CERTIFICATE", "a certificate")):
        if kind in label:
            raise SettingsError(
                f"{shown} is {words}, which signs nothing",
                hint="Name the private key: `repro-gate keys generate` calls it signing-key.pem.",
            )
    if _is_other_kind(label, body):
        fault = other_kind(shown)
        raise SettingsError(fault.message, hint=fault.hint)
    if body.startswith(OLD_ENCRYPTION):
        raise SettingsError(
            f"{shown} is encrypted in openssl's old way, which is weak", hint=ENCRYPT_HINT
        )
    if label.startswith((PLAIN_LABEL, SEC1_LABEL, PARAMETERS_LABEL)) and not allow_plain:
        raise SettingsError(
            f"{shown} is not encrypted",
            hint="Encrypt it (`openssl pkcs8 -topk8 -scrypt`), or allow a plain key explicitly.",
        )


def _is_other_kind(label: str, body: str) -> bool:
    """Return whether the beginning shows an unsupported kind of key; unknown text gives False."""
    if label.startswith(OTHER_LABELS):
        return True
    head = _decoded_head(body)
    if label.startswith(SEC1_LABEL):
        # SEC1 names the curve only after the secret. But a P-256 key is shorter than 128 bytes, so
        # a length in long form (0x81) means another curve.
        return head[1:2] == b"\x81"
    curve = head.partition(EC_ID)[2]
    return any(kind in head for kind in OTHER_IDS) or (
        curve[:1] == P256[:1] and not P256.startswith(curve[: len(P256)])
    )


def secret_files(place: SignerPlace, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files that contain a place's key, PIN or token, whether they exist or not."""
    path: Path | None = None
    if isinstance(place, FilePlace):
        path = place.path
    elif isinstance(place, TokenPlace):
        path = place.pin_source
    elif isinstance(place, VaultPlace):
        path = token_file(variables)
    return () if path is None else (path.absolute(),)


def refuse_programs_below(
    folder: Path, place: SignerPlace | None, variables: Mapping[str, str]
) -> None:
    """Raise `SettingsError` for a program or library in a work tree that a pull request fills.

    It would run under the gate's account, next to the token that signs.
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
                f"{safe_line(path)} is in the checkout, which the pull request controls",
                hint="Keep what signs outside of it: in the image, or on the runner.",
            )
