"""Where a signing key is, as a user names it: a path, or `pkcs11:`, `vault:`, `exec:`."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from gate.errors import SettingsError
from gate.text.untrusted_text import masked


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePlace:
    """A file with a private key in PEM format."""

    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandPlace:
    """A program with its first arguments, which returns the public key and makes signatures."""

    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VaultPlace:
    """A key of a Vault transit engine; without a version, its latest one."""

    mount: str
    key: str
    version: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPlace:
    """A key in a PKCS#11 token, by RFC 7512; an empty field does not narrow the search.

    `module` is the library of the token's manufacturer. `pin_source` is a file with the PIN.
    """

    module: Path
    token: str
    serial: str
    key_label: str
    key_id: bytes
    pin_source: Path | None


SignerPlace = FilePlace | CommandPlace | VaultPlace | TokenPlace


MAX_PLACE_CHARACTERS: Final = 4096
KINDS_HINT: Final = (
    "Give the path of a key in PEM, pkcs11:…, vault:MOUNT/KEY or exec:COMMAND; any other key "
    "service is reached by exec:."
)
VAULT_HINT: Final = (
    "Write vault:MOUNT/KEY or vault:MOUNT/KEY#VERSION, such as vault:transit/gate#1."
)
PKCS11_HINT: Final = (
    "Write pkcs11:token=NAME;object=KEY?module-path=/usr/lib/MODULE.so&pin-source=/FILE (RFC 7512)."
)
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{1,30}):")
_VAULT: Final = re.compile(
    r"(?P<mount>[\w.~-]+(?:/[\w.~-]+)*)/(?P<key>[\w.-]+)(?:#(?P<version>[1-9][0-9]{0,8}))?\Z",
    re.ASCII,
)
_TOKEN_PATH: Final = frozenset({"token", "serial", "object", "id", "type"})
_TOKEN_QUERY: Final = frozenset({"module-path", "pin-source"})


def read_signer_place(text: str) -> SignerPlace:
    """Return the place that the text names; raise `SettingsError`, which never repeats a secret."""
    # a private key that was pasted here by mistake must not end up in a log
    if "-----BEGIN" in text:
        raise SettingsError(
            "the signer is named by its place, not by the key itself",
            hint="Write the key to a file and name that; in a job give it as input signing_key.",
        )
    if not text:
        raise SettingsError("the signer is named by an empty text", hint=KINDS_HINT)
    if not text.isprintable() or len(text) > MAX_PLACE_CHARACTERS:
        raise SettingsError(
            f"the signer is not one line of at most {MAX_PLACE_CHARACTERS:,} characters",
            hint=KINDS_HINT,
        )
    match = _SCHEME.match(text)
    if match is None:
        return FilePlace(path=Path(text))
    scheme, rest = match[1], text[match.end() :]
    if scheme == "exec":
        return _command(rest)
    if scheme == "vault":
        return _vault(rest)
    if scheme == "pkcs11":
        return _token(rest)
    raise SettingsError(f"{scheme}: is not a kind of signer", hint=KINDS_HINT)


def _command(rest: str) -> CommandPlace:
    try:
        argv = tuple(shlex.split(rest))
    except ValueError as error:
        raise SettingsError(
            "exec: a quotation mark of the command is not closed", hint="Close it."
        ) from error
    if not argv or not argv[0]:
        raise SettingsError("exec: names no command", hint="Write exec:COMMAND, such as exec:sign.")
    # a relative path could lead into the work tree, whose programs a pull request writes
    if "/" in argv[0] and not argv[0].startswith("/"):
        raise SettingsError(
            f"exec: {masked(argv[0])} is a relative path",
            hint="Give the full path of the program, or the name of one on the PATH.",
        )
    return CommandPlace(argv=argv)


def _vault(rest: str) -> VaultPlace:
    match = _VAULT.match(rest)
    if match is None or {".", ".."} & {*match["mount"].split("/"), match["key"]}:
        raise SettingsError(f"vault:{masked(rest)} does not name a key", hint=VAULT_HINT)
    version = int(match["version"]) if match["version"] else None
    return VaultPlace(mount=match["mount"], key=match["key"], version=version)


def _token(rest: str) -> TokenPlace:
    path_text, _, query_text = rest.partition("?")
    path = _attributes(path_text, ";", _TOKEN_PATH)
    query = _attributes(query_text, "&", _TOKEN_QUERY)
    if path.get("type", b"private") != b"private":
        raise SettingsError("pkcs11: type is not private", hint="Leave type out.")
    if not path.get("object") and not path.get("id"):
        raise SettingsError("pkcs11: names no key: object and id are missing", hint=PKCS11_HINT)
    source = query.get("pin-source")
    return TokenPlace(
        module=_full_path("module-path", query.get("module-path", b"")),
        token=_text("token", path),
        serial=_text("serial", path),
        key_label=_text("object", path),
        key_id=path.get("id", b""),
        # RFC 7512, 2.4: the prefix `file:` is optional, and may have one slash or three
        pin_source=None if source is None else _full_path("pin-source", _without_file(source)),
    )


def _attributes(text: str, separator: str, known: frozenset[str]) -> dict[str, bytes]:
    attributes: dict[str, bytes] = {}
    for part in text.split(separator) if text else ():
        name, equals, value = part.partition("=")
        if name == "pin-value":
            raise SettingsError(
                "pkcs11: pin-value would show the PIN to every process of this machine",
                hint="Use pin-source=/FILE, or the variable REPRO_GATE_PKCS11_PIN.",
            )
        # refuse it: an ignored attribute may be the one that distinguishes two keys
        if name not in known or not equals:
            shown = masked(name)[:40]
            raise SettingsError(f"pkcs11: {shown!r} is not known here", hint=PKCS11_HINT)
        if name in attributes:
            raise SettingsError(f"pkcs11: {name} is given twice", hint="Give it once.")
        # RFC 7512 percent-encodes values, and an id is arbitrary bytes
        attributes[name] = unquote_to_bytes(value)
    return attributes


def _text(name: str, attributes: dict[str, bytes]) -> str:
    try:
        return attributes.get(name, b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"pkcs11: {name} is not UTF-8", hint=PKCS11_HINT) from error


def _full_path(name: str, value: bytes) -> Path:
    # a relative path would be looked up in the work tree, and a NUL would cut it short
    if not value.startswith(b"/") or b"\0" in value:
        raise SettingsError(f"pkcs11: {name} is not the full path of a file", hint=PKCS11_HINT)
    return Path(_text(name, {name: value}))


def _without_file(source: bytes) -> bytes:
    return source.removeprefix(b"file://" if source.startswith(b"file:///") else b"file:")
