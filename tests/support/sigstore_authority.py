"""A certificate authority like Fulcio, with a certificate log: real X.509, real signed promises.

RFC 6962, 3.2 and 3.3, says what a log of certificates signs and how the promise stands in one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

FULCIO = "1.3.6.1.4.1.57264.1."
Key = ec.EllipticCurvePrivateKey
YEAR = timedelta(days=365)
LIFE = timedelta(minutes=10)


def new_key() -> Key:
    """Return a new key on P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def public_der(key: Key) -> bytes:
    """Return the public key as DER, a SubjectPublicKeyInfo."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _name(text: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "sigstore.test"),
            x509.NameAttribute(NameOID.COMMON_NAME, text),
        ]
    )


def _usage(*, certifies: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certifies,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certifies,
        crl_sign=certifies,
        encipher_only=False,
        decipher_only=False,
    )


def _utf8(text: str) -> bytes:
    data = text.encode()
    length = bytes((len(data),)) if len(data) < 128 else bytes((0x81, len(data)))
    return b"\x0c" + length + data


@dataclass
class Authority:
    """A root that certifies itself, and the log that promises to list what it certifies.

    The keys that are used may be replaced by those of somebody else, and so may the name.
    """

    key: Key = field(default_factory=new_key)
    log_key: Key = field(default_factory=new_key)
    signs_with: Key | None = None
    promises_with: Key | None = None
    names: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        """Create the self-signed root certificate."""
        subject = _name("root")
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        self.root = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - YEAR)
            .not_valid_after(self.now + YEAR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(_usage(certifies=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(self.key, SHA256())
        )

    def certify(
        self, public_key: ec.EllipticCurvePublicKey, name: str, facts: dict[str, str]
    ) -> x509.Certificate:
        """A certificate for a name; `facts` are Fulcio's extensions by their last number."""
        now = datetime.now(UTC)
        signer = self.signs_with or self.key
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.root.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(seconds=5))
            .not_valid_after(now + LIFE)
            .add_extension(_usage(certifies=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(self.names or name)]),
                critical=True,
            )
        )
        for number, text in facts.items():
            # the first of them is older than the rule that an extension is DER
            value = text.encode() if number == "1" else _utf8(text)
            extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(FULCIO + number), value)
            builder = builder.add_extension(extension, critical=False)
        to_promise = builder.sign(signer, SHA256()).tbs_certificate_bytes
        promise = x509.UnrecognizedExtension(
            ExtensionOID.PRECERT_SIGNED_CERTIFICATE_TIMESTAMPS, self._promise(to_promise, now)
        )
        return builder.add_extension(promise, critical=False).sign(signer, SHA256())

    def _promise(self, to_promise: bytes, now: datetime) -> bytes:
        milliseconds = int(now.timestamp() * 1000)
        issuer = hashlib.sha256(public_der(self.key)).digest()
        signed = (
            struct.pack(">BBQH", 0, 0, milliseconds, 1)
            + issuer
            + len(to_promise).to_bytes(3, "big")
            + to_promise
            + b"\0\0"
        )
        signature = (self.promises_with or self.log_key).sign(signed, ec.ECDSA(SHA256()))
        log_id = hashlib.sha256(public_der(self.log_key)).digest()
        one = b"\0" + log_id + struct.pack(">QHBBH", milliseconds, 0, 4, 3, len(signature))
        one += signature
        listed = struct.pack(">HH", len(one) + 2, len(one)) + one
        return b"\x04" + _length(len(listed)) + listed


def _length(number: int) -> bytes:
    return bytes((number,)) if number < 128 else bytes((0x81, number))
