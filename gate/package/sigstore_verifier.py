"""Verify a Sigstore bundle offline, by sigstore-python: certificate, its promise, log, signature.

The library is an optional extra, so it is imported where it is used. Nothing is asked over the
network: trust comes from the trusted root that the caller gives, or from the public one that the
library includes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from cryptography import x509

from gate.errors import AttestationError, KeyFileError
from gate.package.signing import Identity, IdentitySigned, has_sigstore
from gate.text.untrusted_text import masked

if TYPE_CHECKING:
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

INSTALL_HINT: Final = "Install it next to the gate: `pip install 'sigstore>=4.5'`."
REFUSED_HINT: Final = (
    "The seal was changed, belongs to somebody else, comes from services outside the trusted root, "
    "or is "
    "newer than that root: find out which before you use the package."
)
# "Source Repository URI" in Fulcio's extensions: the repository of the job that was certified.
SOURCE_REPOSITORY: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.12")
SHORT_TEXT: Final = b"\x0c"
LONG_TEXT: Final = b"\x0c\x81"
MAX_TEXT_BYTES: Final = 255
MAX_SHOWN: Final = 300


def verify_identity(
    bundle: bytes, identity: Identity, trusted_root: bytes | None
) -> IdentitySigned:
    """Verify a bundle of a DSSE envelope, and the identity that its certificate names.

    These checks are made:

    - the certificate: its chain at the log's time, its promise by a log of certificates, its name
      and issuer;
    - the log entry: its promise, proof and checkpoint, and that it is about this envelope;
    - the signature.

    `trusted_root` is the text of a trusted root, or None for the public services' root. Raises
    `AttestationError` if any check fails, and `KeyFileError` for a root that cannot be used.
    """
    _refuse_without_sigstore()
    # Imported here: an optional extra, and half a second that other commands need not wait.
    from sigstore.errors import Error  # noqa: PLC0415
    from sigstore.models import Bundle  # noqa: PLC0415
    from sigstore.verify import policy  # noqa: PLC0415

    # The library's warnings are meant for programmers. Without a handler they would go to stderr.
    logging.getLogger("sigstore").addHandler(logging.NullHandler())
    identity_policy = policy.Identity(identity=identity.name, issuer=identity.issuer)
    verifier = _verifier(trusted_root)
    try:
        read = Bundle.from_json(bundle)
        kind, payload = verifier.verify_dsse(read, identity_policy)
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


# What the library lets through, besides its own errors, when certificates and protobufs are
# malformed.
_PARSING: Final = (
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    # raised for a time that this machine's clock cannot represent
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
    """Raise `KeyFileError` if no seal could be verified with this root.

    None means the public services' root. Needs neither a seal nor a network.
    """
    _refuse_without_sigstore()
    _verifier(text)


def _verifier(text: bytes | None) -> Verifier:
    from sigstore.errors import Error  # noqa: PLC0415 - as above
    from sigstore.verify import Verifier  # noqa: PLC0415 - as above

    root = _trusted_root(text)
    try:
        return Verifier(trusted_root=root)
    except (Error, *_PARSING) as error:
        raise KeyFileError(
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
            # Offline: the root is as old as the installed library, or as its program's last
            # refresh.
            return ClientTrustConfig.production(offline=True).trusted_root
        except (Error, OSError, ValueError) as error:
            raise AttestationError(
                "the trusted root of the public services cannot be read",
                hint="Name a file: signing.trusted_root when sealing, --trusted-root to verify.",
                details=(_shown_error(error),),
            ) from error
    # The library reads a root only by path, and this may run in a confined process that writes no
    # file. So the path is a pipe's.
    with _as_path(text) as path:
        try:
            return TrustedRoot.from_file(path)
        except (Error, *_PARSING) as error:
            raise KeyFileError(
                "the trusted root is not one of Sigstore's",
                hint="It is a JSON document whose mediaType is "
                "application/vnd.dev.sigstore.trustedroot+json;version=0.1.",
            ) from error


@contextmanager
def _as_path(text: bytes) -> Iterator[str]:
    """Provide a path from which the text can be read once, while the body runs."""
    reading, writing = os.pipe()
    # A thread writes, because a pipe holds 64 KiB and a larger text would block this one.
    feeder = threading.Thread(target=_feed, args=(writing, text), daemon=True)
    feeder.start()
    try:
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
        feeder.join()


def _feed(writing: int, text: bytes) -> None:
    # The reader may stop early, and then the pipe breaks.
    with suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:
        pipe.write(text)


def _shown_error(error: Exception) -> str:
    """Return one line of the library's message, masked: it may quote parts of the bundle."""
    return masked(str(error).partition("\n")[0])[:MAX_SHOWN] or type(error).__name__


def _source_repository(certificate: x509.Certificate) -> str:
    """Return the certificate's source repository, or the empty text if it has none."""
    try:
        extension = certificate.extensions.get_extension_for_oid(SOURCE_REPOSITORY)
    except x509.ExtensionNotFound:
        return ""
    value = extension.value.public_bytes()
    # DER (X.690, 8.1.3): a length below 128 is one byte, and one below 256 has 0x81 before it.
    for head in (value[:1], value[:2]):
        start = len(head) + 1
        if head in {SHORT_TEXT, LONG_TEXT} and value[start - 1 : start] == _byte(value, start):
            return value[start:].decode("utf-8", "replace")
    # Unreadable is not absent: callers skip the check for an absent repository.
    raise AttestationError("the certificate's repository cannot be read", hint=REFUSED_HINT)


def _byte(value: bytes, start: int) -> bytes:
    rest = len(value) - start
    return bytes((rest,)) if 0 < rest <= MAX_TEXT_BYTES else b""
