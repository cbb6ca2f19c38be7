"""The one HTTP client: bounded, repeated after a fault, its login sent to one address alone.

A service whose rules or words differ extends `Connection`: `gate/system/github/api.py`,
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
# manifests, lists and refusals have a few kB
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
BLOCK_BYTES: Final = 64 * 1024
# a transfer may take the time of a short answer, and a second for each so many bytes
LEAST_BYTES_PER_SECOND: Final = 256 * 1024
# the verdict waits for this too
LONGEST_UPLOAD_SECONDS: Final = 900.0
# a service that asks for patience without saying for how long
UNKNOWN_WAIT_SECONDS: Final = 60.0
TOLD_CHARACTERS: Final = 200
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
TRANSIENT: Final = frozenset({requests.codes.too_many_requests, *range(500, 600)})
AGAIN: Final = "Try again; if this persists, check the network and the address."
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyLimits:
    """How much of a body is taken, and what to raise for one that is larger or slower.

    `decoded`: the size counts what a compressed body becomes; else bytes are taken as they were
    sent.
    """

    piece_bytes: int
    max_bytes: int
    seconds: float
    monotonic: Callable[[], float]
    too_large: Callable[[], GateError]
    too_slow: Callable[[], GateError]
    decoded: bool = True


def bounded_pieces(response: BaseHTTPResponse, limits: BodyLimits) -> Iterator[bytes]:
    """The body in pieces; raises what `limits` says, and urllib3's `HTTPError` when cut off."""
    end = limits.monotonic() + limits.seconds
    taken = 0
    while piece := response.read1(limits.piece_bytes, decode_content=limits.decoded):
        taken += len(piece)
        if taken > limits.max_bytes:
            raise limits.too_large()
        # a body that drips in byte by byte is never silent, so no time limit of a socket ends it
        if limits.monotonic() > end:
            raise limits.too_slow()
        yield piece


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How long an answer may take, and how long to wait between requests.

    `timeout_seconds` bounds silence and `answer_seconds` the whole of an answer: one that drips
    in byte by byte is never silent. Nothing is asked again later than `longest_wait_seconds` after
    the first try: a job's machine may cost more than the comment is worth. The clock and the sleep
    are the system's, but for tests.
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
        """Seconds before a request that failed `tries` times is sent again."""
        return self.backoff_seconds * (1 << tries)


GITHUB_POLICY: Final = RetryPolicy()
# who checks a large upload may be silent for a while
POLICY: Final = RetryPolicy(timeout_seconds=60.0)


class Retries(Retry):
    """urllib3's retries of one request, up to a moment of the policy's monotonic clock.

    Only a `repeatable` one is sent again after a fault. A service with limits of its own says in
    `wait_after` how long each of them lasts.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        ends_at: float,
        *,
        repeatable: bool,
        **counts: Any,  # noqa: ANN401 - urllib3's own, as `new` hands them on
    ) -> None:
        # an answer that is a fault to the end is handed on, for its words
        rules: dict[str, Any] = {"status_forcelist": TRANSIENT, "raise_on_status": False}
        # any method as far as urllib3 knows: of none at all it would make any too
        super().__init__(**{"total": RETRIES, "allowed_methods": None} | rules | counts)
        self._policy = policy
        self._ends_at = ends_at
        self._repeatable = repeatable
        self._wait_seconds = 0.0

    def new(self, **counts: Any) -> Self:  # noqa: ANN401 - as above
        """The same rules with other counts."""
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
        """Whether an answer is a fault to repeat."""
        return self._repeatable and super().is_retry(method, status_code, has_retry_after)

    def wait_after(self, response: BaseHTTPResponse | None, left: float) -> float:  # noqa: ARG002 - for limits that last longer
        """Seconds to wait after a fault, or as long as the service asks for."""
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
        """The retry after this one; `MaxRetryError` or the answer's own error without another."""
        left = self._ends_at - self._policy.monotonic()
        try:
            wait = self.wait_after(response, left)
        except HTTPError as broken_off:
            return self.increment(method, url, error=broken_off, _pool=_pool)
        left = min(left, self._policy.longest_wait_seconds)
        # urllib3 itself would repeat some errors whatever the method, as one of TLS in an answer
        if wait > left or (error is not None and not self._repeatable):
            raise MaxRetryError(_pool, url, error) from error  # type: ignore[arg-type] # as urllib3's own
        following = super().increment(method, url, response, error, _pool, _stacktrace)
        if response is not None:
            # urllib3 would read the rest of it, however much that is and however slowly it comes
            response.close()
        following._wait_seconds = wait  # noqa: SLF001 - of this class
        return following

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:  # noqa: ARG002 - urllib3's signature
        """Wait as long as the last answer, or the fault, asks for."""
        self._policy.sleep(self._wait_seconds)


def wait_seconds(retry_after: str) -> float:
    """How long the header `Retry-After` asks to wait; a minute where that is not understood."""
    seconds = seconds_of(retry_after)
    return UNKNOWN_WAIT_SECONDS if seconds is None else seconds


def seconds_of(text: str) -> float | None:
    """A count of seconds in ASCII digits; nothing else is understood."""
    short = text.strip()
    # `Retry-After` may be a date as well (RFC 9110, 10.2.3): GitHub sends seconds
    return float(short) if short.isascii() and short.isdigit() and len(short) <= 12 else None  # noqa: PLR2004 - longer than any date in seconds


class Upload:
    """What requests sends as a stream of a known length: no part of it is kept.

    `late` is raised where the stream is asked for more once `is_late` says so.
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
        """The next piece; raises `late` once the time is over."""
        # who takes a byte now and then is never silent, so no time limit of a socket ends it
        if self._is_late():
            raise self._late
        return self._stream.read(size if size > 0 else BLOCK_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """One request; `max_bytes` bounds the answer. A `repeatable` one may be carried out twice.

    Unless `follow`, an answer that leads elsewhere is the answer.
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
    """An answer that arrived whole; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class UnansweredError(PublishError):
    """A request that may or may not have been carried out: another try may succeed."""


class Trouble(Enum):
    """Why there is no answer."""

    SILENT = "silent"
    CERTIFICATE = "certificate"
    CUT = "cut"
    PROXY = "proxy"
    UNREACHED = "unreached"
    UNREADABLE = "unreadable"


def trouble_of(error: Exception) -> Trouble:
    """What an exception of requests or urllib3 means; its own text may quote headers."""
    # of several tries, requests does not tell the last one's silence as a timeout
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
    """Why an address is not asked."""

    NO_ADDRESS = "no address"
    NOT_HTTPS = "anyone on the network path could read it"
    NO_HOST = "no host, or a user name"


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: another port of a machine is another service."""
    parts = urlsplit(url)
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or usual


def _all_of(pieces: Iterator[bytes], least_bytes: int) -> Iterator[bytes]:
    """The pieces; an answer that says it ends before they are enough was cut off too."""
    taken = 0
    for piece in pieces:
        taken += len(piece)
        yield piece
    if taken < least_bytes:
        message = "it ended too early"
        raise ProtocolError(message)


class _Session(requests.Session):
    """Leaves redirects alone: requests would read the body of each, however long it is."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: they are followed by hand."""
        del resp


class _Authorization(requests.auth.AuthBase):
    """Sets the header, or none; being explicit, it keeps .netrc out."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.pop("Authorization", None)
        if self._value:
            request.headers["Authorization"] = self._value
        return request


class Connection:
    """A service by its name in messages; a context manager that closes its connections.

    Every failure is a `PublishError`. What was named by `hide` is never in one.
    """

    # the methods that go where a redirect leads; 303 always leads to something to GET
    followed: ClassVar[frozenset[str]] = frozenset({"GET"})
    # whether answers may come compressed: what is stored by its digest is taken as it is sent
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
        """Keep these out of every message, of servers too."""
        self._secrets += [secret for secret in secrets if secret and secret not in self._secrets]

    def log_in(self, login: Login) -> None:
        """Show a login from now on, to this service's own address alone."""
        self.hide(*login.secrets)
        self._login = login

    def trust(self, authorities: str) -> None:
        """Believe the certificates of this file alone, in PEM."""
        self._authorities = authorities

    def ask(self, ask: HttpRequest) -> HttpAnswer:
        """Send a request; an answer below 500 is the caller's to judge."""
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
        """Hand the pieces of a large answer to `take`, again for every try.

        They are `size_bytes`, and not one more; unless `exactly`, they may be fewer.
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
        """A file as the body of a request, from its beginning; taken too slowly, it is given up."""
        stream.seek(0)
        seconds = min(LONGEST_UPLOAD_SECONDS, self.transfer_seconds(size_bytes))
        ends_at = self.policy.monotonic() + seconds
        late = self.fault(f"did not take the file within {seconds:,.0f} s")
        return Upload(stream, size_bytes, lambda: self.policy.monotonic() > ends_at, late)

    def transfer_seconds(self, size_bytes: int) -> float:
        """How long so many bytes may take."""
        return self.policy.answer_seconds + size_bytes / LEAST_BYTES_PER_SECOND

    def retries(self, ask: HttpRequest, ends_at: float) -> Retry:
        """How often and how long a request is repeated."""
        return Retries(self.policy, ends_at, repeatable=ask.repeatable)

    @contextmanager
    def opened(self, ask: HttpRequest, retry: Retry) -> Iterator[requests.Response]:
        """The answer behind all redirects, each looked at before it is followed."""
        for _ in range(MAX_REDIRECTS + 1):
            with self._sent(ask, retry) as response:
                status = response.status_code
                follows = ask.follow and ask.method in self.followed and status in REDIRECTS
                # 303 answers with another page, to be got in its place (RFC 9110, 15.4.4)
                if not follows or (status == requests.codes.see_other and ask.method != "GET"):
                    yield response
                    return
                location = response.headers.get("Location", "")
            ask = replace(ask, url=self.next_address(ask.url, location))
        raise self.looped()

    def pieces(self, response: BaseHTTPResponse, max_bytes: int, seconds: float) -> Iterator[bytes]:
        """The body, up to a size and within a time, however slowly it comes."""
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
        """Where an answer leads; `PublishError` unless it may be asked, see `check_address`."""
        try:
            following = urljoin(url, location)
        except ValueError as error:
            raise self.astray(location, Astray.NO_ADDRESS) from error
        self.check_address(following)
        return following

    def check_address(self, url: str) -> None:
        """`PublishError` for no address, and for one that everybody on the way could read."""
        try:
            scheme, host, _ = origin_of(url)
            place, own = urlsplit(url).netloc, urlsplit(self._base)
        except ValueError as error:
            raise self.astray(url, Astray.NO_ADDRESS) from error
        plain = scheme == own.scheme == "http" and {host, own.hostname} <= LOOPBACK
        if scheme != "https" and not plain:
            raise self.astray(url, Astray.NOT_HTTPS)
        # a backslash ends the host for some readers of addresses, and not for others
        if not host or set(place) & set("@\\"):
            raise self.astray(url, Astray.NO_HOST)

    def judged(self, answer: HttpAnswer) -> HttpAnswer:
        """The answer, unless its status says that there is none."""
        if answer.status in TRANSIENT:
            raise UnansweredError(f"{self.name} answered {answer.status}", hint=AGAIN)
        return answer

    def refused(self, answer: HttpAnswer, hint: str, words: str = "") -> PublishError:
        """An answer that is none, in words: its status, and what the service says about it."""
        shown = self._shown(words)
        return PublishError(
            f"{self.name} answered {answer.status}", hint=hint, details=(shown,) if shown else ()
        )

    def fault(self, why: str, hint: str = AGAIN) -> PublishError:
        """What is wrong with this service, as an error."""
        return PublishError(f"{self.name} {why}", hint=hint)

    def not_given(self, answer: HttpAnswer) -> GateError:
        """Another status than 200 where a file was asked for."""
        return self.refused(answer, AGAIN)

    def too_large(self, max_bytes: int) -> GateError:
        """An answer of more bytes than are taken."""
        return self.fault(
            f"sent more than {max_bytes:,} bytes", "Check the address, and the proxy."
        )

    def too_slow(self, seconds: float) -> GateError:
        """An answer that did not come whole within a time."""
        return self.fault(f"did not answer within {seconds:,.0f} s")

    def looped(self) -> GateError:
        """Redirects without an end."""
        return self.fault(f"redirects more than {MAX_REDIRECTS} times")

    def astray(self, url: str, why: Astray) -> GateError:
        """An address that is not asked."""
        shown = self._shown(url)
        if why is Astray.NO_ADDRESS:
            return self.fault(f"leads to {shown}, which is not an address")
        hint = "Without TLS only this machine itself is contacted."
        return self.fault(f"leads to {shown}, which is not https", hint)

    def unreached(self, error: Exception) -> GateError:
        """A connection that failed; the exception's own text may quote headers, and stays out."""
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
        """Somebody else's words as one short line without a secret."""
        # replaced before it is cut: half a secret at the end would not be found
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return safe_line(text, limit=TOLD_CHARACTERS)

    def _whole(self, response: requests.Response, ask: HttpRequest) -> HttpAnswer:
        pieces = self.pieces(response.raw, ask.max_bytes, self.policy.answer_seconds)
        content = b"" if ask.method == "HEAD" else b"".join(pieces)
        # nobody has to know how a server spells the names of headers
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
                        # urllib3's own retries end where the text of an answer begins
                        used = response.raw.retries or retry
                        retry = used.increment(ask.method, ask.url, error=broken_off)
                retry.sleep()
        except (requests.RequestException, HTTPError) as error:
            raise self.unreached(error) from error

    def _sent(self, ask: HttpRequest, retry: Retry) -> requests.Response:
        origin = origin_of(ask.url)
        if origin != self._at:
            # a cookie knows no port (RFC 6265, 8.5)
            self._session.cookies.clear()
            self._at = origin
        # on this machine: a proxy elsewhere would be sent the credentials in the clear
        self._session.trust_env = origin[0] == "https" or origin[1] not in LOOPBACK
        self._adapter.max_retries = retry
        return self._session.request(
            ask.method,
            ask.url,
            data=ask.body,
            headers=dict(ask.headers),
            auth=self.authorization(ask.url) if origin == self.origin else _Authorization(""),
            timeout=self.policy.timeout_seconds,
            # said with each request: a session's own is overridden by REQUESTS_CA_BUNDLE
            verify=self._authorities,
            allow_redirects=False,
            stream=True,
        )

    def authorization(self, url: str) -> requests.auth.AuthBase:  # noqa: ARG002 - for a login by host
        """What this service's own address is shown."""
        return _Authorization(self._login.header if self._login is not None else "")
