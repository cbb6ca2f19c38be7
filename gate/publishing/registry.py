"""Push sealed packages to an OCI registry, and pull them without trusting the registry.

OCI image specification 1.1, "Guidelines for artifact usage": a manifest with an `artifactType` and
an empty configuration. The seals' manifest names the package's manifest as its `subject`, so a
client finds the seals from the package. Equal files give equal manifests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gate.errors import DocumentError, PublishError, StorageError
from gate.publishing.artifact import (
    PACKAGE_FILE,
    SEAL_FILE,
    ListedPackage,
    Pulled,
    Pushed,
    SealedArtifact,
    SealedFile,
    WantedPackage,
)
from gate.publishing.credentials import registry_login
from gate.publishing.registry_api import INDEX_TYPE, MANIFEST_TYPE, RegistryClient
from gate.system.files.port import Files
from gate.system.http import POLICY, Connection, RetryPolicy
from gate.text.document import is_time, newest_first
from gate.text.json_text import canonical_json
from gate.text.package_names import MAX_SEAL_BYTES
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
    """Names bytes by their digest; unknown fields of a registry's answer are ignored."""

    media_type: str = Field(alias="mediaType", max_length=255)
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    size: int = Field(ge=0, lt=2**63)
    artifact_type: str = Field(default="", alias="artifactType", max_length=255)
    annotations: Annotations = Field(default_factory=dict)


class Manifest(BaseModel):
    """The manifest of an artifact: its files, and annotations about them."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    artifact_type: str = Field(default="", alias="artifactType", max_length=255)
    layers: list[Descriptor] = Field(max_length=100)
    subject: Descriptor | None = None
    annotations: Annotations = Field(default_factory=dict)


class Index(BaseModel):
    """A list of manifests, such as the ones that refer to another manifest."""

    schema_version: Literal[2] = Field(alias="schemaVersion")
    manifests: list[Descriptor] = Field(max_length=MAX_LISTED)


def package_manifest(artifact: SealedArtifact) -> bytes:
    """Return the manifest of `package.tar`."""
    return _manifest(PACKAGE_TYPE, [_layer(artifact.package)], _annotations(artifact))


def seals_manifest(artifact: SealedArtifact, package: bytes) -> bytes:
    """Return the manifest of the seals, which refers to the package's manifest."""
    layers = [_layer(seal) for seal in artifact.seals]
    subject = descriptor(package, MANIFEST_TYPE)
    return _manifest(SEALS_TYPE, layers, _annotations(artifact), {"subject": subject})


def descriptor(content: bytes, media_type: str, **more: object) -> dict[str, object]:
    """Return a descriptor, which names these bytes in another document."""
    return {
        "mediaType": media_type,
        "digest": registry_digest(content),
        "size": len(content),
        **more,
    }


def registry_digest(content: bytes) -> str:
    """Return the digest that names these bytes in a registry."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def index_with(existing: bytes | None, seals: bytes) -> bytes:
    """Return the list for the tag `sha256-...` with these seals added.

    Distribution specification 1.1, "Pushing manifests with subject": for a registry that keeps no
    such list itself. Raises `DocumentError` if another program stored something else under the tag.
    """
    rows: list[Any] = []
    if existing is not None:
        read_manifest_index(existing)
        # Kept unchanged, because another program's row may have fields that this one does not know.
        whole: Any = parse_json(existing, "the registry's list")
        rows = whole["manifests"]
    annotations = read_manifest(seals).annotations
    mine = descriptor(seals, MANIFEST_TYPE, artifactType=SEALS_TYPE, annotations=annotations)
    rows = [row for row in rows if row["digest"] != mine["digest"]]
    document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*rows, mine]}
    return canonical_json(document)


def read_manifest(content: bytes) -> Manifest:
    """Parse a manifest strictly; raises `DocumentError` for anything else."""
    return _read(Manifest, content, "the registry's manifest")


def read_manifest_index(content: bytes) -> Index:
    """Parse a list of manifests strictly; raises `DocumentError` for anything else."""
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
    # The verdict's time rather than the current one, so that the same package gives the same
    # manifest.
    words = {
        CREATED: artifact.created_at,
        REVISION: artifact.commit,
        REPOSITORY: artifact.repository,
        OUTCOME: artifact.outcome,
        GATE_ID: artifact.gate_id,
    }
    return {name: value for name, value in words.items() if value}


SHORT_DIGEST: Final = 12
MAX_SETS: Final = 20
TAKEN: Final = "The commit's tag still names an earlier package; this one has its own tag."
SUBJECT_HEADER: Final = "oci-subject"
# looking at a tag takes a request
MAX_LOOKED_AT: Final = 1000
COMMIT_TAG: Final = re.compile(r"commit-([0-9a-f]{64}|[0-9a-f]{40})(-.*)?\Z")
OWN_TAG: Final = re.compile(rf"-[0-9a-f]{{{SHORT_DIGEST}}}\Z")


def commit_tag(commit: str, gate_id: str) -> str:
    """Return the tag of a commit's package; gates with an id have it in the tag."""
    return f"commit-{commit}" if gate_id == "default" else f"commit-{commit}-{gate_id}"


def registry_client(
    place: str, variables: Mapping[str, str], files: Files, policy: RetryPolicy
) -> RegistryClient:
    """Return a client for one name in a registry, with the environment's login for its host."""
    return RegistryClient(
        place,
        lambda host: registry_login(host, variables, files),
        lambda name, base: Connection(name, base, policy),
    )


class OciRegistry:
    """The `PackageRegistry` over HTTP, for one name in a registry (`host/name`)."""

    def __init__(
        self, place: str, variables: Mapping[str, str], files: Files, policy: RetryPolicy = POLICY
    ) -> None:
        self._place = place
        self._variables = variables
        self._files = files
        self._policy = policy

    def push(self, artifact: SealedArtifact) -> Pushed:
        """Push package and seals; the tag comes last, so that it never names an incomplete push."""
        with self._client() as client:
            # An artifact's configuration is empty, but the registry must have it as a blob.
            client.put_bytes(EMPTY)
            client.put_blob(artifact.package, self._files)
            package = package_manifest(artifact)
            digest = registry_digest(package)
            client.put_manifest(digest, package, MANIFEST_TYPE)
            self._push_seals(client, artifact, package)
            tag, notes = self._free_tag(client, artifact, digest)
            client.put_manifest(tag, package, MANIFEST_TYPE)
        return Pushed(reference=f"{self._place}@{digest}", tag=tag, notes=notes)

    def pull(self, reference: WantedPackage, out: Path) -> Pulled:
        """Write package and seals into a folder, with all digests checked; replaces no file."""
        tag = commit_tag(reference.commit, reference.gate_id)
        with self._client() as client:
            content = client.manifest(reference.digest or tag, max_bytes=MAX_MANIFEST_BYTES)
            if content is None:
                raise PublishError(
                    f"{self._place} has no {reference.digest or tag}",
                    hint="Only a sealed pass is published, under the full hash of its commit; "
                    "--gate-id names another gate than the settings'.",
                )
            manifest = read_manifest(content)
            package = _package_layer(client, manifest, reference)
            seals, notes = self._seals(client, registry_digest(content))
            paths = {name: out / name for name in (*seals, PACKAGE_FILE)}
            self._refuse_taken(paths.values())
            for name, layer in {**seals, PACKAGE_FILE: package}.items():
                self._write(client, layer, paths[name])
        words = manifest.annotations
        return Pulled(
            reference=f"{self._place}@{registry_digest(content)}",
            commit=reference.commit,
            outcome=words.get(OUTCOME, ""),
            created_at=words.get(CREATED, ""),
            files=tuple(sorted(paths)),
            notes=notes,
        )

    def listed(self, gate_id: str, commits: Sequence[str] | None = None) -> Iterator[ListedPackage]:
        """Yield a gate's packages, newest first according to the registry, or as in `commits`.

        Anything that is not a package comes first, because its age is unknown. With `commits`, only
        the packages of these commits are yielded, each looked up when it is needed.
        """
        with self._client() as client:
            tags: dict[str, list[str]] = {}
            for tag in client.tags():
                if commit := _commit_of(tag, gate_id):
                    tags.setdefault(commit, []).append(tag)
            if commits is not None:
                for commit in commits:
                    yield from _newest_first(_looked_at(client, commit, tags, gate_id))
                return
            total = sum(map(len, tags.values()))
            if total > MAX_LOOKED_AT:
                raise PublishError(
                    f"{self._place} has {total:,} packages of the gate {gate_id}, and at most "
                    f"{MAX_LOOKED_AT:,} are looked at",
                    hint="Call this in a clone and add --on main: then the newest commits of main "
                    "are looked up, one after the other.",
                )
            yield from _newest_first(
                package for commit in tags for package in _looked_at(client, commit, tags, gate_id)
            )

    def _client(self) -> RegistryClient:
        return registry_client(self._place, self._variables, self._files, self._policy)

    def _push_seals(self, client: RegistryClient, artifact: SealedArtifact, package: bytes) -> None:
        for seal in artifact.seals:
            client.put_blob(seal, self._files)
        seals = seals_manifest(artifact, package)
        reply = client.put_manifest(registry_digest(seals), seals, MANIFEST_TYPE)
        if SUBJECT_HEADER in reply.headers:
            return
        # Without this header the registry keeps no list of manifests that refer to another one.
        tag = _fallback_tag(registry_digest(package))
        index = client.manifest(tag, max_bytes=MAX_INDEX_BYTES)
        client.put_manifest(tag, index_with(index, seals), INDEX_TYPE)

    def _free_tag(
        self, client: RegistryClient, artifact: SealedArtifact, digest: str
    ) -> tuple[str, tuple[str, ...]]:
        """Return the commit's tag or, if another package has it, a separate tag for this one."""
        tag = commit_tag(artifact.commit, artifact.gate_id)
        manifest = client.manifest(tag, max_bytes=MAX_MANIFEST_BYTES)
        if manifest is None or registry_digest(manifest) == digest:
            return tag, ()
        # Somebody may rely on the tag, so it keeps naming the first package.
        own = f"{tag}-{digest.removeprefix('sha256:')[:SHORT_DIGEST]}"
        return own, (TAKEN,)

    def _seals(
        self, client: RegistryClient, package: str
    ) -> tuple[dict[str, Descriptor], tuple[str, ...]]:
        """Return a package's seals by file name; of several sets, the one that is listed last."""
        content = client.referrers(package, max_bytes=MAX_INDEX_BYTES)
        listed = read_manifest_index(content).manifests if content is not None else []
        if not listed:
            # The registry may have learned to keep such lists only after the package was pushed.
            content = client.manifest(_fallback_tag(package), max_bytes=MAX_INDEX_BYTES)
            listed = read_manifest_index(content).manifests if content is not None else []
        sealed = list(_of_seals(client, listed, package))
        if not sealed:
            raise PublishError(
                f"{self._place} has the package, and no seal of it",
                hint="A copy may lack the objects that refer to it: copy those too.",
            )
        taken, seals = sealed[-1]
        several = f"There are {len(sealed)} sets of seals; this is {taken}."
        return _seal_layers(client, seals), (several,) if len(sealed) > 1 else ()

    def _refuse_taken(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if self._files.exists(path):
                raise StorageError(
                    f"{path} is there already",
                    hint="Give another folder with --out, or remove the file: nothing is replaced.",
                )

    def _write(self, client: RegistryClient, layer: Descriptor, path: Path) -> None:
        def take(pieces: Iterator[bytes]) -> None:
            hasher = hashlib.sha256()
            # A truncated or altered file never gets its final name.
            with self._files.replacing(path) as target:
                for piece in pieces:
                    hasher.update(piece)
                    target.write(piece)
                if f"sha256:{hasher.hexdigest()}" != layer.digest:
                    raise client.wrong(f"gave other bytes than {layer.digest[:19]}… names")

        client.receive(layer.digest, layer.size, take)


def _commit_of(tag: str, gate_id: str) -> str:
    """Return the commit that this gate's tag may name, or empty; the manifest must confirm it."""
    match = COMMIT_TAG.match(tag)
    if match is None:
        return ""
    rest = tag.removeprefix(commit_tag(match[1], gate_id))
    return match[1] if rest == "" or (rest != tag and OWN_TAG.match(rest)) else ""


def _looked_at(
    client: RegistryClient, commit: str, tags: Mapping[str, Sequence[str]], gate_id: str
) -> Iterator[ListedPackage]:
    """Yield the packages of a commit, each one once."""
    seen = set()
    for tag in tags.get(commit, ()):
        content = client.manifest(tag, max_bytes=MAX_MANIFEST_BYTES)
        if content is None or (digest := registry_digest(content)) in seen:
            continue
        seen.add(digest)
        try:
            words = read_manifest(content).annotations
        except DocumentError:
            words = {GATE_ID: gate_id}
        # One gate's id may be the end of another gate's tag, so check the annotation.
        if words.get(GATE_ID) == gate_id:
            made_at = words.get(CREATED, "")
            created_at = made_at if is_time(made_at) else ""
            yield ListedPackage(tag=tag, commit=commit, digest=digest, created_at=created_at)


def _newest_first(packages: Iterable[ListedPackage]) -> list[ListedPackage]:
    return sorted(packages, key=lambda package: newest_first(package.created_at))


def _of_seals(
    client: RegistryClient, listed: Sequence[Descriptor], package: str
) -> Iterator[tuple[str, Manifest]]:
    """Yield digest and manifest of each set of seals that refers to a package."""
    # A copied list may lack the types. Then the manifest itself states its type.
    rows = [row for row in listed if row.artifact_type in {SEALS_TYPE, ""}]
    # Only the last ones, because each set takes a request.
    for row in rows[-MAX_SETS:]:
        content = client.manifest(row.digest, max_bytes=MAX_MANIFEST_BYTES)
        if content is None:
            raise client.wrong("lists seals that it does not have")
        manifest = read_manifest(content)
        of_package = manifest.subject is not None and manifest.subject.digest == package
        if manifest.artifact_type == SEALS_TYPE and of_package:
            yield row.digest, manifest


def _fallback_tag(digest: str) -> str:
    return digest.replace(":", "-")


def _package_layer(
    client: RegistryClient, manifest: Manifest, package: WantedPackage
) -> Descriptor:
    layers = [layer for layer in manifest.layers if layer.media_type == PACKAGE_LAYER]
    if manifest.artifact_type != PACKAGE_TYPE or len(layers) != 1:
        raise DocumentError(
            "the artifact under this name is not a package of repro-gate",
            hint="Check the name, and who else may push to it.",
        )
    if manifest.annotations.get(REVISION) != package.commit:
        raise client.wrong("gave the package of another commit")
    if layers[0].size > package.max_bytes:
        raise PublishError(
            f"the package has {layers[0].size:,} bytes, the limit is {package.max_bytes:,}",
            hint="Raise --max-bytes if that is what you expect.",
        )
    return layers[0]


def _seal_layers(client: RegistryClient, seals: Manifest) -> dict[str, Descriptor]:
    layers: dict[str, Descriptor] = {}
    for layer in seals.layers:
        name = layer.annotations.get(TITLE, "")
        # The name becomes a path here, so only names that the gate writes are accepted.
        if not SEAL_FILE.match(name) or name in layers or layer.size > MAX_SEAL_BYTES:
            raise client.wrong("lists a file among the seals that is not a seal")
        layers[name] = layer
    if not layers:
        raise client.wrong("has an empty set of seals")
    return layers
