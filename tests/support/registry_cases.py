"""A fake registry and the real client, for tests that push and fetch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from github_client import AT_ONCE
from oci_double import OciDouble
from sealed_files import COMMIT, sealed_artifact
from web_double import WebDouble

from gate.errors import GateError
from gate.publishing.artifact import Pulled, Pushed, WantedPackage
from gate.publishing.registry import OciRegistry
from gate.system.files.files import LocalFiles
from gate.system.http import RetryPolicy

FILES = LocalFiles()
TAG = f"commit-{COMMIT}"
PASSWORD = "hush-hush"
LOGIN = {"REPRO_GATE_REGISTRY_USER": "robot", "REPRO_GATE_REGISTRY_PASSWORD": PASSWORD}
WANTED = WantedPackage(commit=COMMIT, gate_id="default", digest="", max_bytes=10**6)


def registry(
    server: WebDouble, variables: Mapping[str, str] | None = None, policy: RetryPolicy = AT_ONCE
) -> OciRegistry:
    return OciRegistry(f"{server.address}/team/runs", variables or {}, FILES, policy)


def pushed(
    server: OciDouble, folder: Path, package: bytes = b"a package", seal: bytes = b"{}"
) -> Pushed:
    return registry(server).push(sealed_artifact(folder, package, seal=seal))


def pulled(server: WebDouble, out: Path, wanted: WantedPackage = WANTED) -> Pulled:
    return registry(server).pull(wanted, out)


def refused(act: Callable[[], object]) -> GateError:
    with pytest.raises(GateError) as caught:
        act()
    assert PASSWORD not in str(caught.value)
    return caught.value


def manifest_of(server: OciDouble, reference: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.manifests[reference])
    return found


def altered(server: OciDouble, reference: str, **changes: object) -> None:
    """Replace the manifest under a tag, as anybody with the right to push can."""
    content = json.dumps(manifest_of(server, reference) | changes).encode()
    server.manifests[reference] = content
