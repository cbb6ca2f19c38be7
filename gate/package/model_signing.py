"""The model's own signature: OpenSSF Model Signing over the saved model in the package.

Whoever takes the model alone can check it with the PyPI package `model-signing`. It takes keys of
ECDSA only. The digests are those of the package's members: nothing is read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gate.errors import AttestationError
from gate.package.dsse import sign
from gate.package.envelope import write_bundle
from gate.package.keys import key_details, public_key, public_pem
from gate.package.model_signature import ModelFile, ModelPredicate, ModelStatement
from gate.package.seal_records import ECDSA_P256, PAYLOAD_TYPE, KeyDetails
from gate.package.sealed_statement import FileDescriptor, FileDigest
from gate.package.signing import printable, read_record
from gate.package.signing_ports import Signer
from gate.text.json_text import canonical_json
from gate.text.members import MODEL_FOLDER, STATE_MEMBER

# what the script saved, else what the harness captured
MODEL_FOLDERS: Final = (MODEL_FOLDER, STATE_MEMBER.partition("/")[0])
MAX_MODEL_BYTES: Final = 5 * 1024 * 1024
SOURCE: Final = "the model's signature"
HINT: Final = "The seal and the package do not belong together; do not use this package."


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """The folder of a package that holds the model, and (path inside it, SHA-256) of its files."""

    name: str
    files: tuple[tuple[str, str], ...]

    @property
    def root_digest(self) -> str:
        """SHA-256 over the digests of the files, raw, in the order of the paths."""
        hasher = hashlib.sha256()
        for _, digest in self.files:
            hasher.update(bytes.fromhex(digest))
        return hasher.hexdigest()


def model_folder(members: Iterable[tuple[str, str]]) -> ModelFolder | None:
    """The model among the (name, SHA-256) of a package; None where it holds none."""
    found = tuple(members)
    for folder in MODEL_FOLDERS:
        start = f"{folder}/"
        files = [
            (name.removeprefix(start), digest) for name, digest in found if name.startswith(start)
        ]
        if files:
            # by the parts of the path, as PurePath compares: "a/b" comes before "a.b"
            files.sort(key=lambda file: file[0].split("/"))
            return ModelFolder(name=folder, files=tuple(files))
    return None


def model_members(members: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of every saved state in a package, as its members have them."""
    starts = tuple(f"{folder}/" for folder in MODEL_FOLDERS)
    return tuple((name, digest) for name, digest in members if name.startswith(starts))


def write_model_statement(folder: ModelFolder) -> bytes:
    """The payload to sign: canonical JSON, so equal files give equal bytes."""
    statement = ModelStatement(
        subject=(FileDescriptor(name=folder.name, digest=FileDigest(sha256=folder.root_digest)),),
        predicate=ModelPredicate(
            resources=tuple(ModelFile(name=name, digest=digest) for name, digest in folder.files)
        ),
    )
    return canonical_json(statement.model_dump(mode="json", by_alias=True))


def takes_model_signature(details: KeyDetails) -> bool:
    """Whether a key of this kind can make a signature that `model-signing` accepts."""
    return details == ECDSA_P256


def sign_model(folder: ModelFolder, signer: Signer) -> bytes | None:
    """The content of `package.model.sig`, or None for a key that Model Signing does not take.

    It is a Sigstore bundle whose hint is the SHA-256 of the key's PEM: that one and no other is
    what `model-signing` compares with the key that it is given.
    """
    key = public_key(signer.public_key(), "the signer's public key")
    if not takes_model_signature(key_details(key)):
        return None
    envelope = sign(write_model_statement(folder), PAYLOAD_TYPE, signer)
    return write_bundle(envelope, hint=hashlib.sha256(public_pem(key)).hexdigest())


def check_model_statement(payload: bytes, folder: ModelFolder | None) -> None:
    """A payload whose signature holds must list the package's model, file by file.

    Raises `AttestationError` for another form, and names the file that is missing, left over or
    different.
    """
    statement = read_record(ModelStatement, payload, SOURCE, max_bytes=MAX_MODEL_BYTES, hint=HINT)
    if folder is None:
        raise AttestationError("the package holds no model that was signed", hint=HINT)
    packed = dict(folder.files)
    listed = {file.name: file.digest for file in statement.predicate.resources}
    for name in sorted(packed.keys() | listed.keys()):
        if packed.get(name) != listed.get(name):
            raise AttestationError(
                f"{folder.name}/{printable(name)} {_difference(name, packed, listed)}", hint=HINT
            )
    # order, name of the folder and root digest follow from the files
    if payload != write_model_statement(folder):
        raise AttestationError(
            f"{SOURCE} is not about the folder {folder.name} of this package", hint=HINT
        )


def _difference(name: str, packed: dict[str, str], listed: dict[str, str]) -> str:
    if name not in listed:
        return f"is in the package, and {SOURCE} does not list it"
    if name not in packed:
        return f"is listed by {SOURCE}, and the package does not hold it"
    return f"is not the file that {SOURCE} lists"
