"""The part of a registry's HTTP API that packages need.

Sources: RFC 9110, 11.6.1; "Distribution Registry Token Authentication" of the distribution project.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import requests
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from gate.errors import DocumentError, PublishError
from gate.publishing.artifact import SealedFile
from gate.publishing.credentials import LOGIN_HINT
from gate.system.files.port import Files
from gate.system.http import (
    REDIRECTS,
    Connection,
    HttpAnswer,
    HttpRequest,
    UnansweredError,
    Upload,
)
from gate.system.login import LOOPBACK, Login
from gate.text.strict_json import parse_json

MAX_HEADER: Final = 4096
# Possessive quantifiers: a malicious header cannot make matching take more than linear time.
_SCHEME: Final = re.compile(r"(?:^|,)\s*+(bearer|basic)\s++", re.IGNORECASE)
_PARAMETER: Final = re.compile(r'([a-z]{1,20})\s?=\s?"([^"\\]*+)"', re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """A registry's request to log in; `scheme` is bearer or basic, and the rest may be empty."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def read_challenge(header: str) -> Challenge | None:
    """Return the strongest known scheme in the header, or None if there is none."""
    if len(header) > MAX_HEADER:
        return None
    starts = list(_SCHEME.finditer(header))
    challenges: dict[str, Challenge] = {}
    for number, start in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(header)
        words = {
            name.lower(): value for name, value in _PARAMETER.findall(header[start.end() : end])
        }
        scheme = start[1].lower()
        challenges[scheme] = Challenge(
            scheme=scheme,
            realm=words.get("realm", ""),
            service=words.get("service", ""),
            scope=words.get("scope", ""),
        )
    return challenges.get("bearer") or challenges.get("basic")


INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
# people write the names, but another host answers
HUB_NAMES: Final = frozenset({"docker.io", "index.docker.io"})
HUB_HOST: Final = "registry-1.docker.io"
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
UPLOAD_TRIES: Final = 2
NOT_FOUND: Final = requests.codes.not_found
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,32768}\Z")
PLACE_HINT: Final = "Check publish.oci: the registry has to know the name, and to let you in."
_T = TypeVar("_T")


class _Token(BaseModel):
    """A token answer; the specification allows either field."""

    token: str = Field(default="", max_length=32768)
    access_token: str = Field(default="", max_length=32768)


_TOKEN_ANSWER = TypeAdapter(_Token)
TAGS_A_PAGE: Final = 1000
MAX_TAGS: Final = 100_000


class _Tags(BaseModel):
    """A page of the list of tags; a registry may send null if there are none."""

    tags: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]] | None = None


_TAGS_ANSWER = TypeAdapter(_Tags)


class RegistryClient:
    """A client for one name in a registry (`host/name`); a context manager.

    Plain http is used for a loopback host, TLS for every other one. Every failure is a
    `PublishError` without credentials in it.
    """

    def __init__(
        self,
        place: str,
        login: Callable[[str], Login | None],
        connect: Callable[[str, str], Connection],
    ) -> None:
        host, _, self.name = place.partition("/")
        self.host = HUB_HOST if host in HUB_NAMES else host
        scheme = "http" if urlsplit(f"//{host}").hostname in LOOPBACK else "https"
        self.place = place
        self._base = f"{scheme}://{self.host}/v2/{self.name}"
        self._connection = connect(f"the registry {host}", self._base)
        self._login = login(self.host)
        if self._login is not None:
            self._connection.hide(*self._login.secrets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def manifest(self, reference: str, *, max_bytes: int) -> bytes | None:
        """Return a manifest or an index by tag or digest, or None if it does not exist.

        Bytes that were asked for by digest are checked against it.
        """
        reply = self._ask(
            HttpRequest(
                method="GET",
                url=f"{self._base}/manifests/{reference}",
                headers={"Accept": f"{MANIFEST_TYPE}, {INDEX_TYPE}"},
                max_bytes=max_bytes,
            )
        )
        if reply.status == NOT_FOUND:
            return None
        self._expect(reply, requests.codes.ok)
        digest = f"sha256:{hashlib.sha256(reply.content).hexdigest()}"
        if DIGEST.match(reference) and reference != digest:
            raise self.wrong(f"gave other bytes than {reference[:19]}… names")
        return reply.content

    def put_manifest(self, reference: str, content: bytes, media_type: str) -> HttpAnswer:
        """Write a manifest under a tag or its digest."""
        ask = HttpRequest(
            method="PUT",
            url=f"{self._base}/manifests/{reference}",
            headers={"Content-Type": media_type},
            body=content,
        )
        reply = self._ask(ask)
        self._expect(reply, requests.codes.created)
        return reply

    def referrers(self, digest: str, *, max_bytes: int) -> bytes | None:
        """Return the list of manifests that refer to one, or None if the registry keeps no list."""
        reply = self._ask(
            HttpRequest(
                method="GET",
                url=f"{self._base}/referrers/{digest}",
                headers={"Accept": INDEX_TYPE},
                max_bytes=max_bytes,
            )
        )
        # A registry without this endpoint may confuse its address with another one.
        if reply.status in {NOT_FOUND, requests.codes.method_not_allowed}:
            return None
        self._expect(reply, requests.codes.ok)
        kind = reply.headers.get("content-type", "").partition(";")[0].strip()
        return reply.content if kind == INDEX_TYPE else None

    def tags(self) -> tuple[str, ...]:
        """Return all tags of the name, fetched page by page; empty if nothing was ever pushed."""
        tags: dict[str, None] = {}
        while True:
            # The Link header is not followed: it may name any address, and the login would go
            # there.
            last = next(reversed(tags), "")
            words = {"n": str(TAGS_A_PAGE)} | ({"last": last} if last else {})
            reply = self._ask(
                HttpRequest(method="GET", url=f"{self._base}/tags/list?{urlencode(words)}")
            )
            if reply.status == NOT_FOUND and not tags:
                return ()
            self._expect(reply, requests.codes.ok)
            try:
                page = _TAGS_ANSWER.validate_json(reply.content).tags or []
            except ValidationError as error:
                raise self.wrong("gave no list of its tags") from error
            before = len(tags)
            tags.update(dict.fromkeys(page))
            if len(tags) > MAX_TAGS:
                raise self.wrong(f"lists more than {MAX_TAGS:,} tags")
            # Stop if a page adds nothing, because the same page would be asked for again and again.
            if "link" not in reply.headers or len(tags) == before:
                return tuple(tags)

    def put_blob(self, file: SealedFile, files: Files) -> bool:
        """Upload a file in one request, unless the registry has it; return whether it was sent."""
        digest = f"sha256:{file.sha256}"
        if self._has_blob(digest):
            return False
        with files.open_binary(file.path, max_bytes=file.size_bytes) as stream:
            self._upload(digest, lambda: self._connection.upload(stream, file.size_bytes))
        return True

    def put_bytes(self, content: bytes) -> None:
        """Upload a few bytes, unless the registry has them."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if not self._has_blob(digest):
            self._upload(digest, lambda: content)

    def receive(self, digest: str, size_bytes: int, take: Callable[[Iterator[bytes]], _T]) -> _T:
        """Pass a blob's pieces to `take`; the blob must have exactly `size_bytes`."""
        ask = HttpRequest(method="GET", url=f"{self._base}/blobs/{digest}")
        # A small request first: it reports a refusal, and logs in if needed.
        head = self._ask(replace(ask, method="HEAD"))
        if head.status not in REDIRECTS:
            self._expect(head, requests.codes.ok)
        return self._connection.receive(ask, size_bytes, take)

    def wrong(self, why: str) -> PublishError:
        """Return the error for an answer that contradicts the registry's own data."""
        return self._connection.fault(
            why, ("Its answer was ignored. Contact the people who run the registry.")
        )

    def _has_blob(self, digest: str) -> bool:
        reply = self._ask(HttpRequest(method="HEAD", url=f"{self._base}/blobs/{digest}"))
        if reply.status == NOT_FOUND:
            return False
        # a registry that stores blobs elsewhere redirects to them
        if reply.status not in REDIRECTS:
            self._expect(reply, requests.codes.ok)
        return True

    def _upload(self, digest: str, body: Callable[[], bytes | Upload]) -> None:
        for left in range(UPLOAD_TRIES - 1, -1, -1):
            try:
                self._upload_once(digest, body)
            except UnansweredError:
                # Only the answer may have been lost: ask whether the blob is there.
                if self._has_blob(digest):
                    return
                if not left:
                    raise
            else:
                return

    def _upload_once(self, digest: str, body: Callable[[], bytes | Upload]) -> None:
        """Upload by POST and then PUT, the monolithic upload of the specification."""
        begun = self._ask(HttpRequest(method="POST", url=f"{self._base}/blobs/uploads/"))
        self._expect(begun, requests.codes.accepted)
        location = begun.headers.get("location", "")
        url = self._connection.next_address(f"{self._base}/blobs/uploads/", location)
        mark = "&" if urlsplit(url).query else "?"
        ask = HttpRequest(
            method="PUT",
            url=f"{url}{mark}digest={quote(digest, safe='')}",
            headers={"Content-Type": "application/octet-stream"},
            # Not repeatable: the stream is used up, and the upload's address is too.
            repeatable=False,
        )
        reply = self._connection.ask(replace(ask, body=body()))
        self._expect(reply, requests.codes.created)

    def _ask(self, ask: HttpRequest) -> HttpAnswer:
        """Send a request; if the registry asks for a login, log in and send it again."""
        reply = self._connection.ask(ask)
        if reply.status != requests.codes.unauthorized:
            return reply
        challenge = read_challenge(reply.headers.get("www-authenticate", ""))
        self._connection.log_in(self._login_for(challenge, reply))
        return self._connection.ask(ask)

    def _login_for(self, challenge: Challenge | None, reply: HttpAnswer) -> Login:
        # Also without a login: a registry gives out tokens for public names to anybody.
        if challenge is not None and challenge.scheme == "bearer":
            return Login.bearer(self._token(challenge))
        if challenge is None or self._login is None:
            raise self._refused(reply, LOGIN_HINT)
        return self._login

    def _token(self, challenge: Challenge) -> str:
        """Get a token from the service that the registry names, which gets the login."""
        words = {"service": challenge.service, "scope": challenge.scope}
        query = urlencode({name: value for name, value in words.items() if value})
        self._connection.check_address(challenge.realm)
        realm = urlsplit(challenge.realm)
        # A separate connection, so that only this service's host gets the login with the request.
        name = f"{self._connection.name}'s service for tokens"
        service = f"{realm.scheme}://{realm.netloc}"
        with Connection(name, service, self._connection.policy) as connection:
            if self._login is not None:
                connection.log_in(self._login)
            mark = "&" if realm.query else "?"
            reply = connection.ask(HttpRequest(method="GET", url=f"{challenge.realm}{mark}{query}"))
            if reply.status != requests.codes.ok:
                raise connection.refused(reply, LOGIN_HINT, refusal_message(reply.content))
        try:
            answer = _TOKEN_ANSWER.validate_json(reply.content)
        except ValidationError as error:
            raise connection.fault("gave no token", LOGIN_HINT) from error
        token = answer.token or answer.access_token
        # A line end in the token would begin another HTTP header (CWE-113).
        if not _TOKEN.match(token):
            raise connection.fault("gave no token", LOGIN_HINT)
        return token

    def _expect(self, reply: HttpAnswer, status: int) -> None:
        if reply.status != status:
            denied = reply.status in {requests.codes.unauthorized, requests.codes.forbidden}
            raise self._refused(reply, LOGIN_HINT if denied else PLACE_HINT)

    def _refused(self, reply: HttpAnswer, hint: str) -> PublishError:
        return self._connection.refused(reply, hint, refusal_message(reply.content))


def refusal_message(content: bytes) -> str:
    """Return a refusal's message in the specification's format; empty without one."""
    try:
        answer = parse_json(content, "an answer")
    except DocumentError:
        return ""
    errors = answer.get("errors") if isinstance(answer, dict) else None
    first = errors[0] if isinstance(errors, list) and errors else None
    message = first.get("message") if isinstance(first, dict) else None
    return message if isinstance(message, str) else ""
