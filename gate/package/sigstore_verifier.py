"""Checking a Sigstore bundle offline, by sigstore-python: certificate, its promise, log, signature.

An extra of the package, so it is loaded where it is used. It asks nobody:
what it trusts is the trusted root that it is given, or the public one that the library brings.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from cryptography import x509

from gate.errors import AttestationError
from gate.package.signing import Identity, IdentitySigned, has_sigstore
from gate.text.untrusted_text import masked

if TYPE_CHECKING:
    from sigstore.models import TrustedRoot

INSTALL_HINT: Final = "Install it next to the gate: `pip install 'sigstore>=4.5'`."
REFUSED_HINT: Final = (
    "The seal was changed, belongs to somebody else, comes from services outside the trusted root, "
    "or is "
    "newer than that root: find out which before you use the package."
)
# "Source Repository URI" of Fulcio's extensions: the repository whose job was certified.
SOURCE_REPOSITORY: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.12")
SHORT_TEXT: Final = b"\x0c"
LONG_TEXT: Final = b"\x0c\x81"
MAX_TEXT_BYTES: Final = 255
MAX_SHOWN: Final = 300


def verify_identity(
    bundle: bytes, identity: Identity, trusted_root: bytes | None
) -> IdentitySigned:
    """Check a bundle of a DSSE envelope and whom its certificate names.

    Checked are the certificate's chain at the time of the log, its promise by a log of
    certificates, name and issuer, the entry's promise, proof and checkpoint, that the entry is
    about this envelope, and the signature. `trusted_root` is the text of a trusted root, None that
    of the public services. Raises `AttestationError` for all that does not hold.
    """
    _refuse_without_sigstore()
    # imported here: an extra, and half a second for every command that does not need it
    from sigstore.errors import Error  # noqa: PLC0415
    from sigstore.models import Bundle  # noqa: PLC0415
    from sigstore.verify import Verifier, policy  # noqa: PLC0415

    # the library's warnings are for those who call it; without a handler they went to stderr
    logging.getLogger("sigstore").addHandler(logging.NullHandler())
    identity_policy = policy.Identity(identity=identity.name, issuer=identity.issuer)
    root = _trusted_root(trusted_root)
    try:
        read = Bundle.from_json(bundle)
        kind, payload = Verifier(trusted_root=root).verify_dsse(read, identity_policy)
    except (Error, *_PARSING) as error:
        raise AttestationError(
            "the keyless seal does not verify", hint=REFUSED_HINT, details=(_shown_error(error),)
        ) from error
    return IdentitySigned(
        payload=payload,
        payload_type=kind,
        identity=identity,
        repository=_source_repository(read.signing_certificate),
    )


# what reading untrusted certificates and protobufs raises besides the library's own errors
_PARSING: Final = (
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    # a time that this machine's clock cannot show
    OSError,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    x509.InvalidVersion,
)


def _refuse_without_sigstore() -> None:
    if not has_sigstore():
        raise AttestationError(
            "the package sigstore is not installed, and without it no certificate is checked",
            hint=INSTALL_HINT,
        )


def check_trusted_root(text: bytes | None) -> None:
    """Whether a seal could be checked with this root; `AttestationError` where it could not.

    None stands for the root of the public services. No seal is needed for it, nor any network.
    """
    _refuse_without_sigstore()
    from sigstore.errors import Error  # noqa: PLC0415 - as above
    from sigstore.verify import Verifier  # noqa: PLC0415 - as above

    root = _trusted_root(text)
    try:
        Verifier(trusted_root=root)
    except (Error, *_PARSING) as error:
        raise AttestationError(
            "the trusted root has no certificate authority or no log that can be used",
            hint="Fetch the root again from whoever runs the services of signing.fulcio_url and "
            "signing.rekor_url.",
            details=(_shown_error(error),),
        ) from error


def _trusted_root(text: bytes | None) -> TrustedRoot:
    from sigstore.errors import Error  # noqa: PLC0415 - as above
    from sigstore.models import ClientTrustConfig, TrustedRoot  # noqa: PLC0415 - as above

    if text is None:
        try:
            # offline: as old as the installed library, or as its own program last refreshed it
            return ClientTrustConfig.production(offline=True).trusted_root
        except (Error, OSError, ValueError) as error:
            raise AttestationError(
                "the trusted root of the public services cannot be read",
                hint="Name a file: signing.trusted_root when sealing, --trusted-root to verify.",
                details=(_shown_error(error),),
            ) from error
    # the library reads a root by its path alone, and a confined reader writes no file
    with _as_path(text) as path:
        try:
            return TrustedRoot.from_file(path)
        except (Error, *_PARSING) as error:
            raise AttestationError(
                "the trusted root is not one of Sigstore's",
                hint="It is a JSON document whose mediaType is "
                "application/vnd.dev.sigstore.trustedroot+json;version=0.1.",
            ) from error


@contextmanager
def _as_path(text: bytes) -> Iterator[str]:
    """A path from which the text can be read once, while the body runs."""
    reading, writing = os.pipe()
    # a pipe takes 64 KiB at once
    feeder = threading.Thread(target=_feed, args=(writing, text), daemon=True)
    feeder.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        feeder.join()


def _feed(writing: int, text: bytes) -> None:
    # nobody reads on
    with suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:
        pipe.write(text)


def _shown_error(error: Exception) -> str:
    """One line of what the library says; parts of the bundle may be in it."""
    return masked(str(error).partition("\n")[0])[:MAX_SHOWN] or type(error).__name__


def _source_repository(certificate: x509.Certificate) -> str:
    """The extension's text, or nothing where a certificate has none."""
    try:
        extension = certificate.extensions.get_extension_for_oid(SOURCE_REPOSITORY)
    except x509.ExtensionNotFound:
        return ""
    value = extension.value.public_bytes()
    # DER (X.690, 8.1.3): a length below 128 is one byte, one below 256 has 0x81 before it
    for head in (value[:1], value[:2]):
        start = len(head) + 1
        if head in {SHORT_TEXT, LONG_TEXT} and value[start - 1 : start] == _byte(value, start):
            return value[start:].decode("utf-8", "replace")
    # unreadable is not absent: the caller passes over the absent one
    raise AttestationError("the certificate's repository cannot be read", hint=REFUSED_HINT)


def _byte(value: bytes, start: int) -> bytes:
    rest = len(value) - start
    return bytes((rest,)) if 0 < rest <= MAX_TEXT_BYTES else b""
