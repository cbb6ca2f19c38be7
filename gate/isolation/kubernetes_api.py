"""The part of the Kubernetes API that a job needs: create, read, list and delete objects."""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, Field, ValidationError

from gate.errors import GateError, RunError
from gate.system.files import writing
from gate.system.files.regular_files import open_regular
from gate.system.http import Connection, HttpRequest, RetryPolicy
from gate.system.login import Login
from gate.text.strict_yaml import parse_yaml

# where a pod finds its service account: Kubernetes, "Accessing the API from a Pod"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONFIG_VARIABLE: Final = "KUBECONFIG"
VARIABLES: Final = (
    *(CONFIG_VARIABLE, "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"),
    *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_TOKEN_BYTES: Final = 64 * 1024
# enough for 512 pods, each with a few conditions
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
DONE: Final = frozenset({200, 201, 202})
MISSING: Final = 404
# a request takes milliseconds, and the calling program has to end within a minute
POLICY: Final = RetryPolicy(timeout_seconds=10.0, answer_seconds=20.0, longest_wait_seconds=15.0)
ACCESS_HINT: Final = (
    "Run the gate in a pod whose service account may create jobs and services, or set KUBECONFIG; "
    "docs/cluster.md has the rights. Where kubectl logs in by a program or a client certificate, "
    "use engine: exec with examples/cluster/kubernetes."
)
_Answer = TypeVar("_Answer", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How to reach the API.

    `authorities` is the text of a PEM file, empty for the system's authorities. `token_file` is
    read again for each request, because a pod's token is replaced within the hour.
    """

    server: str
    namespace: str
    authorities: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None

    def login(self) -> Login:
        """Return a login with the current token; raises `RunError` if it cannot be a token."""
        token = self.token
        if self.token_file is not None:
            token = _text_of(self.token_file, MAX_TOKEN_BYTES).strip()
        if not token.isascii() or not token.isprintable() or not token:
            raise RunError("the token for the Kubernetes API is not a token", hint=ACCESS_HINT)
        return Login.bearer(token)


def access_by(variables: Mapping[str, str], account: Path = ACCOUNT) -> Access:
    """Return the access, searched as kubectl does.

    KUBECONFIG comes first, then the file in the home folder, then the pod's own account. Raises
    `RunError` if there is none of them, or if the first one found has no token.
    """
    home = Path(variables.get("HOME") or "/nonexistent") / ".kube" / "config"
    named = variables.get(CONFIG_VARIABLE, "")
    if named or home.is_file():
        return _by_config(config_file(named) if named else home)
    host, port = (variables.get(f"KUBERNETES_SERVICE_{end}", "") for end in ("HOST", "PORT"))
    if not host or not (account / "token").is_file():
        raise RunError("no Kubernetes API is known here", hint=ACCESS_HINT)
    shown = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{shown}:{port or 443}",
        namespace=_text_of(account / "namespace", MAX_TOKEN_BYTES).strip(),
        authorities=_text_of(account / "ca.crt", MAX_FILE_BYTES),
        token_file=account / "token",
    )


def config_file(named: str) -> Path:
    """Return the first file that KUBECONFIG names; unlike kubectl, several are not merged."""
    return Path(named.split(":", maxsplit=1)[0])


def _by_config(file: Path) -> Access:
    """Return the access by the current context of a kubectl configuration file."""
    document, _ = parse_yaml(_text_of(file, MAX_FILE_BYTES).encode(), str(file), foreign=True)
    config = document if isinstance(document, dict) else {}
    context = _entry(config, "contexts", "context", config.get("current-context"), file)
    cluster = _entry(config, "clusters", "cluster", context.get("cluster"), file)
    user = _entry(config, "users", "user", context.get("user"), file)
    # without verification anybody on the network could read the token
    if cluster.get("insecure-skip-tls-verify"):
        raise RunError(f"{file}: insecure-skip-tls-verify is not obeyed", hint=ACCESS_HINT)
    token_file = user.get("tokenFile")
    if not token_file and not user.get("token"):
        raise RunError(f"{file}: its current user has no token", hint=ACCESS_HINT)
    return Access(
        server=str(cluster.get("server", "")).rstrip("/"),
        namespace=str(context.get("namespace") or "default"),
        authorities=_authorities(cluster, file),
        token=str(user.get("token", "")),
        token_file=file.parent / str(token_file) if token_file else None,
    )


def _entry(
    config: Mapping[str, object], many: str, single: str, name: object, file: Path
) -> Mapping[str, object]:
    entries = config.get(many)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            inner = entry.get(single)
            if isinstance(inner, dict):
                return inner
    raise RunError(f"{file}: no {single} of the current context", hint=ACCESS_HINT)


def _authorities(cluster: Mapping[str, object], file: Path) -> str:
    if data := cluster.get("certificate-authority-data"):
        try:
            return base64.b64decode(str(data), validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError) as error:
            message = f"{file}: certificate-authority-data is no certificate in base64"
            raise RunError(message, hint=ACCESS_HINT) from error
    if named := cluster.get("certificate-authority"):
        return _text_of(file.parent / str(named), MAX_FILE_BYTES)
    return ""


def _text_of(file: Path, max_bytes: int) -> str:
    try:
        # a pod's token is a symbolic link, and `open_regular` follows none
        with open_regular(file.resolve(), max_bytes) as stream:
            return stream.read().decode("utf-8")
    except (OSError, UnicodeDecodeError, GateError) as error:
        raise RunError(f"{file} cannot be read: {error}", hint=ACCESS_HINT) from error


class _Status(BaseModel):
    """The API's answer to a request that it refuses."""

    message: str = Field(default="", max_length=100_000)


class KubernetesApi(Connection):
    """Requests about the objects of one namespace, with one JSON document each.

    A context manager. Every failure raises `PublishError`. `UnansweredError` means that the request
    may have been carried out all the same.
    """

    def __init__(
        self, access: Access, namespace: str | None = None, policy: RetryPolicy = POLICY
    ) -> None:
        """Use `namespace`, or the namespace of the access if none is given."""
        host = urlsplit(access.server).netloc.rpartition("@")[2]
        super().__init__(f"the Kubernetes API at {host}", access.server, policy)
        self._access = access
        self._namespace = namespace or access.namespace
        self._folder = tempfile.TemporaryDirectory(prefix="repro-gate-authorities-")
        if access.authorities:
            # requests reads authorities from a file only
            file = Path(self._folder.name) / "authorities.pem"
            writing.write_new(file, (access.authorities.encode(),), 0o600)
            self.trust(str(file))

    def close(self) -> None:
        """Close all connections, and remove the file of authorities."""
        super().close()
        self._folder.cleanup()

    def create(self, kind: str, document: Mapping[str, object]) -> None:
        """Create an object; `kind` is its path, such as `apis/batch/v1/jobs`."""
        self._asked("POST", self._address(kind), _Status, document)

    def read(self, kind: str, name: str, shape: type[_Answer]) -> _Answer | None:
        """Return the fields of an object that `shape` has, or None if no object has the name."""
        return self._asked("GET", self._address(kind, name), shape)

    def list(self, kind: str, selector: str, shape: type[_Answer]) -> _Answer | None:
        """Return all objects that have a label."""
        words = urlencode({"labelSelector": selector})
        return self._asked("GET", f"{self._address(kind)}?{words}", shape)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and all that it owns; a missing object is fine."""
        # without this policy, a deleted job of batch/v1 leaves its pods running
        self._asked(
            "DELETE", self._address(kind, name), _Status, {"propagationPolicy": "Background"}
        )

    def _address(self, kind: str, name: str = "") -> str:
        group, _, plural = kind.rpartition("/")
        namespace = quote(self._namespace, safe="")
        place = f"{self._access.server}/{group}/namespaces/{namespace}/{plural}"
        return f"{place}/{quote(name, safe='')}" if name else place

    def _asked(
        self,
        method: str,
        url: str,
        shape: type[_Answer],
        body: Mapping[str, object] | None = None,
    ) -> _Answer | None:
        # log in for each request: the kubelet renews the token file while a job is waited for
        self.log_in(self._access.login())
        answer = self.ask(
            HttpRequest(
                method=method,
                url=url,
                headers={"Accept": "application/json", "Content-Type": "application/json"},
                body=None if body is None else json.dumps(body).encode(),
                max_bytes=MAX_ANSWER_BYTES,
                repeatable=method != "POST",
            )
        )
        # for a POST, which names no object yet, 404 means that the namespace or kind is missing
        if answer.status == MISSING and method != "POST":
            return None
        if answer.status not in DONE:
            words = ""
            with suppress(ValidationError):
                words = _Status.model_validate_json(answer.content).message
            raise self.refused(answer, ACCESS_HINT, words)
        try:
            return shape.model_validate_json(answer.content)
        except ValidationError as error:
            raise self.fault("gave an answer that is not its own") from error
