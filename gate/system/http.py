"""Requests to one service: bounded, repeated after a fault, its credentials sent to it alone.

Limits and headers: GitHub REST API, version 2022-11-28, "Rate limits" and "Best practices": obey
`retry-after`, else `x-ratelimit-reset`, else wait for a minute; a second between writes.

Proxies and certificates come from the usual environment variables, as requests reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from urllib3 import BaseHTTPResponse, Retry
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import HTTPError, MaxRetryError

from gate.errors import GateError, PublishError
from gate.text.untrusted_text import safe_line


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


RETRIES: Final = 3
# the secondary limit, told without saying for how long
UNKNOWN_LIMIT_SECONDS: Final = 60.0
LIMITED_STATUSES: Final = frozenset({requests.codes.forbidden, requests.codes.too_many_requests})


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


class GitHubRetry(Retry):
    """urllib3's retries of one request, by GitHub's rules and up to a moment.

    A fault (no answer, 5xx) is repeated for `allowed_methods` only. A limit is waited for whatever
    the method: it kept the request from being carried out. `limit` reads it from an answer, and
    raises what such an answer means when it is none. `ends_at` is of the policy's monotonic clock.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        limit: Callable[[BaseHTTPResponse], LimitedError],
        ends_at: float,
        **counts: Any,  # noqa: ANN401 - urllib3's own, as `new` hands them on
    ) -> None:
        # an answer that is a fault to the end is handed on, for its words
        rules: dict[str, Any] = {"status_forcelist": range(500, 600), "raise_on_status": False}
        super().__init__(**{"total": RETRIES} | rules | counts)
        self._policy = policy
        self._limit = limit
        self._ends_at = ends_at
        self._wait_seconds = 0.0

    def new(self, **counts: Any) -> Self:  # noqa: ANN401 - as above
        """The same rules with other counts."""
        rules = {"policy": self._policy, "limit": self._limit, "ends_at": self._ends_at}
        return super().new(**rules | counts)

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:  # noqa: ARG002, FBT001, FBT002 - urllib3's signature
        """Whether an answer is a fault to repeat, or may be a limit."""
        return status_code in LIMITED_STATUSES or super().is_retry(method, status_code)

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
        wait = self._policy.backoff(len(self.history))
        if response is not None and response.status in LIMITED_STATUSES:
            try:
                limited = self._limit(response)
            except HTTPError as broken_off:
                return self.increment(method, url, error=broken_off, _pool=_pool)
            finally:
                response.close()
            # asking again before the time is over counts as abuse: rather not at all
            if not self.total or limited.seconds > left:
                raise limited
            wait = limited.seconds
        # urllib3 itself would repeat some errors whatever the method, as one of TLS in an answer
        elif wait > left or (error is not None and method not in (self.allowed_methods or ())):
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


def tells_limit(response: BaseHTTPResponse, told: str) -> bool:
    """Whether a 403 or 429 means "not now": the primary rate limit or a secondary one."""
    return (
        response.status == requests.codes.too_many_requests
        or "Retry-After" in response.headers
        or response.headers.get("X-RateLimit-Remaining") == "0"
        or "rate limit" in told.lower()
    )


def limit_seconds(headers: Mapping[str, str], now: float) -> float:
    """How long the limit lasts, as far as it was told; `now` in seconds since 1970."""
    wanted = _number(headers.get("Retry-After", ""))
    if wanted is not None:
        return wanted
    reset = _number(headers.get("X-RateLimit-Reset", ""))
    if headers.get("X-RateLimit-Remaining") == "0" and reset is not None:
        # the full second may not be over yet
        return max(0.0, reset - now) + 1.0
    return UNKNOWN_LIMIT_SECONDS


def _number(text: str) -> float | None:
    """A count of seconds in ASCII digits; nothing else is understood."""
    short = text.strip()
    # `Retry-After` may be a date as well (RFC 9110, 10.2.3): GitHub sends seconds
    return float(short) if short.isascii() and short.isdigit() and len(short) <= 12 else None  # noqa: PLR2004 - longer than any date in seconds


class LimitedError(PublishError):
    """A request that was not carried out, but may be sent again after `seconds`."""

    def __init__(self, seconds: float, *, status: int, told: str) -> None:
        super().__init__(
            f"GitHub's rate limit is used up for another {seconds:,.0f} s ({status})",
            hint="Run the job again later.",
            details=details_of(told),
        )
        self.seconds = seconds


def details_of(told: str) -> tuple[str, ...]:
    """What a service says of a refusal, as details of an error."""
    return (told,) if told else ()


BLOCK_BYTES = 64 * 1024


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


TRIES: Final = 3
MAX_REDIRECTS: Final = 5
# manifests, lists and refusals have a few kB
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
# a transfer may take the time of a short answer, and a second for each so many bytes
LEAST_BYTES_PER_SECOND: Final = 256 * 1024
# whoever waits for the verdict waits for this too
LONGEST_UPLOAD_SECONDS: Final = 900.0
TOLD_CHARACTERS: Final = 200
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
TRANSIENT: Final = frozenset({requests.codes.too_many_requests, *range(500, 600)})
AGAIN: Final = "Try again; if it stays so, check the network and the address."
# who checks a large upload may be silent for a while
POLICY: Final = RetryPolicy(timeout_seconds=60.0)
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request; `authorization` is the header's value, for this service's own host alone.

    `max_bytes` bounds the answer. A `repeatable` request may be carried out twice.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Upload | None = None
    authorization: str = ""
    max_bytes: int = MAX_ANSWER_BYTES
    repeatable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An answer that arrived whole."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class UnansweredError(PublishError):
    """A request that may or may not have been carried out: another try may succeed."""


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

    Every failure is a `PublishError`. What was named by `hide` never stands in one.
    """

    def __init__(self, name: str, base: str, policy: RetryPolicy) -> None:
        parts = urlsplit(base)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.name = name
        self.policy = policy
        self._local = parts.hostname in LOOPBACK
        self._secrets: list[str] = []
        self._session = _Session()
        self._session.headers.update({"User-Agent": "repro-gate", "Accept-Encoding": "identity"})
        self.refuse_clear(base)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def hide(self, *secrets: str) -> None:
        """Keep these out of every message, whoever repeats them."""
        self._secrets += [secret for secret in secrets if secret]

    def next_address(self, url: str, location: str) -> str:
        """Where an answer leads; `PublishError` unless it may be asked, see `refuse_clear`."""
        try:
            following = urljoin(url, location)
        except ValueError as error:
            raise self._no_address(location) from error
        self.refuse_clear(following)
        return following

    def refuse_clear(self, url: str) -> None:
        """`PublishError` for no address, and for one that everybody on the way could read."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise self._no_address(url) from error
        plain = parts.scheme == "http" and parts.hostname in LOOPBACK and self._local
        if (parts.scheme != "https" and not plain) or not parts.hostname or "@" in parts.netloc:
            raise PublishError(
                f"{self.name} leads to {self._shown(url)}, which is not https",
                hint="Without TLS only this very machine is spoken with.",
            )

    def ask(self, ask: Ask) -> Reply:
        """Send a request; an answer below 500 is the caller's to judge."""

        def once() -> Reply:
            with self._answered(ask) as response:
                return self._whole(response, ask)

        return self._repeated(once, repeatable=ask.repeatable)

    def receive(self, ask: Ask, size_bytes: int, take: Callable[[Iterator[bytes]], _T]) -> _T:
        """Hand the pieces of a large answer of a known size to `take`, anew for every try."""

        def once() -> _T | Reply:
            with self._answered(ask) as response:
                if response.status_code != requests.codes.ok:
                    return self._whole(response, ask)
                seconds = self._transfer_seconds(size_bytes)
                return take(self._pieces(response.raw, size_bytes, seconds))

        found = self._repeated(once)
        if isinstance(found, Reply):
            raise self.refused(found, AGAIN)
        return found

    def upload(self, stream: BinaryIO, size_bytes: int) -> Upload:
        """A file as the body of a request, from its beginning; taken too slowly, it is given up."""
        stream.seek(0)
        seconds = min(LONGEST_UPLOAD_SECONDS, self._transfer_seconds(size_bytes))
        ends_at = self.policy.monotonic() + seconds
        late = self.fault(f"did not take the file within {seconds:,.0f} s")
        return Upload(stream, size_bytes, lambda: self.policy.monotonic() > ends_at, late)

    def _transfer_seconds(self, size_bytes: int) -> float:
        """How long so many bytes may take."""
        return self.policy.answer_seconds + size_bytes / LEAST_BYTES_PER_SECOND

    def refused(self, reply: Reply, hint: str, words: str = "") -> PublishError:
        """An answer that is none, in words: its status, and what the service says about it."""
        told = self._shown(words)
        return PublishError(
            f"{self.name} answered {reply.status}", hint=hint, details=(told,) if told else ()
        )

    def fault(self, why: str, hint: str = AGAIN) -> PublishError:
        """What is wrong with this service, as an error."""
        return PublishError(f"{self.name} {why}", hint=hint)

    def _no_address(self, text: str) -> PublishError:
        return self.fault(f"leads to {self._shown(text)}, which is no address")

    def _shown(self, text: str) -> str:
        """Somebody else's words as one short line without a secret."""
        # replaced before it is cut: half a secret at the end would not be found
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return safe_line(text, limit=TOLD_CHARACTERS)

    def _whole(self, response: requests.Response, ask: Ask) -> Reply:
        pieces = self._pieces(response.raw, ask.max_bytes, self.policy.answer_seconds)
        content = b"" if ask.method == "HEAD" else b"".join(pieces)
        # names of headers in lower case: nobody has to know how a server spells them
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(status=response.status_code, headers=headers, content=content)

    def _repeated(self, once: Callable[[], _T], *, repeatable: bool = True) -> _T:
        tries = 0
        while True:
            tries += 1
            wait = self.policy.backoff(tries)
            try:
                answer = once()
            except UnansweredError as error:
                fault = error
            except (requests.RequestException, HTTPError) as error:
                fault = self._unreached(error)
            else:
                if not isinstance(answer, Reply) or answer.status not in TRANSIENT:
                    return answer
                fault = UnansweredError(f"{self.name} answered {answer.status}", hint=AGAIN)
                if told := answer.headers.get("retry-after"):
                    wait = limit_seconds({"Retry-After": told}, self.policy.now())
            if tries == TRIES or not repeatable or wait > self.policy.longest_wait_seconds:
                raise fault
            self.policy.sleep(wait)

    @contextmanager
    def _answered(self, ask: Ask) -> Iterator[requests.Response]:
        """The answer behind all redirects, each looked at before it is followed."""
        for _ in range(MAX_REDIRECTS + 1):
            with self._sent(ask) as response:
                redirected = response.status_code in REDIRECTS
                if not redirected or ask.method != "GET":
                    yield response
                    return
                location = response.headers.get("Location", "")
            ask = replace(ask, url=self.next_address(ask.url, location))
        raise self.fault(f"redirects more than {MAX_REDIRECTS} times")

    def _sent(self, ask: Ask) -> requests.Response:
        parts = urlsplit(ask.url)
        # on this machine: a proxy elsewhere would be sent the credentials in the clear
        self._session.trust_env = parts.scheme == "https"
        # with the whole origin compared: another port of the same machine is another service
        own = f"{parts.scheme}://{parts.netloc}" == self.origin
        return self._session.request(
            ask.method,
            ask.url,
            data=ask.body,
            headers=dict(ask.headers),
            auth=_Authorization(ask.authorization if own else ""),
            timeout=self.policy.timeout_seconds,
            allow_redirects=False,
            stream=True,
        )

    def _pieces(
        self, response: BaseHTTPResponse, max_bytes: int, seconds: float
    ) -> Iterator[bytes]:
        limits = BodyLimits(
            piece_bytes=PIECE_BYTES,
            max_bytes=max_bytes,
            seconds=seconds,
            monotonic=self.policy.monotonic,
            too_large=lambda: self.fault(
                f"sent more than {max_bytes:,} bytes", "Check the address, and the proxy."
            ),
            too_slow=lambda: self.fault(f"did not answer within {seconds:,.0f} s"),
            decoded=False,
        )
        return bounded_pieces(response, limits)

    def _unreached(self, error: Exception) -> UnansweredError:
        """A connection that failed; the exception's own text may quote headers, and stays out."""
        if isinstance(error, requests.Timeout):
            why = f"did not answer within {self.policy.timeout_seconds:g} s"
        elif isinstance(error, requests.exceptions.SSLError):
            why = "has a certificate that is not trusted here"
        elif isinstance(error, requests.exceptions.ChunkedEncodingError | HTTPError):
            why = "broke its answer off"
        elif isinstance(error, requests.ConnectionError):
            why = "cannot be reached"
        else:
            why = "gave an answer that cannot be read"
        return UnansweredError(f"{self.name} {why}", hint=AGAIN)
