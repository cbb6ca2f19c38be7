"""Files that look like a package and its seals, for what only moves them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gate.publishing.artifact import SealedArtifact, SealedFile

COMMIT = "c0ffee" + "0" * 34
CREATED = "2026-11-23T09:00:00+00:00"


def sealed_file(folder: Path, name: str, content: bytes) -> SealedFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return SealedFile(name=name, path=path, sha256=digest, size_bytes=len(content))


def sealed_artifact(
    folder: Path, package: bytes = b"a package", *, gate_id: str = "default", seal: bytes = b"{}"
) -> SealedArtifact:
    return SealedArtifact(
        package=sealed_file(folder, "package.tar", package),
        seals=(
            sealed_file(folder, "package.dsse.json", seal),
            sealed_file(folder, "package.sigstore.json", b'{"a": 1}'),
        ),
        commit=COMMIT,
        repository="team/project",
        outcome="reproduced",
        created_at=CREATED,
        gate_id=gate_id,
    )
