"""Calls the container engine through its local socket, and turns each fault into a `RunError`.

docker-py is imported only when a client is made: a gate with another isolation needs neither it nor
an engine.
"""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Protocol, cast

from gate.errors import RunError
from gate.text.untrusted_text import safe_line

MESSAGE_LIMIT = 400
# a part of the engine's or system's message in lower case, and the hint for it; the first match
# wins
HINTS = {
    "permission denied": "The gate's account may not use {address}: run it as root or in that "
    "socket's group.",
    "no such file or directory": "Nothing listens at {address}. A Docker action is given the "
    "runner's socket; elsewhere start an engine or set DOCKER_HOST.",
    "connection refused": "No engine answers at {address}: start it, or set DOCKER_HOST.",
    "no such image": "Give isolation.image as name@sha256:... and let the engine reach its "
    "registry, or pull the image in a step before this one.",
    "device driver": "The engine has no NVIDIA runtime: install nvidia-container-toolkit on the "
    "machine, or set train.device to cpu and leave isolation.gpus empty.",
    "bind source path does not exist": "The gate runs in a container of another engine. Run it "
    "where this engine runs, or set isolation.mode to uid.",
    "dial tcp": "The engine cannot reach the image's registry: check its network and proxy.",
    "denied": "The registry requires a login: run docker login in a step before this one, and "
    "pull the image there.",
}


def engine_fault(doing: str, error: Exception, address: str) -> RunError:
    """Return an error with the engine's own words, and a hint for the common faults."""
    explanation = str(getattr(error, "explanation", None) or error)
    words = safe_line(explanation, limit=MESSAGE_LIMIT)
    return RunError(f"{doing} failed: {words}", hint=_hint(explanation.lower(), address))


def _hint(words: str, address: str) -> str:
    hints = (hint for part, hint in HINTS.items() if part in words)
    return next(hints, "See the engine's log on this machine.").format(address=address)


LOCAL = "unix://"


class Attached(Protocol):
    """The stream of a container's output, which owns its connection to the engine."""

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there is output or the stream has ended."""
        ...

    def close(self) -> None:
        """Close the descriptor and its connection."""
        ...


class DockerApi(Protocol):
    """The part of `docker.APIClient` that the gate uses; answers are the engine's own JSON.

    Every method raises `requests.RequestException`; its `response` contains the engine's refusal.
    """

    def info(self) -> dict[str, Any]:
        """Return what the engine reports about itself; used to check that it answers."""
        ...

    def inspect_image(self, image: str) -> dict[str, Any]:
        """Return `Id` and `RepoDigests` of an image that the engine has."""
        ...

    def pull(self, repository: str) -> str:
        """Fetch an image from its registry; a fault may be hidden in the answer."""
        ...

    def inspect_container(self, container: str) -> dict[str, Any]:
        """Return `State` and `Mounts` of a container."""
        ...

    def create_container_from_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Create a container; the answer has its `Id`."""
        ...

    def attach_socket(self, container: str, params: dict[str, int]) -> Attached:
        """Return the container's output from now on, framed."""
        ...

    def start(self, container: str) -> None:
        """Start a container."""
        ...

    def kill(self, container: str, signal: str) -> None:
        """Send a signal to the container's first process."""
        ...

    def remove_container(self, container: str, *, v: bool, force: bool) -> None:
        """Kill and remove a container, with its anonymous volumes."""
        ...

    def containers(self, *, all: bool, filters: dict[str, str]) -> list[dict[str, Any]]:  # noqa: A002 - docker-py's own name
        """Return the containers that match a filter; `all` includes those that have ended."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[float], DockerApi]


def connect_docker(address: str) -> Connect:
    """Return a function that makes a client for the engine at `address`.

    The function takes the time-out of a call, in seconds. It raises `RunError` if docker-py is
    missing or `address` is no local socket.
    """

    def connect(seconds: float) -> DockerApi:
        # a remote engine mounts folders of its own machine, which does not have the run's folders
        if not address.startswith(LOCAL):
            raise RunError(
                f"the container engine at {safe_line(address)} is not on a local socket",
                hint="The training's folders are mounted into its container, so the engine must "
                "run on this machine: set DOCKER_HOST to unix://, or unset it.",
            )
        _knock(address)
        try:
            docker = importlib.import_module("docker")
        except ImportError as error:
            raise RunError(
                "the Python package docker is not installed",
                hint=(
                    "Install it next to the gate: `pip install 'docker>=7.1'`, or set "
                    "isolation.mode to uid."
                ),
            ) from error
        try:
            return cast("DockerApi", docker.APIClient(base_url=address, timeout=seconds))
        except docker.errors.DockerException as error:
            raise engine_fault("asking the container engine", error, address) from error
        except ValueError as error:
            # docker-py reads and decodes the file of `docker login` first
            raise RunError(
                f"the registry logins of this account cannot be read: {safe_line(str(error))}",
                hint="Correct or remove config.json in $DOCKER_CONFIG (default: ~/.docker), then "
                "run docker login again.",
            ) from error

    return connect


def _knock(address: str) -> None:
    """Connect once without docker-py, which hides the system's reason behind its own error."""
    try:
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.connect(address.removeprefix(LOCAL))
    except OSError as error:
        raise engine_fault("reaching the container engine", error, address) from error


RUN_LABEL = "repro-gate.run"
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
ANSWER_SECONDS = 60.0
PULL_SECONDS = 3600.0
_NOT_FOUND = 404
_CONFLICT = 409
# a bare image id, as the engine itself assigns it
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


class Engine:
    """Calls to one engine; every fault is a `RunError` with a hint that a person can act on."""

    def __init__(self, connect: Connect, address: str = DEFAULT_SOCKET) -> None:
        """Connect at the first call, not here."""
        self._connect = connect
        self._address = address
        self._client: DockerApi | None = None

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def answer(self) -> None:
        """Raise `RunError` unless the engine answers."""
        with self._faults("asking the container engine"):
            self._api().info()

    def image_id(self, reference: str) -> str:
        """Return the engine's id of an image named by digest; pull the image if it is missing.

        Raises `RunError` if it cannot be pulled, or if its digest is not the one asked for.
        """
        # a bare digest is the engine's own id, which no registry knows
        if not _DIGEST.match(reference) and not self._has_image(reference):
            with (
                self._faults(f"pulling the image {reference}"),
                closing(self._connect(PULL_SECONDS)) as client,
            ):
                client.pull(reference)
        with self._faults(f"looking for the image {reference}"):
            image = self._api().inspect_image(reference)
        # an image has two digests: its configuration's (Id) and, from a registry, its
        # manifest's (RepoDigests)
        digests = {image["Id"], *(name.rpartition("@")[2] for name in image["RepoDigests"] or ())}
        digest = reference.rpartition("@")[2]
        if digest not in digests:
            raise RunError(
                f"the engine's image {reference} has another digest: "
                f"{', '.join(sorted(map(safe_line, digests)))}",
                hint="Pull it again by its digest, or correct isolation.image.",
            )
        return str(image["Id"])

    def mounts_of(self, container: str) -> tuple[tuple[str, str], ...] | None:
        """Return destination in a container and source on the engine's machine, None if unknown."""
        with self._faults("inspecting the gate's own container"):
            try:
                inspected = self._api().inspect_container(container)
            except OSError as error:
                if _status(error) == _NOT_FOUND:
                    return None
                raise
        return tuple(
            (str(mount["Destination"]), str(mount["Source"])) for mount in inspected["Mounts"]
        )

    def create(self, config: Mapping[str, Any]) -> str:
        """Create a container and return its id; it does not run yet."""
        with self._faults("creating the training's container"):
            return str(self._api().create_container_from_config(dict(config))["Id"])

    @contextmanager
    def attached(self, container: str) -> Iterator[int]:
        """Yield a descriptor for both output streams; complete only if attached before `start`.

        The output is framed; see `gate.isolation.containers`.
        """
        with self._faults("attaching to the training's container"):
            stream = self._api().attach_socket(
                container,
                # `logs` would replay earlier output, and the container's log is switched off anyway
                {"stdout": 1, "stderr": 1, "stream": 1, "logs": 0},
            )
        try:
            yield stream.fileno()
        finally:
            # docker-py returns the file of a socket that its HTTP response owns, so close the
            # response
            getattr(stream, "_response", stream).close()

    def start(self, container: str) -> None:
        """Start a created container."""
        with self._faults("starting the training's container"):
            self._api().start(container)

    def state(self, container: str) -> Mapping[str, Any]:
        """Return the engine's `Running`, `ExitCode` and `OOMKilled` of a container."""
        with self._faults("inspecting the training's container"):
            state: Mapping[str, Any] = self._api().inspect_container(container)["State"]
            return state

    def ask_to_stop(self, container: str) -> None:
        """Send SIGTERM to the first process; a container that has ended is fine."""
        try:
            self._api().kill(container, "SIGTERM")
        except OSError as error:
            # with a status the engine has answered: the container is not running any more
            if _status(error) is None:
                raise engine_fault(
                    "stopping the training's container", error, self._address
                ) from error

    def remove(self, container: str) -> bool:
        """Kill and remove a container; return False if it was already gone."""
        with self._faults("removing a container"):
            return _remove(self._api(), container)

    def remove_at_once(self, container: str, seconds: float) -> None:
        """Remove a container through a new connection and without errors, for a signal handler."""
        with (
            suppress(OSError, RunError),
            closing(self._connect(seconds)) as client,
        ):
            _remove(client, container)

    def remove_run(self, run: str) -> int:
        """Remove every container of one gate call; return how many there were."""
        with self._faults("removing the training's containers"):
            containers = self._api().containers(all=True, filters={"label": f"{RUN_LABEL}={run}"})
            for container in containers:
                _remove(self._api(), str(container["Id"]))
        return len(containers)

    def _has_image(self, reference: str) -> bool:
        with self._faults(f"looking for the image {reference}"):
            try:
                self._api().inspect_image(reference)
            except OSError as error:
                if _status(error) != _NOT_FOUND:
                    raise
                return False
        return True

    def _api(self) -> DockerApi:
        if self._client is None:
            self._client = self._connect(ANSWER_SECONDS)
        return self._client

    @contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise engine_fault(doing, error, self._address) from error


def engine_address(variables: Mapping[str, str]) -> str:
    """Return the engine's address: `DOCKER_HOST`, or the socket that each Docker action gets."""
    return variables.get("DOCKER_HOST") or DEFAULT_SOCKET


def _remove(client: DockerApi, container: str) -> bool:
    try:
        # `v` removes the image's anonymous volumes, which nobody else would remove
        client.remove_container(container, v=True, force=True)
    except OSError as error:
        # 409: the engine is already removing it for another caller
        if _status(error) not in {_NOT_FOUND, _CONFLICT}:
            raise
        return False
    return True


def _status(error: OSError) -> int | None:
    """Return the HTTP status of the engine's answer, or None if it did not answer."""
    # requests raises an `OSError` with a response. Its class is not named here, because requests is
    # slow to import and needed with an engine alone.
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)
