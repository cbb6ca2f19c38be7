"""A package as a registry holds it: one manifest for the package, one for its seals.

OCI image specification 1.1, "Guidelines for artifact usage": an `artifactType` and an empty
configuration. The seals' manifest names the package's as its `subject`, so that they can be found
from it. Both are the same bytes for the same files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gate.errors import DocumentError
from gate.publishing.artifact import PACKAGE_FILE, SealedArtifact, SealedFile
from gate.publishing.registry_api import INDEX_TYPE, MANIFEST_TYPE
from gate.text.json_text import canonical_json
from gate.text.strict_json import parse_json

PACKAGE_TYPE: Final = "application/vnd.repro-gate.package.v1"
SEALS_TYPE: Final = "application/vnd.repro-gate.seals.v1"
PACKAGE_LAYER: Final = "application/vnd.repro-gate.package.v1.tar"
BUNDLE_LAYER: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
ENVELOPE_LAYER: Final = "application/vnd.dsse.envelope.v1+json"
EMPTY: Final = b"{}"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
TITLE: Final = "org.opencontainers.image.title"
CREATED: Final = "org.opencontainers.image.created"
REVISION: Final = "org.opencontainers.image.revision"
REPOSITORY: Final = "vnd.repro-gate.repository"
OUTCOME: Final = "vnd.repro-gate.outcome"
GATE_ID: Final = "vnd.repro-gate.gate-id"
MAX_MANIFEST_BYTES: Final = 256 * 1024
MAX_INDEX_BYTES: Final = 4 * 1024 * 1024
MAX_LISTED: Final = 1000
NAME_HINT: Final = "Check that the name in the registry holds packages of repro-gate."
_Record = TypeVar("_Record", bound=BaseModel)
_Text = Annotated[str, Field(max_length=1000)]
Annotations = Annotated[dict[_Text, _Text], Field(max_length=50)]


class Descriptor(BaseModel):
    """Bytes by their digest; a registry may say more of them, which nobody asked for."""

    media_type: str = Field(alias="mediaType", max_length=255)
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    size: int = Field(ge=0, lt=2**63)
    artifact_type: str = Field(default="", alias="artifactType", max_length=255)
    annotations: Annotations = Field(default_factory=dict)


class Manifest(BaseModel):
    """An artifact: files and words about them."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    artifact_type: str = Field(default="", alias="artifactType", max_length=255)
    layers: list[Descriptor] = Field(max_length=100)
    subject: Descriptor | None = None
    annotations: Annotations = Field(default_factory=dict)


class Index(BaseModel):
    """A list of manifests, such as those that refer to one."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    manifests: list[Descriptor] = Field(max_length=MAX_LISTED)


def package_manifest(artifact: SealedArtifact) -> bytes:
    """The manifest of `package.tar`."""
    return _manifest(PACKAGE_TYPE, [_layer(artifact.package)], _annotations(artifact))


def seals_manifest(artifact: SealedArtifact, package: bytes) -> bytes:
    """The manifest of the seals, which refers to that of the package."""
    layers = [_layer(seal) for seal in artifact.seals]
    subject = descriptor(package, MANIFEST_TYPE)
    return _manifest(SEALS_TYPE, layers, _annotations(artifact), {"subject": subject})


def descriptor(content: bytes, media_type: str, **more: object) -> dict[str, object]:
    """What names these bytes in another document."""
    return {
        "mediaType": media_type,
        "digest": digest_of(content),
        "size": len(content),
        **more,
    }


def digest_of(content: bytes) -> str:
    """The name of bytes in a registry."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def index_with(found: bytes | None, seals: bytes) -> bytes:
    """The list under the tag `sha256-...`, with these seals in it.

    Distribution specification 1.1, "Pushing manifests with subject": for a registry that keeps no
    list itself. Raises `DocumentError` where another program left something else there.
    """
    rows: list[Any] = []
    if found is not None:
        read_index(found)
        # as they stand: another program's row may say more than this one knows
        whole: Any = parse_json(found, "the registry's list")
        rows = whole["manifests"]
    annotations = read_manifest(seals).annotations
    mine = descriptor(seals, MANIFEST_TYPE, artifactType=SEALS_TYPE, annotations=annotations)
    rows = [row for row in rows if row["digest"] != mine["digest"]]
    document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*rows, mine]}
    return canonical_json(document)


def read_manifest(content: bytes) -> Manifest:
    """A manifest, strictly; `DocumentError` for anything else."""
    return _read(Manifest, content, "the registry's manifest")


def read_index(content: bytes) -> Index:
    """A list of manifests, strictly; `DocumentError` for anything else."""
    return _read(Index, content, "the registry's list")


def _read(model: type[_Record], content: bytes, source: str) -> _Record:
    try:
        value = parse_json(content, source, max_bytes=MAX_INDEX_BYTES)
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        raise DocumentError(f"{source} is not what was asked for", hint=NAME_HINT) from error
    except DocumentError as error:
        raise DocumentError(error.message, hint=NAME_HINT) from error


def _manifest(
    artifact_type: str,
    layers: Sequence[Mapping[str, object]],
    annotations: Mapping[str, str],
    more: Mapping[str, object] | None = None,
) -> bytes:
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": artifact_type,
            "config": descriptor(EMPTY, EMPTY_TYPE, data="e30="),
            "layers": layers,
            "annotations": annotations,
            **(more or {}),
        }
    )


def _layer(file: SealedFile) -> dict[str, object]:
    kind = ENVELOPE_LAYER if file.name.endswith(".dsse.json") else BUNDLE_LAYER
    return {
        "mediaType": PACKAGE_LAYER if file.name == PACKAGE_FILE else kind,
        "digest": f"sha256:{file.sha256}",
        "size": file.size_bytes,
        "annotations": {TITLE: file.name},
    }


def _annotations(artifact: SealedArtifact) -> dict[str, str]:
    # the verdict's time and not this moment's: the same package gives the same manifest
    words = {
        CREATED: artifact.created_at,
        REVISION: artifact.commit,
        REPOSITORY: artifact.repository,
        OUTCOME: artifact.outcome,
        GATE_ID: artifact.gate_id,
    }
    return {name: value for name, value in words.items() if value}
