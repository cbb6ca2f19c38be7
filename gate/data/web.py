"""Download a file: resumed after a break, retried, and hashed while it arrives.

Proxies, certificates and passwords come from environment variables and `.netrc`, as requests reads
them. `.netrc` knows hosts but no ports. So a login is sent only to the address in the settings, and
never to a redirect's.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from gate.data.cache import LIMIT_HINT
from gate.data.tools import TELL_SECONDS, shown_bytes, shown_rate, too_slow, without_password
from gate.errors import DataError
from gate.system.console import Progress
from gate.system.files import writing
from gate.system.http import (
    MAX_REDIRECTS,
    PIECE_BYTES,
    Astray,
    Connection,
    HttpRequest,
    RetryPolicy,
    Trouble,
    trouble_of,
    wait_seconds,
)
from gate.text.untrusted_text import safe_line, short_text

TRIES: Final = 5
# urllib3 does not retry: a broken download is resumed, so each try asks for a different range.
ONCE: Final = Retry(0, read=False)
WORDS: Final = {
    Trouble.SILENT: "the server did not answer",
    Trouble.CUT: "the answer was cut off",
    Trouble.UNREADABLE: "the answer cannot be read",
}
AGAIN: Final = frozenset({requests.codes.request_timeout, requests.codes.too_many_requests})
REFUSED: Final = frozenset({requests.codes.unauthorized, requests.codes.forbidden})
FOLDER_OF_HOST: Final = "Check the address in repro-gate.yml with `curl -fLO ADDRESS`."
_RANGE: Final = re.compile(r"bytes (?P<first>[0-9]{1,18})-[0-9]{1,18}/(?P<all>[0-9]{1,18}|\*)\Z")
_STRONG: Final = re.compile(r'"[\x21\x23-\x7e]{0,200}"\Z')


@dataclass(frozen=True, kw_only=True, slots=True)
class WebFile:
    """A file to download; `make_room` returns how many bytes may come, or raises if too many."""

    entry: str
    url: str
    sha256: str
    seconds: float
    make_room: Callable[[int], int]


class _TryAgainError(requests.RequestException):
    """A fault that another request may overcome, with the wait that the server asked for."""

    def __init__(self, why: str, wait_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.wait_seconds = wait_seconds


APPENDED: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class _Part:
    """The part of a file that has arrived, kept with the tag (ETag) that the server gave it."""

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
        """Discard everything and begin again."""
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
        # A weak tag does not promise equal bytes (RFC 9110, 13.1.5), so resuming needs a strong
        # one.
        if _STRONG.match(tag):
            writing.write_whole(self._tag_path, tag.encode("ascii"))


class Download(Connection):
    """The download of one file into a folder that is kept between calls of the gate."""

    def __init__(self, file: WebFile, progress: Progress, policy: RetryPolicy) -> None:
        self._file = file
        self._progress = progress
        self._host = urlsplit(file.url).netloc
        silence = min(policy.timeout_seconds, file.seconds)
        super().__init__(self._host, file.url, replace(policy, timeout_seconds=silence))
        self._ends_at = policy.monotonic() + file.seconds

    def fetch(self, staging: Path) -> Path:
        """Return the path of the complete file, which has the declared digest.

        Raises `DataError`. After a wrong digest, the download is discarded.
        """
        path = staging / "part"
        part = _Part(path)
        try:
            with self:
                self._to_the_end(part)
                if part.digest() != self._file.sha256 and part.resumed:
                    # A resumed download may have joined two versions of the file: fetch all of it
                    # once more.
                    part.restart()
                    self._to_the_end(part)
            if part.digest() != self._file.sha256:
                digest, size = part.digest(), part.size
                part.restart()
                raise self._wrong(digest, size)
        finally:
            part.close()
        return path

    def _to_the_end(self, part: _Part) -> None:
        tries = 0
        while True:
            before = part.size
            try:
                self._once(part)
            except (requests.RequestException, HTTPError) as error:
                if trouble_of(error) is Trouble.CERTIFICATE:
                    raise self._fault("has a certificate that is not trusted here") from error
                # A server that breaks off but sends something each time is asked again without
                # limit.
                tries = 1 if part.size > before else tries + 1
                wait = max(self.policy.backoff(tries - 1), getattr(error, "wait_seconds", 0.0))
                left = self._ends_at - self.policy.monotonic()
                if tries == TRIES or wait > left:
                    raise self._gave_up(error, tries) from error
                self._progress.step(f"{self._file.entry}: {_words(error)}; trying again")
                self.policy.sleep(wait)
            else:
                return

    def _once(self, part: _Part) -> None:
        headers = {"Range": f"bytes={part.size}-"} if part.size else {}
        if part.size and part.tag:
            headers["If-Range"] = part.tag
        ask = HttpRequest(method="GET", url=self._file.url, headers=headers)
        with self.opened(ask, ONCE) as response:
            whole = self._begun(response, part)
            room = self._file.make_room(max(0, (whole or 0) - part.size))
            self._take(response, part, room, whole)
        if whole is not None and part.size < whole:
            raise _TryAgainError("the answer was cut off")

    def authorization(self, url: str) -> requests.auth.AuthBase:
        """Return a login from `.netrc`; called for the address in the settings only."""
        login = requests.utils.get_netrc_auth(url)
        return requests.auth.HTTPBasicAuth(*login) if login else super().authorization(url)

    def looped(self) -> DataError:
        """Return the error for too many redirects."""
        return self._fault(f"redirects more than {MAX_REDIRECTS} times")

    def astray(self, url: str, why: Astray) -> DataError:
        """Return the error for a redirect to an address that is not allowed."""
        if why is Astray.NO_HOST:
            return self._fault("redirects to an address with a user name, or without a host")
        what = "not an address" if why is Astray.NO_ADDRESS else "not https"
        return self._fault(f"redirects to {short_text(url)}, which is {what}")

    def too_large(self, max_bytes: int) -> DataError:
        """Return the error for more bytes than there is room for."""
        return DataError(
            f"data: {self._file.entry}: the download exceeds {max_bytes:,} bytes", hint=LIMIT_HINT
        )

    def too_slow(self, seconds: float) -> DataError:  # noqa: ARG002 - of one try: told is that of all
        """Return the error for a download that exceeds the time in the settings."""
        return too_slow(self._file.entry, self._file.seconds)

    def _begun(self, response: requests.Response, part: _Part) -> int | None:
        """Check an answer's beginning; return the whole file's size if the server reports it."""
        status = response.status_code
        # The server has no byte after this part, so its file is another version: begin again.
        if status == requests.codes.requested_range_not_satisfiable and part.size:
            part.restart()
            raise _TryAgainError("the server has another version of the file")
        if status in AGAIN or status >= requests.codes.internal_server_error:
            wait = response.headers.get("Retry-After", "")
            seconds = wait_seconds(wait) if wait else 0.0
            raise _TryAgainError(f"{self._host} answered {status}", seconds)
        span = _RANGE.match(response.headers.get("Content-Range", ""))
        if status == requests.codes.partial_content:
            # A different range would be appended at the wrong place.
            if span is None or int(span["first"]) != part.size:
                part.restart()
                raise _TryAgainError("the server sent a different range than requested")
            part.resumed = True
            return None if span["all"] == "*" else int(span["all"])
        if status != requests.codes.ok:
            raise self._refused(status)
        part.restart()
        part.keep_tag(response.headers.get("ETag", ""))
        length = response.headers.get("Content-Length", "")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None  # noqa: PLR2004 - below 2**63

    def _take(self, response: requests.Response, part: _Part, room: int, whole: int | None) -> None:
        began = last_notice = self.policy.monotonic()
        first = part.size
        for piece in self.pieces(response.raw, room, max(0.0, self._ends_at - began)):
            part.take(piece)
            now = self.policy.monotonic()
            if now - last_notice >= TELL_SECONDS:
                last_notice = now
                of_all = f" of {shown_bytes(whole)}" if whole else ""
                self._progress.step(
                    f"{self._file.entry}: {shown_bytes(part.size)}{of_all}, "
                    f"{shown_rate(part.size - first, now - began)}"
                )

    def _gave_up(self, error: Exception, tries: int) -> DataError:
        if self.policy.monotonic() >= self._ends_at:
            return too_slow(self._file.entry, self._file.seconds)
        asked = f", also when asked {tries} times" if tries > 1 else ""
        return DataError(
            f"data: {self._file.entry}: {_words(error)}{asked}",
            hint="Run the job again later: what was downloaded is kept. If this persists, "
            "check the address in repro-gate.yml, and the proxy.",
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

    def _wrong(self, digest: str, size: int) -> DataError:
        return DataError(
            f"data: {self._file.entry}: {self._file.url} has another SHA-256 than declared",
            hint="If the new content is wanted, write its digest into repro-gate.yml; the download "
            "was "
            "discarded.",
            details=(
                f"declared {self._file.sha256}",
                f"found    {digest} ({size:,} bytes)",
            ),
        )

    def _fault(self, why: str) -> DataError:
        return DataError(
            f"data: {self._file.entry}: {self._host} {why}",
            hint=FOLDER_OF_HOST,
            details=(safe_line(self._file.url),),
        )


def _words(error: Exception) -> str:
    if isinstance(error, _TryAgainError):
        return str(error)
    return WORDS.get(trouble_of(error), "the server cannot be reached")
