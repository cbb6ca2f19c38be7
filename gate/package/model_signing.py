"""The model's own signature: OpenSSF Model Signing over the saved model in the package.

Format: https://github.com/sigstore/model-transparency/blob/main/docs/model_signing_format.md

A user of the model alone can check it with the PyPI package `model-signing`. It takes keys of
ECDSA only. The digests are those of the package's members: nothing is read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from gate.errors import AttestationError
from gate.package.envelope import sign, write_bundle
from gate.package.keys import key_details, public_key, public_pem
from gate.package.seal_records import ECDSA_P256, PAYLOAD_TYPE, KeyDetails
from gate.package.signing import Signer, printable, read_record
from gate.package.statement import STATEMENT_TYPE, CamelDocument, FileDescriptor, FileDigest, Sha256
from gate.text.document import Document
from gate.text.json_text import canonical_json
from gate.text.package_names import MODEL_FOLDER, STATE_MEMBER

MODEL_PREDICATE: Final = "https://model_signing/signature/v1.0"
MAX_MODEL_FILES: Final = 10_000
MAX_PATH: Final = 256


class SnakeDocument(Document):
    """A document of Model Signing, whose keys are written with underscores."""

    model_config = ConfigDict(populate_by_name=True)


class Serialization(SnakeDocument):
    """How a folder becomes a list of digests: file by file, no link followed, none left out.

    A path in `ignore_paths` would be skipped by who verifies, and anything could be put there.
    """

    method: Literal["files"] = "files"
    hash_type: Literal["sha256"] = "sha256"
    allow_symlinks: Literal[False] = False
    ignore_paths: tuple[()] = ()


class ModelFile(SnakeDocument):
    """A file, by its path inside the folder."""

    name: str = Field(min_length=1, max_length=MAX_PATH)
    algorithm: Literal["sha256"] = "sha256"
    digest: Sha256


class ModelPredicate(SnakeDocument):
    """All files of the folder, in the order of their paths."""

    serialization: Serialization = Serialization()
    resources: Annotated[tuple[ModelFile, ...], Field(min_length=1, max_length=MAX_MODEL_FILES)]


class ModelStatement(CamelDocument):
    """An in-toto Statement, version 1, over one folder.

    The subject's digest is over the digests of the files in their order, and not over their names.
    """

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[FileDescriptor]
    predicate_type: Literal["https://model_signing/signature/v1.0"] = MODEL_PREDICATE
    predicate: ModelPredicate


class PartMatch(StrEnum):
    """What a file holds of one part of the sealed state."""

    EQUAL = "equal"
    DIFFERENT = "different"
    ABSENT = "not in this file"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedPart:
    """Model or optimizer: of `sealed` tensors so many are `equal` in the file.

    `differing` and `missing` name the first of those that are other or not there, `further` counts
    what only the file has.
    """

    name: str
    answer: PartMatch
    sealed: int
    equal: int
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    further: int = 0

    @property
    def described(self) -> str:
        """For example `model: equal (6 tensors)`."""
        if self.answer is PartMatch.ABSENT:
            return f"{self.name}: {self.answer}"
        if self.answer is PartMatch.EQUAL:
            return f"{self.name}: equal ({self.sealed:,} tensors)"
        named = [f"{name} differs" for name in self.differing]
        named += [f"{name} is missing" for name in self.missing]
        if self.further:
            noun = "tensor" if self.further == 1 else "tensors"
            named.append(f"{self.further:,} {noun} more than the sealed run had")
        if not self.sealed:
            return f"{self.name}: {named[0]}"
        return (
            f"{self.name}: different, {self.equal:,} of {self.sealed:,} tensors equal "
            f"({'; '.join(named)})"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Some of what a file holds beside the tensors of its parts: how many, and the first ones."""

    count: int = 0
    first: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """For example `int '/epoch'; int '/step'; and 3 more`."""
        rest = self.count - len(self.first)
        return "; ".join((*self.first, *((f"and {rest:,} more",) if rest else ())))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCheck:
    """A file against the sealed state; `identical`: it is, value for value, what was sealed.

    `beyond` is what the sealed run did not have and may matter when the file is loaded, `values`
    what it did not have either and is a plain number, a place or a time. `notes` are the reader's.
    """

    shown: str
    root: str
    identical: bool
    parts: tuple[CheckedPart, ...]
    beyond: Beside = Beside()
    values: Beside = Beside()
    notes: tuple[str, ...] = ()

    @property
    def has_the_weights(self) -> bool:
        """Whether every tensor of the model is there, and no other one of a model."""
        return any(part.name == "model" and part.answer is PartMatch.EQUAL for part in self.parts)

    @property
    def holds_the_model(self) -> bool:
        """Whether it may stand for the sealed model: all of that, and nothing beyond the seal."""
        other = any(part.answer is PartMatch.DIFFERENT for part in self.parts)
        return self.has_the_weights and not other and not self.beyond.count


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
    names = tuple(members)
    for folder in MODEL_FOLDERS:
        start = f"{folder}/"
        files = [
            (name.removeprefix(start), digest) for name, digest in names if name.startswith(start)
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
