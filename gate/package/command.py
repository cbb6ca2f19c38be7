"""A signer behind a program: `exec:COMMAND`, for any key service that has a command line.

`COMMAND public-key` prints the public key, PEM or DER. `COMMAND sign` reads what is to be signed
from standard input and prints the signature: DER for ECDSA, 64 bytes for Ed25519. Both may be in
base64, as the programs of key services print them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from gate.errors import AttestationError, SettingsError
from gate.package.public_keys import der_of
from gate.settings.sealed_signer_places import CommandPlace
from gate.system.programs import SECONDS, Program, find_program
from gate.text.untrusted_text import safe_line

_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class CommandSigner:
    """`gate.ports.Signer` by two calls of a program."""

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
    found = find_program(place.argv[0], variables)
    if not found:
        raise SettingsError(
            f"{_name(place)}: no such program",
            hint="Give the full path of an executable file, or the name of one on the PATH; it "
            "counts if it belongs to root or to this account, and others cannot write to it.",
        )
    return found


def _bytes(answer: bytes) -> bytes:
    """The answer, decoded where it is base64: DER never looks like it, nor do 64 random bytes."""
    text = b"".join(answer.split())
    return base64.b64decode(text) if text and _BASE64.fullmatch(text) else answer


def _name(place: CommandPlace) -> str:
    return f"exec:{safe_line(place.argv[0])}"
