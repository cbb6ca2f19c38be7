"""Signers behind a program or a vault, and which one a place names.

`COMMAND public-key` prints the public key, PEM or DER. `COMMAND sign` reads what is to be signed
from standard input and prints the signature: DER for ECDSA, 64 bytes for Ed25519. Both may be in
base64, as the programs of key services print them.

"Transit secrets engine (API)", version 1: `keys/:name`, `sign/:name`. The private key never leaves
the vault; what it holds signs there.
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
    """`Signer` by two calls of a program."""

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
        """DER SubjectPublicKeyInfo, from the program, which is asked once."""
        if not self._public:
            answer = _bytes(self._program.ask(b"", "public-key"))
            self._public = der_of(answer, f"{self._program.name} public-key")
        return self._public

    def sign(self, message: bytes) -> bytes:
        """The program's signature over the message."""
        signature = _bytes(self._program.ask(message, "sign"))
        if not signature:
            raise AttestationError(
                f"{self._program.name} sign printed nothing",
                hint="It has to print the signature: its bytes, or base64 of them.",
            )
        return signature


def checked_program(place: CommandPlace, variables: Mapping[str, str]) -> str:
    """The program's full path; `SettingsError` where none is there that may be started."""
    program = find_program(place.argv[0], variables)
    if not program:
        raise SettingsError(
            f"{_name(place)}: no such program",
            hint="Give the full path of an executable file, or the name of one on the PATH; it "
            "counts if it belongs to root or to this account, and others cannot write to it.",
        )
    return program


def _bytes(answer: bytes) -> bytes:
    """The answer, decoded where it is base64: DER never looks like it, nor do 64 random bytes."""
    text = b"".join(answer.split())
    return base64.b64decode(text) if text and _BASE64.fullmatch(text) else answer


def _name(place: CommandPlace) -> str:
    return f"exec:{safe_line(place.argv[0])}"


ADDRESS_VARIABLE: Final = "VAULT_ADDR"
TOKEN_VARIABLE: Final = "VAULT_TOKEN"  # noqa: S105 - the name, not the secret
TOKEN_FILE_VARIABLE: Final = "VAULT_TOKEN_FILE"  # noqa: S105 - as above
NAMESPACE_VARIABLE: Final = "VAULT_NAMESPACE"
AUTHORITY_VARIABLE: Final = "VAULT_CACERT"
# Where `vault login` leaves its token, in the home folder.
LOGIN_FILE: Final = ".vault-token"
MAX_TOKEN_BYTES: Final = 16 * 1024
OK: Final = 200
MAX_WORDS: Final = 3
ECDSA: Final = "ecdsa-p256"
PLAIN_LABEL: Final = "-----BEGIN PRIVATE KEY-----"
SEC1_LABEL: Final = "-----BEGIN EC PRIVATE KEY-----"
PARAMETERS_LABEL: Final = "-----BEGIN EC PARAMETERS-----"
OTHER_LABELS: Final = tuple(f"-----BEGIN {kind} PRIVATE KEY-----" for kind in ("RSA", "DSA"))
# the header of RFC 1421, as far as it is read
OLD_ENCRYPTION: Final = "Proc-Typ"
MAX_LABEL: Final = 80
# characters of base64: up to the length of a SEC1 key; up to the name of Ed25519; up to a curve's
SEC1_HEAD: Final = 8
ED25519_HEAD: Final = 16
EC_HEAD: Final = 20
EC_ID: Final = object_identifier("1.2.840.10045.2.1")
# Ed25519 is one of these names, which differ in their last byte
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
    """One version of the key: what it is, and its public half in DER."""

    version: int
    kind: str
    public: bytes = field(repr=False)


class VaultSigner:
    """`Signer` in a vault; the version of the public key is the one that signs."""

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
        """DER SubjectPublicKeyInfo of the version that was asked for, or of the latest."""
        return self._key().public

    def sign(self, message: bytes) -> bytes:
        """The signature that the vault makes over the message."""
        key = self._key()
        body: dict[str, object] = {"key_version": key.version}
        if key.kind == ECDSA:
            # a statement may be larger than what a vault takes; Ed25519 has no such form here
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
        # a standby node: where it sends to would be given the token
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
    """The vault's address; `SettingsError` for none, and for one that would show the token."""
    address = variables.get(ADDRESS_VARIABLE, "").strip().rstrip("/")
    if not address:
        raise SettingsError(f"vault: {ADDRESS_VARIABLE} is not set", hint=ADDRESS_HINT)
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    # a name or password in it would be in messages
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise SettingsError(f"vault: {ADDRESS_VARIABLE} is not an address", hint=ADDRESS_HINT)
    if parts.scheme != "https" and (parts.scheme != "http" or host not in LOOPBACK):
        raise SettingsError(
            f"vault: {ADDRESS_VARIABLE} does not begin with https://",
            hint="Anyone on the network path could read the token.",
        )
    return address


def check_files(files: Files, variables: Mapping[str, str]) -> None:
    """`SettingsError` where there is no token, or no file of certificates; neither is read."""
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
    # it becomes a header, in which a line end would begin another one
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise AttestationError("the vault's token is not one word", hint=TOKEN_HINT)
    return token


def token_file(variables: Mapping[str, str]) -> Path | None:
    """Where the token lies if no variable holds it, or None."""
    if named := variables.get(TOKEN_FILE_VARIABLE):
        return Path(named)
    home = variables.get("HOME")
    return Path(home) / LOGIN_FILE if home else None


def _signature(text: str, version: int) -> bytes:
    """The bytes of `vault:v1:BASE64`, made by the version that was asked for."""
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
    """What the vault says of a refusal, without the token should it repeat it."""
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
    elif not place.path.is_file() or not os.access(place.path, os.R_OK):
        raise SettingsError(
            f"the signing key {safe_line(str(place.path))} is not a readable file",
            hint="Name the PEM file, and let this account read it.",
        )


def key_head(file: BinaryIO) -> str:
    """The first line of a key in PEM, and what tells its kind: nothing of the secret behind that.

    The rest is read when no process of a training lives any more.
    """
    label = ""
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
    # behind this much such a key begins its secret; what else there is has longer names
    return label + head + ("" if EDWARDS in _decoded_head(head) else _characters(file, EC_HEAD))


def _characters(file: BinaryIO, count: int) -> str:
    return file.read(count).decode("ascii", "replace")


def _decoded_head(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def refuse_head(head: str, shown: str, *, allow_plain: bool) -> None:
    """`SettingsError` where the beginning of a PEM file says that this can sign nothing.

    Else that would only show when everything has been trained.
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
    """Whether the beginning says so; where it says nothing that is known, it is no."""
    if label.startswith(OTHER_LABELS):
        return True
    head = _decoded_head(body)
    if label.startswith(SEC1_LABEL):
        # the name of the curve stands behind the secret, but no P-256 key has this length's form
        return head[1:2] == b"\x81"
    curve = head.partition(EC_ID)[2]
    return any(kind in head for kind in OTHER_IDS) or (
        curve[:1] == P256[:1] and not P256.startswith(curve[: len(P256)])
    )


def secret_files(place: SignerPlace, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """The files of a place that hold a key, a PIN or a token, whether they are there or not."""
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
                f"{safe_line(path)} is in the checkout, which the pull request controls",
                hint="Keep what signs outside of it: in the image, or on the runner.",
            )
