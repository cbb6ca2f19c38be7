"""List the platforms of an image as a runner without a login sees them.

Asks the image's registry by the API of the OCI distribution specification: for the manifest, then
for an anonymous token if the registry demands one, then for the manifest again. Uses no secret of
the caller. Imports only the standard library, because a release runs it before anything is
installed.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

SECONDS: Final = 30.0
MAX_BYTES: Final = 4 * 1024 * 1024
# the NAME of `docker://NAME` in an action: a registry, perhaps with a port, a path, and a digest
IMAGE: Final = re.compile(
    r"(?P<registry>[a-z0-9.-]+(?::[0-9]{1,5})?)/(?P<name>[a-z0-9][a-z0-9._/-]{0,254})"
    r"@sha256:(?P<digest>[0-9a-f]{64})"
)
LISTS: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
REFUSED: Final = (401, 403, 404)


class ImageError(Exception):
    """The image cannot be pulled without a login, or its content does not have its digest."""


class _RefusedError(Exception):
    """The registry refused: its status, and the `WWW-Authenticate` header, which names a realm."""

    def __init__(self, code: int, challenge: str) -> None:
        super().__init__(f"answers {code}")
        self.code = code
        self.challenge = challenge


def _origin(registry: str) -> str:
    # Docker's own rule: only a registry on this machine may use plain HTTP
    local = registry.partition(":")[0] in {"localhost", "127.0.0.1"}
    return f"{'http' if local else 'https'}://{registry}"


def _get(address: str, headers: dict[str, str]) -> bytes:
    """Return the body at an address, at most 4 MiB.

    Raises `_RefusedError` for an HTTP error status, and `ImageError` if there is no answer or it is
    too long.
    """
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (made by _origin, or checked)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 (as above)
            body: bytes = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            challenge = error.headers.get("WWW-Authenticate", "")
            raise _RefusedError(error.code, challenge) from error
    except (OSError, http.client.HTTPException) as error:
        raise ImageError(f"{address} does not answer ({error}): try again") from error
    if len(body) > MAX_BYTES:
        raise ImageError(f"{address} answers with more than {MAX_BYTES} bytes")
    return body


def _object(body: bytes, address: str) -> dict[str, Any]:
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ImageError(f"{address} answers with something else than a JSON object")
    return read


def _anonymous_token(challenge: str, origin: str) -> str:
    """Return the token that the registry gives to everybody, from the realm in its challenge.

    Raises `ImageError` if the challenge asks for another kind of login, or for one without HTTPS.
    """
    told = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = told.get("realm", "")
    if not challenge.lower().startswith("bearer ") or not realm.startswith(("https://", origin)):
        raise ImageError(f"{origin} asks for a login and not for a token: {challenge[:200]!r}")
    asked = {key: told[key] for key in ("service", "scope") if key in told}
    address = f"{realm}?{urllib.parse.urlencode(asked)}"
    given = _object(_get(address, {}), address)
    return str(given.get("token") or given.get("access_token") or "")


def _manifest(origin: str, path: str) -> bytes:
    """Return the manifest without a login; raises `_RefusedError` if the registry refuses it."""
    accept = {"Accept": ", ".join((*LISTS, *MANIFESTS))}
    try:
        return _get(f"{origin}{path}", accept)
    except _RefusedError as refusal:
        if refusal.code != http.client.UNAUTHORIZED:
            raise
        token = _anonymous_token(refusal.challenge, origin)
    return _get(f"{origin}{path}", {**accept, "Authorization": f"Bearer {token}"})


def public_platforms(image: str) -> frozenset[str]:
    """Return the platforms of an image by digest, such as `linux/arm64`.

    Raises `ImageError` if the image is not public, the registry does not answer, or the manifest
    does not have the digest.
    """
    named = IMAGE.fullmatch(image)
    if named is None:
        raise ImageError(f"{image[:300]!r} is no image by digest: registry/name@sha256:...")
    origin = _origin(named["registry"])
    try:
        body = _manifest(origin, f"/v2/{named['name']}/manifests/sha256:{named['digest']}")
    except _RefusedError as refusal:
        if refusal.code not in REFUSED:
            raise ImageError(f"{origin} answers {refusal.code}: try again") from refusal
        raise ImageError(
            f"{image} is not public: its registry answers {refusal.code} without a login. On the "
            "page of its package take Package settings, Change visibility, Public"
        ) from refusal
    if hashlib.sha256(body).hexdigest() != named["digest"]:
        raise ImageError(f"{origin} answers with another manifest than {image}")
    return _platforms(_object(body, image))


def _platforms(manifest: dict[str, Any]) -> frozenset[str]:
    entries = manifest.get("manifests")
    found = set()
    for entry in entries if isinstance(entries, list) else ():
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if isinstance(platform, dict):
            found.add(f"{platform.get('os')}/{platform.get('architecture')}")
    return frozenset(found)
