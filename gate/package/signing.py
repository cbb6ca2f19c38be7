"""Untrusted text in: strict JSON and strict base64; every fault is an `AttestationError`."""

from __future__ import annotations

import base64
import binascii
from typing import TypeVar

from gate.errors import AttestationError, DocumentError
from gate.text.documents import read_document
from gate.text.records_document import Document
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import masked

Record = TypeVar("Record", bound=Document)
MAX_SHOWN = 200


def printable(text: str) -> str:
    """Text from outside, cut and with every control character replaced, fit for a terminal."""
    shown = masked(text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"


def read_object(data: bytes, source: str, *, max_bytes: int, hint: str) -> dict[str, object]:
    """A JSON object whose keys are not yet known; `AttestationError` for anything else."""
    try:
        value = parse_json(data, source, max_bytes=max_bytes)
    except DocumentError as error:
        raise _refusal(error, hint) from error
    if not isinstance(value, dict):
        raise AttestationError(f"{source}: not a JSON object", hint=hint)
    return value


def read_record(
    model: type[Record], data: bytes, source: str, *, max_bytes: int, hint: str
) -> Record:
    """A document of ours or of Sigstore; `AttestationError` with one line for each fault."""
    try:
        return read_document(model, data, source, max_bytes=max_bytes)
    except DocumentError as error:
        raise _refusal(error, hint) from error


def _refusal(error: DocumentError, hint: str) -> AttestationError:
    details = tuple(printable(line) for line in error.details)
    return AttestationError(printable(error.message), hint=hint, details=details)


def decode_base64(text: str, what: str) -> bytes:
    """Decode either alphabet, with padding, and nothing but what encoding would give back.

    DSSE demands both alphabets. Python's decoder skips foreign characters and ignores the unused
    bits of the last one, so two texts would be one value: hence the comparison.
    """
    # a text that mixes both alphabets fails below, at the comparison
    alternative = b"-_" if "-" in text or "_" in text else b"+/"
    try:
        data = base64.b64decode(text, altchars=alternative, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _not_base64(what) from error
    if base64.b64encode(data, altchars=alternative) != text.encode("ascii"):
        raise _not_base64(what)
    return data


def _not_base64(what: str) -> AttestationError:
    return AttestationError(
        f"{what} is not valid base64",
        hint="The file was damaged or changed; fetch it again from where it was made.",
    )
