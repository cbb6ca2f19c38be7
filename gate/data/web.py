"""A file of the web: resumed where it was cut, tried again, hashed while it comes.

Proxies, certificates and passwords come from the usual places, as requests reads them: environment
variables and `.netrc`. That file knows hosts and no ports: a login goes to the address of the
settings, and never to where a redirect leads.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError

from gate.data.cache import LIMIT_HINT
from gate.data.tools import TELL_SECONDS, shown_bytes, shown_rate, too_slow, without_password
from gate.errors import DataError
from gate.system.console import Progress
from gate.system.files import writing
from gate.system.http import BodyLimits, RetryPolicy, bounded_pieces, limit_seconds
from gate.text.untrusted_text import safe_line, short_text

TRIES: Final = 5
MAX_REDIRECTS: Final = 5
PIECE_BYTES: Final = 1024 * 1024
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
AGAIN: Final = frozenset({requests.codes.request_timeout, requests.codes.too_many_requests})
REFUSED: Final = frozenset({requests.codes.unauthorized, requests.codes.forbidden})
FOLDER_OF_HOST: Final = "Check the address in repro-gate.yml with `curl -fLO ADDRESS`."
_RANGE: Final = re.compile(r"bytes (?P<first>[0-9]{1,18})-[0-9]{1,18}/(?P<all>[0-9]{1,18}|\*)\Z")
_STRONG: Final = re.compile(r'"[\x21\x23-\x7e]{0,200}"\Z')


@dataclass(frozen=True, kw_only=True, slots=True)
class WebFile:
    """What to fetch: `make_room` says how many bytes may come, or raises where they may not."""

    entry: str
    url: str
    sha256: str
    seconds: float
    make_room: Callable[[int], int]


class _TryAgainError(requests.RequestException):
    """Something that another request may cure; `wait_seconds` as far as the server said."""

    def __init__(self, why: str, wait_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.wait_seconds = wait_seconds


class _Session(requests.Session):
    """Leaves redirects alone: requests would read the body of each, however long it is."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: they are followed by hand."""
        del resp


class _NoLogin(requests.auth.AuthBase):
    """No login at all; being an explicit auth, it keeps .netrc out."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """As it is."""
        return request


APPENDED: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT
NO_LOGIN: Final = _NoLogin()


class _Part:
    """What has come of a file, beside the tag that its server gave it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tag_path = path.with_suffix(".tag")
        self._hasher = hashlib.sha256()
        self.size = 0
        self.resumed = False
        if path.exists():
            with path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    self._hasher.update(piece)
                    self.size += len(piece)
        self._file = os.fdopen(writing.open_file(path, APPENDED), "ab")

    def close(self) -> None:
        self._file.close()

    def take(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hasher.update(piece)
        self.size += len(piece)

    def restart(self) -> None:
        """Begin from nothing."""
        self._file.truncate(0)
        self._hasher = hashlib.sha256()
        self.size = 0
        self.resumed = False
        writing.remove(self._tag_path)

    def digest(self) -> str:
        self._file.flush()
        return self._hasher.hexdigest()

    @property
    def tag(self) -> str:
        return self._tag_path.read_text("ascii") if self._tag_path.exists() else ""

    def keep_tag(self, tag: str) -> None:
        # a weak tag tells nothing of single bytes (RFC 9110, 13.1.5)
        if _STRONG.match(tag):
            writing.write_whole(self._tag_path, tag.encode("ascii"))


class Download:
    """One file, fetched into a folder that is kept between calls."""

    def __init__(self, file: WebFile, progress: Progress, policy: RetryPolicy) -> None:
        self._file = file
        self._progress = progress
        self._policy = policy
        self._ends_at = policy.monotonic() + file.seconds
        self._host = urlsplit(file.url).netloc

    def fetch(self, staging: Path) -> Path:
        """The whole file, with the digest that was declared.

        Raises `DataError`; after a wrong digest nothing of it is kept.
        """
        path = staging / "part"
        part = _Part(path)
        try:
            with _Session() as session:
                session.headers.update({"Accept-Encoding": "identity", "User-Agent": "repro-gate"})
                self._to_the_end(session, part)
                if part.digest() != self._file.sha256 and part.resumed:
                    # two versions of a file may have been joined
                    part.restart()
                    self._to_the_end(session, part)
            if part.digest() != self._file.sha256:
                found, size = part.digest(), part.size
                part.restart()
                raise self._wrong(found, size)
        finally:
            part.close()
        return path

    def _to_the_end(self, session: requests.Session, part: _Part) -> None:
        tries = 0
        while True:
            before = part.size
            try:
                self._once(session, part)
            except (requests.RequestException, HTTPError) as error:
                if isinstance(error, requests.exceptions.SSLError):
                    raise self._fault("has a certificate that is not trusted here") from error
                # a server that cuts, but gives something each time, is asked on
                tries = 1 if part.size > before else tries + 1
                wait = max(self._policy.backoff(tries - 1), getattr(error, "wait_seconds", 0.0))
                left = self._ends_at - self._policy.monotonic()
                if tries == TRIES or wait > left:
                    raise self._gave_up(error, tries) from error
                self._progress.step(f"{self._file.entry}: {_words(error)}; trying again")
                self._policy.sleep(wait)
            else:
                return

    def _once(self, session: requests.Session, part: _Part) -> None:
        headers = {"Range": f"bytes={part.size}-"} if part.size else {}
        if part.size and part.tag:
            headers["If-Range"] = part.tag
        with self._followed(session, headers) as response:
            whole = self._begun(response, part)
            room = self._file.make_room(max(0, (whole or 0) - part.size))
            self._take(response, part, room, whole)
        if whole is not None and part.size < whole:
            raise _TryAgainError("the answer was cut off")

    def _followed(self, session: requests.Session, headers: dict[str, str]) -> requests.Response:
        """The answer behind all redirects, each looked at before it is followed."""
        url, at = self._file.url, _origin(self._file.url)
        for _ in range(MAX_REDIRECTS + 1):
            response = session.get(
                url,
                headers=headers,
                auth=None if _origin(url) == _origin(self._file.url) else NO_LOGIN,
                timeout=min(self._policy.timeout_seconds, self._file.seconds),
                allow_redirects=False,
                stream=True,
            )
            if response.status_code not in REDIRECTS:
                return response
            response.close()
            url = self._checked(url, response.headers.get("Location", ""))
            if _origin(url) != at:
                # a cookie knows no port either (RFC 6265, 8.5)
                session.cookies.clear()
                at = _origin(url)
        raise self._fault(f"redirects more than {MAX_REDIRECTS} times")

    def _checked(self, url: str, location: str) -> str:
        """As the settings allow it: a redirect must not lead out of https."""
        try:
            following = urljoin(url, location)
            parts = urlsplit(following)
            # a port that is none is told by looking at it
            _origin(following)
        except ValueError as error:
            raise self._fault(
                f"redirects to {short_text(location)}, which is no address"
            ) from error
        plain = parts.scheme == "http" and urlsplit(self._file.url).scheme == "http"
        local = parts.hostname in {"localhost", "127.0.0.1"}
        if parts.scheme != "https" and not (plain and local):
            raise self._fault(f"redirects to {short_text(following)}, which is not https")
        if not parts.hostname or parts.username or parts.password:
            raise self._fault("redirects to an address with a user name, or without a host")
        return following

    def _begun(self, response: requests.Response, part: _Part) -> int | None:
        """Look at the beginning of an answer; the size of the whole file, if that is told."""
        status = response.status_code
        if status == requests.codes.requested_range_not_satisfiable and part.size:
            part.restart()
            raise _TryAgainError("the server has another version of the file")
        if status in AGAIN or status >= requests.codes.internal_server_error:
            wait = response.headers.get("Retry-After", "")
            seconds = limit_seconds({"Retry-After": wait}, self._policy.now()) if wait else 0.0
            raise _TryAgainError(f"{self._host} answered {status}", seconds)
        span = _RANGE.match(response.headers.get("Content-Range", ""))
        if status == requests.codes.partial_content:
            if span is None or int(span["first"]) != part.size:
                part.restart()
                raise _TryAgainError("the server gave another part than it was asked for")
            part.resumed = True
            return None if span["all"] == "*" else int(span["all"])
        if status != requests.codes.ok:
            raise self._refused(status)
        part.restart()
        part.keep_tag(response.headers.get("ETag", ""))
        length = response.headers.get("Content-Length", "")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None  # noqa: PLR2004 - below 2**63

    def _take(self, response: requests.Response, part: _Part, room: int, whole: int | None) -> None:
        began = told = self._policy.monotonic()
        first = part.size
        limits = BodyLimits(
            piece_bytes=PIECE_BYTES,
            max_bytes=room,
            seconds=max(0.0, self._ends_at - began),
            monotonic=self._policy.monotonic,
            too_large=lambda: DataError(
                f"data: {self._file.entry}: more than {room:,} bytes came", hint=LIMIT_HINT
            ),
            too_slow=lambda: too_slow(self._file.entry, self._file.seconds),
            decoded=False,
        )
        for piece in bounded_pieces(response.raw, limits):
            part.take(piece)
            now = self._policy.monotonic()
            if now - told >= TELL_SECONDS:
                told = now
                of_all = f" of {shown_bytes(whole)}" if whole else ""
                self._progress.step(
                    f"{self._file.entry}: {shown_bytes(part.size)}{of_all}, "
                    f"{shown_rate(part.size - first, now - began)}"
                )

    def _gave_up(self, error: Exception, tries: int) -> DataError:
        if self._policy.monotonic() >= self._ends_at:
            return too_slow(self._file.entry, self._file.seconds)
        asked = f", also when asked {tries} times" if tries > 1 else ""
        return DataError(
            f"data: {self._file.entry}: {_words(error)}{asked}",
            hint="Run the job again later: what has come is kept. If it stays so, check the "
            "address in repro-gate.yml, and the proxy.",
            details=(safe_line(without_password(self._file.url)),),
        )

    def _refused(self, status: int) -> DataError:
        if status in REFUSED:
            hint = "The gate's account needs access: put a login for the host into its ~/.netrc."
        else:
            hint = FOLDER_OF_HOST
        return DataError(
            f"data: {self._file.entry}: {self._host} answered {status}",
            hint=hint,
            details=(safe_line(self._file.url),),
        )

    def _wrong(self, found: str, size: int) -> DataError:
        return DataError(
            f"data: {self._file.entry}: {self._file.url} has another SHA-256 than declared",
            hint="If the new content is wanted, write its digest into repro-gate.yml; nothing of "
            "it was kept.",
            details=(
                f"declared {self._file.sha256}",
                f"found    {found} ({size:,} bytes)",
            ),
        )

    def _fault(self, why: str) -> DataError:
        return DataError(
            f"data: {self._file.entry}: {self._host} {why}",
            hint=FOLDER_OF_HOST,
            details=(safe_line(self._file.url),),
        )


def _origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address that was checked."""
    parts = urlsplit(url)
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or usual


def _words(error: Exception) -> str:
    if isinstance(error, _TryAgainError):
        return str(error)
    if isinstance(error, requests.Timeout):
        return "the server did not answer"
    if isinstance(error, requests.exceptions.ChunkedEncodingError | HTTPError):
        return "the answer was cut off"
    if isinstance(error, requests.ConnectionError):
        return "the server cannot be reached"
    return "the answer cannot be read"
