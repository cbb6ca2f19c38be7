"""The HTTP client of the gate: bounded answers, retries after faults, a login for one address only.

A service whose rules or messages differ extends `Connection`: see `gate/system/github/api.py` and
`gate/data/web.py`. Proxies and certificates come from the usual environment variables, as requests
reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Final, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, Retry
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import HTTPError, MaxRetryError, ProtocolError, ReadTimeoutError

from gate.errors import GateError, PublishError
from gate.system.login import LOOPBACK, Login
from gate.text.untrusted_text import safe_line

RETRIES: Final = 3
MAX_REDIRECTS: Final = 5
# manifests, lists and error messages have a few kB
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
BLOCK_BYTES: Final = 64 * 1024
# A transfer gets the time of a short answer, plus one second for each of these many bytes.
LEAST_BYTES_PER_SECOND: Final = 256 * 1024
# The verdict waits for uploads, so even a large one ends after this time.
LONGEST_UPLOAD_SECONDS: Final = 900.0
# the wait if a service sends Retry-After in a form that is not understood
UNKNOWN_WAIT_SECONDS: Final = 60.0
TOLD_CHARACTERS: Final = 200
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
TRANSIENT: Final = frozenset({requests.codes.too_many_requests, *range(500, 600)})
AGAIN: Final = "Try again; if this persists, check the network and the address."
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyLimits:
    """How much of a body is accepted, and which error to raise for a larger or slower one.

    With `decoded`, a compressed body is unpacked, and its size counts after that.
    """

    piece_bytes: int
    max_bytes: int
    seconds: float
    monotonic: Callable[[], float]
    too_large: Callable[[], GateError]
    too_slow: Callable[[], GateError]
    decoded: bool = True


def bounded_pieces(response: BaseHTTPResponse, limits: BodyLimits) -> Iterator[bytes]:
    """Yield the body in pieces; raises the errors in `limits`, and urllib3's `HTTPError`."""
    end = limits.monotonic() + limits.seconds
    taken = 0
    while piece := response.read1(limits.piece_bytes, decode_content=limits.decoded):
        taken += len(piece)
        if taken > limits.max_bytes:
            raise limits.too_large()
        # A socket timeout only limits silence, so it never ends a body that arrives byte by byte.
        if limits.monotonic() > end:
            raise limits.too_slow()
        yield piece


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How long an answer may take, and how long to wait between requests.

    `timeout_seconds` limits silence, and `answer_seconds` a whole answer that may arrive byte by
    byte. No request is repeated later than `longest_wait_seconds` after the first try, because a
    waiting job's machine costs money. Tests replace the clocks and the sleep.
    """

    timeout_seconds: float = 20.0
    answer_seconds: float = 60.0
    backoff_seconds: float = 1.0
    pause_seconds: float = 1.0
    longest_wait_seconds: float = 120.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)
    now: Callable[[], float] = field(default=time.time, repr=False)

    def backoff(self, tries: int) -> float:
        """Return the seconds to wait after `tries` failed tries; they double with each try."""
        return self.backoff_seconds * (1 << tries)


GITHUB_POLICY: Final = RetryPolicy()
# A registry that checks a large upload may be silent for a while.
POLICY: Final = RetryPolicy(timeout_seconds=60.0)


class Retries(Retry):
    """The retries of urllib3 for one request, until `ends_at` on the policy's monotonic clock.

    After a fault only a `repeatable` request is sent again. A service with rate limits overrides
    `wait_after`, which returns how long each limit lasts.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        ends_at: float,
        *,
        repeatable: bool,
        **counts: Any,  # noqa: ANN401 - urllib3's own, as `new` hands them on
    ) -> None:
        # After the last try a faulty answer is returned, not raised: its words are shown.
        rules: dict[str, Any] = {"status_forcelist": TRANSIENT, "raise_on_status": False}
        # None and an empty set both mean any method to urllib3, so `is_retry` decides.
        super().__init__(**{"total": RETRIES, "allowed_methods": None} | rules | counts)
        self._policy = policy
        self._ends_at = ends_at
        self._repeatable = repeatable
        self._wait_seconds = 0.0

    def new(self, **counts: Any) -> Self:  # noqa: ANN401 - as above
        """Return a copy with other counts; urllib3 calls this for each retry."""
        rules = {
            "policy": self._policy,
            "ends_at": self._ends_at,
            "repeatable": self._repeatable,
        }
        return super().new(**rules | counts)

    def is_retry(
        self,
        method: str,
        status_code: int,
        has_retry_after: bool = False,  # noqa: FBT001, FBT002 - urllib3's signature
    ) -> bool:
        """Return whether an answer is a fault after which the request is repeated."""
        return self._repeatable and super().is_retry(method, status_code, has_retry_after)

    def wait_after(self, response: BaseHTTPResponse | None, left: float) -> float:  # noqa: ARG002 - for limits that last longer
        """Return the seconds to wait after a fault: what the service asks for, or the backoff."""
        wait = response.headers.get("Retry-After", "") if response is not None else ""
        return wait_seconds(wait) if wait else self._policy.backoff(len(self.history))

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """Return the state after one more retry; `MaxRetryError` if no try or time is left."""
        left = self._ends_at - self._policy.monotonic()
        try:
            wait = self.wait_after(response, left)
        except HTTPError as broken_off:
            return self.increment(method, url, error=broken_off, _pool=_pool)
        left = min(left, self._policy.longest_wait_seconds)
        # urllib3 would repeat some errors for any method, such as a TLS error inside an answer.
        if wait > left or (error is not None and not self._repeatable):
            raise MaxRetryError(_pool, url, error) from error  # type: ignore[arg-type] # as urllib3's own
        following = super().increment(method, url, response, error, _pool, _stacktrace)
        if response is not None:
            # urllib3 would drain the rest of the body, however long and slow it is.
            response.close()
        following._wait_seconds = wait  # noqa: SLF001 - of this class
        return following

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:  # noqa: ARG002 - urllib3's signature
        """Wait as long as the last answer or the backoff asks for."""
        self._policy.sleep(self._wait_seconds)


def wait_seconds(retry_after: str) -> float:
    """Return the wait that the header `Retry-After` asks for; a minute if it is not understood."""
    seconds = seconds_of(retry_after)
    return UNKNOWN_WAIT_SECONDS if seconds is None else seconds


def seconds_of(text: str) -> float | None:
    """Return a number of seconds written in ASCII digits, or None for anything else."""
    short = text.strip()
    # RFC 9110, 10.2.3 also allows a date in `Retry-After`, but GitHub sends seconds.
    return float(short) if short.isascii() and short.isdigit() and len(short) <= 12 else None  # noqa: PLR2004 - longer than any date in seconds


class Upload:
    """A request body of known length that is streamed, not kept in memory.

    Raises `late` when the connection asks for more bytes after `is_late` returns true.
    """

    def __init__(
        self, stream: BinaryIO, size_bytes: int, is_late: Callable[[], bool], late: GateError
    ) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._is_late = is_late
        self._late = late

    def __len__(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(BLOCK_BYTES):
            yield block

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return the next piece; raises `late` once the time is over."""
        # A receiver that takes a byte now and then is never silent, so no socket timeout ends it.
        if self._is_late():
            raise self._late
        return self._stream.read(size if size > 0 else BLOCK_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """One request; `max_bytes` limits the answer.

    A `repeatable` one may be carried out twice. Without `follow` a redirect is the answer.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Upload | None = None
    max_bytes: int = MAX_ANSWER_BYTES
    repeatable: bool = True
    follow: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpAnswer:
    """An answer that arrived completely; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class UnansweredError(PublishError):
    """No answer arrived: the request may have been carried out or not, and a retry may succeed."""


class Trouble(Enum):
    """Why there is no answer."""

    SILENT = "silent"
    CERTIFICATE = "certificate"
    CUT = "cut"
    PROXY = "proxy"
    UNREACHED = "unreached"
    UNREADABLE = "unreadable"


def trouble_of(error: Exception) -> Trouble:
    """Return what an exception of requests or urllib3 means; its text may quote credentials."""
    # After several tries requests raises another type, with the read timeout in `reason`.
    last = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(error, requests.Timeout) or isinstance(last, ReadTimeoutError):
        return Trouble.SILENT
    if isinstance(error, requests.exceptions.SSLError):
        return Trouble.CERTIFICATE
    if isinstance(error, requests.exceptions.ChunkedEncodingError | HTTPError):
        return Trouble.CUT
    if isinstance(error, requests.exceptions.ProxyError):
        return Trouble.PROXY
    if isinstance(error, requests.ConnectionError):
        return Trouble.UNREACHED
    return Trouble.UNREADABLE


class Astray(Enum):
    """Why no request is sent to an address."""

    NO_ADDRESS = "no address"
    NOT_HTTPS = "anyone on the network path could read it"
    NO_HOST = "no host, or a user name"


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of a URL: a different port is a different service."""
    parts = urlsplit(url)
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or usual


def _all_of(pieces: Iterator[bytes], least_bytes: int) -> Iterator[bytes]:
    """Yield the pieces; raises `ProtocolError` if an answer ends properly, but too early."""
    taken = 0
    for piece in pieces:
        taken += len(piece)
        yield piece
    if taken < least_bytes:
        message = "it ended too early"
        raise ProtocolError(message)


class _Session(requests.Session):
    """A session that follows no redirect: requests would read each one's body, however long."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None, so that `Connection.opened` follows redirects itself."""
        del resp


class _Authorization(requests.auth.AuthBase):
    """Sets the header, or removes it; an explicit login also keeps requests from using .netrc."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.pop("Authorization", None)
        if self._value:
            request.headers["Authorization"] = self._value
        return request


class Connection:
    """A service with its name for messages; a context manager that closes its connections.

    Every failure is a `PublishError`, and no message contains what `hide` was given.
    """

    # Methods whose redirects are followed. 303 always means to GET another page.
    followed: ClassVar[frozenset[str]] = frozenset({"GET"})
    # Whether answers may be compressed. Files that are stored by digest must arrive as sent.
    compressed: ClassVar[bool] = False

    def __init__(self, name: str, base: str, policy: RetryPolicy) -> None:
        self.name = name
        self.policy = policy
        self._secrets: list[str] = []
        self._base = base
        self.check_address(base)
        self.origin = origin_of(base)
        self._login: Login | None = None
        self._authorities: str | None = None
        self._at = self.origin
        self._adapter = HTTPAdapter()
        self._session = _Session()
        self._session.headers["User-Agent"] = "repro-gate"
        if not self.compressed:
            self._session.headers["Accept-Encoding"] = "identity"
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, self._adapter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def hide(self, *secrets: str) -> None:
        """Replace these secrets in every message, also in a server's own words."""
        self._secrets += [secret for secret in secrets if secret and secret not in self._secrets]

    def log_in(self, login: Login) -> None:
        """Send a login from now on, but only to this service's own address."""
        self.hide(*login.secrets)
        self._login = login

    def trust(self, authorities: str) -> None:
        """Accept only certificates that the authorities in this PEM file have signed."""
        self._authorities = authorities

    def ask(self, ask: HttpRequest) -> HttpAnswer:
        """Send a request and return the answer; the caller judges every status below 500."""
        patience = self.policy.longest_wait_seconds
        return self.judged(
            self._repeated(ask, lambda response: self._whole(response, ask), patience)
        )

    def receive(
        self,
        ask: HttpRequest,
        size_bytes: int,
        take: Callable[[Iterator[bytes]], _T],
        *,
        exactly: bool = True,
    ) -> _T:
        """Pass the pieces of a large answer to `take`, and return its result.

        The answer must have exactly `size_bytes`, or at most that many if `exactly` is false.
        `take` is called again for each retry, so it must start over each time.
        """
        seconds = self.transfer_seconds(size_bytes)

        def act(response: requests.Response) -> _T | HttpAnswer:
            if response.status_code != requests.codes.ok:
                return HttpAnswer(status=response.status_code, headers={}, content=b"")
            pieces = self.pieces(response.raw, size_bytes, seconds)
            return take(_all_of(pieces, size_bytes if exactly else 0))

        answer = self._repeated(ask, act, self.policy.longest_wait_seconds + seconds)
        if isinstance(answer, HttpAnswer):
            raise self.not_given(answer)
        return answer

    def upload(self, stream: BinaryIO, size_bytes: int) -> Upload:
        """Return a whole file as a request body, which gives up on a receiver that is too slow."""
        stream.seek(0)
        seconds = min(LONGEST_UPLOAD_SECONDS, self.transfer_seconds(size_bytes))
        ends_at = self.policy.monotonic() + seconds
        late = self.fault(f"did not take the file within {seconds:,.0f} s")
        return Upload(stream, size_bytes, lambda: self.policy.monotonic() > ends_at, late)

    def transfer_seconds(self, size_bytes: int) -> float:
        """Return how long a transfer of this size may take."""
        return self.policy.answer_seconds + size_bytes / LEAST_BYTES_PER_SECOND

    def retries(self, ask: HttpRequest, ends_at: float) -> Retry:
        """Return how often and how long a request is repeated."""
        return Retries(self.policy, ends_at, repeatable=ask.repeatable)

    @contextmanager
    def opened(self, ask: HttpRequest, retry: Retry) -> Iterator[requests.Response]:
        """Provide the final answer; each redirect's address is checked before it is followed."""
        for _ in range(MAX_REDIRECTS + 1):
            with self._sent(ask, retry) as response:
                status = response.status_code
                follows = ask.follow and ask.method in self.followed and status in REDIRECTS
                # 303 points to another page to GET instead (RFC 9110, 15.4.4).
                if not follows or (status == requests.codes.see_other and ask.method != "GET"):
                    yield response
                    return
                location = response.headers.get("Location", "")
            ask = replace(ask, url=self.next_address(ask.url, location))
        raise self.looped()

    def pieces(self, response: BaseHTTPResponse, max_bytes: int, seconds: float) -> Iterator[bytes]:
        """Yield the body, limited in size and in total time."""
        limits = BodyLimits(
            piece_bytes=PIECE_BYTES,
            max_bytes=max_bytes,
            seconds=seconds,
            monotonic=self.policy.monotonic,
            too_large=lambda: self.too_large(max_bytes),
            too_slow=lambda: self.too_slow(seconds),
            decoded=self.compressed,
        )
        return bounded_pieces(response, limits)

    def next_address(self, url: str, location: str) -> str:
        """Return the address of a redirect; raises `PublishError` as `check_address` does."""
        try:
            following = urljoin(url, location)
        except ValueError as error:
            raise self.astray(location, Astray.NO_ADDRESS) from error
        self.check_address(following)
        return following

    def check_address(self, url: str) -> None:
        """Raise `PublishError` for an invalid address, or one without TLS to another machine."""
        try:
            scheme, host, _ = origin_of(url)
            place, own = urlsplit(url).netloc, urlsplit(self._base)
        except ValueError as error:
            raise self.astray(url, Astray.NO_ADDRESS) from error
        # Without TLS only between loopback addresses, and only if the settings name one.
        plain = scheme == own.scheme == "http" and {host, own.hostname} <= LOOPBACK
        if scheme != "https" and not plain:
            raise self.astray(url, Astray.NOT_HTTPS)
        # URL parsers disagree about a backslash; a user name before an `@` can look like a host.
        if not host or set(place) & set("@\\"):
            raise self.astray(url, Astray.NO_HOST)

    def judged(self, answer: HttpAnswer) -> HttpAnswer:
        """Return the answer, or raise `UnansweredError` if its status is a transient fault."""
        if answer.status in TRANSIENT:
            raise UnansweredError(f"{self.name} answered {answer.status}", hint=AGAIN)
        return answer

    def refused(self, answer: HttpAnswer, hint: str, words: str = "") -> PublishError:
        """Return the error for a refusal: its status, and what the service says about it."""
        shown = self._shown(words)
        return PublishError(
            f"{self.name} answered {answer.status}", hint=hint, details=(shown,) if shown else ()
        )

    def fault(self, why: str, hint: str = AGAIN) -> PublishError:
        """Return an error that names this service and says what is wrong with it."""
        return PublishError(f"{self.name} {why}", hint=hint)

    def not_given(self, answer: HttpAnswer) -> GateError:
        """Return the error for a status other than 200 where a file was asked for."""
        return self.refused(answer, AGAIN)

    def too_large(self, max_bytes: int) -> GateError:
        """Return the error for an answer with more bytes than are accepted."""
        return self.fault(
            f"sent more than {max_bytes:,} bytes", "Check the address, and the proxy."
        )

    def too_slow(self, seconds: float) -> GateError:
        """Return the error for an answer that was not complete in time."""
        return self.fault(f"did not answer within {seconds:,.0f} s")

    def looped(self) -> GateError:
        """Return the error for too many redirects."""
        return self.fault(f"redirects more than {MAX_REDIRECTS} times")

    def astray(self, url: str, why: Astray) -> GateError:
        """Return the error for an address to which no request is sent."""
        shown = self._shown(url)
        if why is Astray.NO_ADDRESS:
            return self.fault(f"leads to {shown}, which is not an address")
        hint = "Without TLS only this machine itself is contacted."
        return self.fault(f"leads to {shown}, which is not https", hint)

    def unreached(self, error: Exception) -> GateError:
        """Return the error for a failed connection, without its text, which may quote headers."""
        silence = f"did not answer within {self.policy.timeout_seconds:g} s"
        words = {
            Trouble.SILENT: silence,
            Trouble.CERTIFICATE: "has a certificate that is not trusted here",
            Trouble.CUT: "closed the connection too early",
            Trouble.UNREADABLE: "gave an answer that cannot be read",
        }
        why = words.get(trouble_of(error), "cannot be reached")
        return UnansweredError(f"{self.name} {why}", hint=AGAIN)

    def _shown(self, text: str) -> str:
        """Return a server's words as one short line without secrets."""
        # Mask before shortening: a secret that is cut in half would not be found.
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return safe_line(text, limit=TOLD_CHARACTERS)

    def _whole(self, response: requests.Response, ask: HttpRequest) -> HttpAnswer:
        pieces = self.pieces(response.raw, ask.max_bytes, self.policy.answer_seconds)
        content = b"" if ask.method == "HEAD" else b"".join(pieces)
        # Lower case, so that callers need not know a server's spelling of header names.
        headers = {name.lower(): value for name, value in response.headers.items()}
        return HttpAnswer(status=response.status_code, headers=headers, content=content)

    def _repeated(
        self, ask: HttpRequest, act: Callable[[requests.Response], _T], patience_seconds: float
    ) -> _T:
        retry = self.retries(ask, self.policy.monotonic() + patience_seconds)
        try:
            while True:
                with self.opened(ask, retry) as response:
                    try:
                        return act(response)
                    except HTTPError as broken_off:
                        # urllib3's own retries cover the request only, not the reading of the body.
                        used = response.raw.retries or retry
                        retry = used.increment(ask.method, ask.url, error=broken_off)
                retry.sleep()
        except (requests.RequestException, HTTPError) as error:
            raise self.unreached(error) from error

    def _sent(self, ask: HttpRequest, retry: Retry) -> requests.Response:
        origin = origin_of(ask.url)
        if origin != self._at:
            # Cookies know no ports (RFC 6265, 8.5): another service on this host would get them.
            self._session.cookies.clear()
            self._at = origin
        # For plain http on this machine: a proxy elsewhere would get the credentials unencrypted.
        self._session.trust_env = origin[0] == "https" or origin[1] not in LOOPBACK
        self._adapter.max_retries = retry
        return self._session.request(
            ask.method,
            ask.url,
            data=ask.body,
            headers=dict(ask.headers),
            auth=self.authorization(ask.url) if origin == self.origin else _Authorization(""),
            timeout=self.policy.timeout_seconds,
            # Set for each request, because REQUESTS_CA_BUNDLE overrides the session's own setting.
            verify=self._authorities,
            allow_redirects=False,
            stream=True,
        )

    def authorization(self, url: str) -> requests.auth.AuthBase:  # noqa: ARG002 - for a login by host
        """Return the authorization for this service's own address."""
        return _Authorization(self._login.header if self._login is not None else "")
