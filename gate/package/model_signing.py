"""Sign the model by itself, with OpenSSF Model Signing over the saved model in the package.

Format: https://github.com/sigstore/model-transparency/blob/main/docs/model_signing_format.md

With this signature somebody who has only the model can verify it, with the PyPI package
`model-signing`. That package accepts ECDSA keys only. The digests are the ones of the package's
members, so no file is read twice. This module also has the records of a model file's comparison
with the sealed state (`ModelCheck`).
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
    """How a folder becomes a list of digests: file by file, following no link, leaving none out.

    A verifier would skip every path in `ignore_paths`, so anything could be put there: it is always
    empty.
    """

    method: Literal["files"] = "files"
    hash_type: Literal["sha256"] = "sha256"
    allow_symlinks: Literal[False] = False
    ignore_paths: tuple[()] = ()


class ModelFile(SnakeDocument):
    """A file of the model, by its path inside the folder, with its SHA-256."""

    name: str = Field(min_length=1, max_length=MAX_PATH)
    algorithm: Literal["sha256"] = "sha256"
    digest: Sha256


class ModelPredicate(SnakeDocument):
    """All files of the folder, in the order of their paths, and how they were hashed."""

    serialization: Serialization = Serialization()
    resources: Annotated[tuple[ModelFile, ...], Field(min_length=1, max_length=MAX_MODEL_FILES)]


class ModelStatement(CamelDocument):
    """An in-toto Statement, version 1, about one folder.

    The subject's digest covers the files' digests in their order, but not their names.
    """

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: tuple[FileDescriptor]
    predicate_type: Literal["https://model_signing/signature/v1.0"] = MODEL_PREDICATE
    predicate: ModelPredicate


class PartMatch(StrEnum):
    """How a file's tensors compare with one part of the sealed state."""

    EQUAL = "equal"
    DIFFERENT = "different"
    ABSENT = "not in this file"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedPart:
    """The comparison of one part, model or optimizer: `equal` of `sealed` tensors match.

    `differing` and `missing` name the first tensors that differ or are absent. `further` counts the
    tensors that only the file has.
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
        """Return one line, for example `model: equal (6 tensors)`."""
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
    """What a file contains besides its parts' tensors: the number of leaves, and the first ones."""

    count: int = 0
    first: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """Return one line, for example `int '/epoch'; int '/step'; and 3 more`."""
        rest = self.count - len(self.first)
        return "; ".join((*self.first, *((f"and {rest:,} more",) if rest else ())))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCheck:
    """The comparison of a model file with the sealed state.

    `identical` means equal to a sealed state, value for value. `beyond` lists what the sealed run
    did not have and may matter when the file is loaded. `values` lists what it did not have either,
    but is a plain value such as a number, a place or a time. `notes` come from the reader of the
    file.
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
        """Whether the file has every tensor of the sealed model, and no other tensor of a model."""
        return any(part.name == "model" and part.answer is PartMatch.EQUAL for part in self.parts)

    @property
    def has_tensors(self) -> bool:
        """Whether the file contains any tensor of a model or an optimizer."""
        return any(part.answer is not PartMatch.ABSENT for part in self.parts)

    @property
    def holds_the_model(self) -> bool:
        """Whether the file may stand for the sealed model: its weights and nothing else."""
        other = any(part.answer is PartMatch.DIFFERENT for part in self.parts)
        return self.has_the_weights and not other and not self.beyond.count


# The first of these folders that is in the package is signed: what the script saved, or else what
# the harness captured.
MODEL_FOLDERS: Final = (MODEL_FOLDER, STATE_MEMBER.partition("/")[0])
MAX_MODEL_BYTES: Final = 5 * 1024 * 1024
SOURCE: Final = "the model's signature"
HINT: Final = "The seal and the package do not belong together; do not use this package."


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """The package's folder with the model, and (path inside it, SHA-256) for each file."""

    name: str
    files: tuple[tuple[str, str], ...]

    @property
    def root_digest(self) -> str:
        """Return the SHA-256 over the files' raw digests, in the order of the paths."""
        hasher = hashlib.sha256()
        for _, digest in self.files:
            hasher.update(bytes.fromhex(digest))
        return hasher.hexdigest()


def model_folder(members: Iterable[tuple[str, str]]) -> ModelFolder | None:
    """Return the model among a package's (name, SHA-256) pairs, or None if there is no model."""
    names = tuple(members)
    for folder in MODEL_FOLDERS:
        start = f"{folder}/"
        files = [
            (name.removeprefix(start), digest) for name, digest in names if name.startswith(start)
        ]
        if files:
            # Ordered by path components, as model-signing does with PurePath: "a/b" comes before
            # "a.b".
            files.sort(key=lambda file: file[0].split("/"))
            return ModelFolder(name=folder, files=tuple(files))
    return None


def model_members(members: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return (name, SHA-256) of every member that is part of a saved state."""
    starts = tuple(f"{folder}/" for folder in MODEL_FOLDERS)
    return tuple((name, digest) for name, digest in members if name.startswith(starts))


def write_model_statement(folder: ModelFolder) -> bytes:
    """Return the payload to sign: canonical JSON, so equal files give equal bytes."""
    statement = ModelStatement(
        subject=(FileDescriptor(name=folder.name, digest=FileDigest(sha256=folder.root_digest)),),
        predicate=ModelPredicate(
            resources=tuple(ModelFile(name=name, digest=digest) for name, digest in folder.files)
        ),
    )
    return canonical_json(statement.model_dump(mode="json", by_alias=True))


def takes_model_signature(details: KeyDetails) -> bool:
    """Return whether a key of this kind can make a signature that `model-signing` accepts."""
    return details == ECDSA_P256


def sign_model(folder: ModelFolder, signer: Signer) -> bytes | None:
    """Return the content of `package.model.sig`, or None if Model Signing does not take the key.

    The content is a Sigstore bundle. Its hint is the SHA-256 of the key's PEM rather than its DER,
    because `model-signing` compares the hint with that digest of the key that it is given.
    """
    key = public_key(signer.public_key(), "the signer's public key")
    if not takes_model_signature(key_details(key)):
        return None
    envelope = sign(write_model_statement(folder), PAYLOAD_TYPE, signer)
    return write_bundle(envelope, hint=hashlib.sha256(public_pem(key)).hexdigest())


def check_model_statement(payload: bytes, folder: ModelFolder | None) -> None:
    """Check that a payload with a valid signature lists the package's model, file by file.

    Raises `AttestationError` for another form, and names the file that is missing, unlisted or
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
    # The order, the folder's name and the root digest follow from the files, so rebuild and
    # compare.
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
