"""The container engine behind its local socket: calls in, plain values or a `RunError` out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from gate.errors import RunError
from gate.isolation.docker_api import Connect, DockerApi
from gate.isolation.engine_faults import engine_fault
from gate.text.untrusted_text import safe_line

RUN_LABEL = "repro-gate.run"
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
ANSWER_SECONDS = 60.0
PULL_SECONDS = 3600.0
_NOT_FOUND = 404
_CONFLICT = 409
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


class Engine:
    """Calls to one engine; every fault is a `RunError` that says what a person can do."""

    def __init__(self, connect: Connect, address: str = DEFAULT_SOCKET) -> None:
        """Nothing is connected before the first call."""
        self._connect = connect
        self._address = address
        self._client: DockerApi | None = None

    def close(self) -> None:
        """End the connection; the next call makes a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def answer(self) -> None:
        """Raise `RunError` unless the engine answers."""
        with self._faults("asking the container engine"):
            self._api().info()

    def image_id(self, reference: str) -> str:
        """The engine's id of an image named by digest, fetched from its registry when missing.

        Raises `RunError` when it cannot be had, or when its digest is not the one asked for.
        """
        # a bare digest is the engine's own id, which no registry can be asked for
        if not _DIGEST.match(reference) and not self._has_image(reference):
            with (
                self._faults(f"pulling the image {reference}"),
                closing(self._connect(PULL_SECONDS)) as client,
            ):
                client.pull(reference)
        with self._faults(f"looking for the image {reference}"):
            found = self._api().inspect_image(reference)
        # an image has two: its configuration's (Id) and
        # that of its manifest in a registry (RepoDigests)
        digests = {found["Id"], *(name.rpartition("@")[2] for name in found["RepoDigests"] or ())}
        wanted = reference.rpartition("@")[2]
        if wanted not in digests:
            raise RunError(
                f"the engine's image {reference} has another digest: "
                f"{', '.join(sorted(map(safe_line, digests)))}",
                hint="Pull it again by its digest, or correct isolation.image.",
            )
        return str(found["Id"])

    def mounts_of(self, container: str) -> tuple[tuple[str, str], ...] | None:
        """Destination in a container and source on the engine's machine, or None if unknown."""
        with self._faults("inspecting the gate's own container"):
            try:
                found = self._api().inspect_container(container)
            except OSError as error:
                if _status(error) == _NOT_FOUND:
                    return None
                raise
        return tuple((str(mount["Destination"]), str(mount["Source"])) for mount in found["Mounts"])

    def create(self, config: Mapping[str, Any]) -> str:
        """Make a container and answer its id; it does not run yet."""
        with self._faults("creating the training's container"):
            return str(self._api().create_container_from_config(dict(config))["Id"])

    @contextmanager
    def attached(self, container: str) -> Iterator[int]:
        """A descriptor to read both output streams from, complete when this comes before `start`.

        What comes through it is framed; see `gate.isolation.container_output`.
        """
        with self._faults("attaching to the training's container"):
            stream = self._api().attach_socket(
                container,
                # `logs` would replay what was printed before, and the log itself is switched off
                {"stdout": 1, "stderr": 1, "stream": 1, "logs": 0},
            )
        try:
            yield stream.fileno()
        finally:
            # docker-py hands out the file of a socket that belongs to the answer of its request
            getattr(stream, "_response", stream).close()

    def start(self, container: str) -> None:
        """Start what was made."""
        with self._faults("starting the training's container"):
            self._api().start(container)

    def state(self, container: str) -> Mapping[str, Any]:
        """`Running`, `ExitCode` and `OOMKilled`, as the engine tells them."""
        with self._faults("inspecting the training's container"):
            state: Mapping[str, Any] = self._api().inspect_container(container)["State"]
            return state

    def ask_to_stop(self, container: str) -> None:
        """SIGTERM to the first process; a container that has ended is fine."""
        try:
            self._api().kill(container, "SIGTERM")
        except OSError as error:
            if _status(error) is None:
                raise engine_fault(
                    "stopping the training's container", error, self._address
                ) from error

    def remove(self, container: str) -> bool:
        """Kill all that runs in a container and remove it; False when it was gone already."""
        with self._faults("removing a container"):
            return _remove(self._api(), container)

    def remove_at_once(self, container: str, seconds: float) -> None:
        """The same through a connection of its own, for a signal handler: says nothing, if late."""
        with (
            suppress(OSError, RunError),
            closing(self._connect(seconds)) as client,
        ):
            _remove(client, container)

    def remove_run(self, run: str) -> int:
        """Remove every container of one gate call; answer how many there were."""
        with self._faults("removing the training's containers"):
            found = self._api().containers(all=True, filters={"label": f"{RUN_LABEL}={run}"})
            for container in found:
                _remove(self._api(), str(container["Id"]))
        return len(found)

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
    """Where the engine listens: `DOCKER_HOST`, or the socket that every Docker action is given."""
    return variables.get("DOCKER_HOST") or DEFAULT_SOCKET


def _remove(client: DockerApi, container: str) -> bool:
    try:
        client.remove_container(container, v=True, force=True)
    except OSError as error:
        # 409: the engine is removing it for somebody else at this moment
        if _status(error) not in {_NOT_FOUND, _CONFLICT}:
            raise
        return False
    return True


def _status(error: OSError) -> int | None:
    """The engine's, where it answered: what requests raises is an `OSError` with a response."""
    # not named by its class: requests is slow to import, and needed with an engine alone
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)
