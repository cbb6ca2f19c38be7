"""One request to a service that a seal needs: bounded, repeated after a fault, never redirected.

Proxies and certificates come from the usual environment variables, as requests reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit

import requests
from pydantic import TypeAdapter, ValidationError
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from gate.errors import SealServiceError
from gate.system.bounded_body import BodyLimits, bounded_pieces
from gate.system.github.refusals import told
from gate.system.retry import RetryPolicy

TRIES: Final = 3
# an entry with its statement has a few kB, a chain of certificates too
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 64 * 1024
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})
AGAIN: Final = "Run the job again; its evidence is judged anew."
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer that arrived whole; `source` is what messages call whoever gave it."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    source: str

    def read_as(self, kind: TypeAdapter[_T], hint: str) -> _T:
        """The content as what was promised; `SealServiceError` when it is something else."""
        try:
            return kind.validate_json(self.content)
        except ValidationError as error:
            raise SealServiceError(
                f"the answer of {self.source} is not what was asked for", hint=hint
            ) from error


class _Bearer(requests.auth.AuthBase):
    """Sets the token on each request, if there is one; being explicit, it keeps .netrc out."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Service:
    """A service by its name in messages; a context manager that closes its connections.

    `secret` is sent as the bearer token, and never stands in a message; `headers` are sent too.
    `authority` is a file with the certificates to trust in place of the system's. Every failure is
    a `SealServiceError`.
    """

    def __init__(
        self,
        name: str,
        url: str,
        policy: RetryPolicy,
        *,
        secret: str = "",
        headers: Mapping[str, str] | None = None,
        authority: str = "",
    ) -> None:
        parts = urlsplit(url)
        # the token would be for everybody on the way
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise SealServiceError(
                f"the address of {name} does not begin with https://",
                hint="Check what the settings and the runner say.",
            )
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._name = f"{name} at {self.origin}"
        self._policy = policy
        self._secret = secret
        self._session = requests.Session()
        # on this machine: a proxy elsewhere would be sent the token in the clear
        self._session.trust_env = parts.scheme == "https"
        self._session.auth = _Bearer(secret)
        self._session.headers.update({"Accept": "application/json", "User-Agent": "repro-gate"})
        self._session.headers.update(headers or {})
        # None: requests looks at the environment, and else at its own list
        self._authority = authority or None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def ask(self, method: str, url: str, body: object = None, *, hide: str = "") -> Answer:
        """Send a request; an answer below 500 is the caller's to judge.

        `hide` is a secret of the body. Sent up to three times: whatever is asked for here may be
        given twice.
        """
        tries = 0
        while True:
            tries += 1
            try:
                answer = self._once(method, url, body)
            except (requests.RequestException, HTTPError) as error:
                fault = self._unreached(error)
            else:
                if answer.status not in _TRANSIENT:
                    return answer
                fault = self.refused(answer, AGAIN, hide=hide)
            if tries == TRIES:
                raise fault
            self._policy.sleep(self._policy.backoff(tries))

    def refused(self, answer: Answer, hint: str, *, hide: str = "") -> SealServiceError:
        """An answer that is none, in words: the status, and what the service says about it."""
        # a service that was handed no secret cannot repeat one; no message holds a line end
        words = told(answer.content, hide or self._secret or "\n")
        return SealServiceError(
            f"{self._name} answered {answer.status}",
            hint=hint,
            details=(words,) if words else (),
        )

    def _once(self, method: str, url: str, body: object) -> Answer:
        with self._session.request(
            method,
            url,
            json=body,
            timeout=self._policy.timeout_seconds,
            verify=self._authority,
            # not followed: a token goes where the settings say, and nowhere else
            allow_redirects=False,
            stream=True,
        ) as response:
            return Answer(
                status=response.status_code,
                headers=response.headers,
                content=self._content(response.raw),
                source=self._name,
            )

    def _content(self, response: BaseHTTPResponse) -> bytes:
        """The body, up to a size and within a time, however slowly it comes."""
        limits = BodyLimits(
            piece_bytes=PIECE_BYTES,
            max_bytes=MAX_ANSWER_BYTES,
            seconds=self._policy.answer_seconds,
            monotonic=self._policy.monotonic,
            too_large=lambda: SealServiceError(
                f"the answer of {self._name} is larger than {MAX_ANSWER_BYTES // 1024**2} MiB",
                hint="Check the address in the settings, and the proxy in between.",
            ),
            too_slow=lambda: SealServiceError(
                f"{self._name} did not answer within {self._policy.answer_seconds:g} s", hint=AGAIN
            ),
        )
        return b"".join(bounded_pieces(response, limits))

    def _unreached(self, error: Exception) -> SealServiceError:
        if isinstance(error, requests.Timeout):
            why = f"did not answer within {self._policy.timeout_seconds:g} s"
        elif isinstance(error, requests.exceptions.SSLError):
            why = "has a certificate that is not trusted here"
        elif isinstance(error, requests.ConnectionError):
            why = "cannot be reached"
        else:
            why = "broke its answer off"
        return SealServiceError(
            f"{self._name} {why}",
            hint="Run the job again; if it stays so, check the network and the address.",
        )


_TRANSIENT: Final = frozenset({requests.codes.too_many_requests, *range(500, 600)})
