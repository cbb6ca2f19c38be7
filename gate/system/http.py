"""Requests to one service: bounded, repeated after a fault, its credentials sent to it alone.

Proxies and certificates come from the usual environment variables, as requests reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from gate.errors import PublishError
from gate.system.bounded_body import BodyLimits, bounded_pieces
from gate.system.retry import RetryPolicy, limit_seconds
from gate.system.upload import Upload
from gate.text.untrusted_text import safe_line

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
