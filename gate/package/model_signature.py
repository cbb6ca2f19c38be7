"""What OpenSSF Model Signing signs: every file of a model's folder by its SHA-256.

Format: https://github.com/sigstore/model-transparency/blob/main/docs/model_signing_format.md
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from gate.package.sealed_statement import STATEMENT_TYPE, CamelDocument, FileDescriptor, Sha256
from gate.text.records_document import Document

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
