"""docker-py as far as it is used: the extra `repro-gate[container]`, imported when first needed.

A gate that isolates in another way needs neither it nor an engine.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

from gate.errors import RunError
from gate.isolation.engine_faults import engine_fault
from gate.text.untrusted_text import safe_line

LOCAL = "unix://"


class Attached(Protocol):
    """The stream of a container's output, which owns its connection to the engine."""

    def fileno(self) -> int:
        """The descriptor, readable when there is output or its end."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class DockerApi(Protocol):
    """What is used of `docker.APIClient`; answers are the engine's own JSON.

    Every method raises `requests.RequestException`, whose `response` tells the engine's refusal.
    """

    def info(self) -> dict[str, Any]:
        """What the engine says of itself; asked to see that it answers."""
        ...

    def inspect_image(self, image: str) -> dict[str, Any]:
        """`Id` and `RepoDigests` of an image that the engine has."""
        ...

    def pull(self, repository: str) -> str:
        """Fetch an image from its registry; a fault may hide in the answer."""
        ...

    def inspect_container(self, container: str) -> dict[str, Any]:
        """`State` and `Mounts` of a container."""
        ...

    def create_container_from_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """Make one; the answer has its `Id`."""
        ...

    def attach_socket(self, container: str, params: dict[str, int]) -> Attached:
        """Its output from now on, framed."""
        ...

    def start(self, container: str) -> None:
        """Run it."""
        ...

    def kill(self, container: str, signal: str) -> None:
        """Send a signal to its first process."""
        ...

    def remove_container(self, container: str, *, v: bool, force: bool) -> None:
        """Kill and remove it, with its anonymous volumes."""
        ...

    def containers(self, *, all: bool, filters: dict[str, str]) -> list[dict[str, Any]]:  # noqa: A002 - docker-py's own name
        """Those that a filter finds; `all` includes those that have ended."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


Connect = Callable[[float], DockerApi]


def connect_docker(address: str) -> Connect:
    """A maker of clients for the engine at `address`; it takes the time-out of a call, in seconds.

    The maker raises `RunError` when docker-py is missing or `address` is no local socket.
    """

    def connect(seconds: float) -> DockerApi:
        # a remote engine mounts folders of its own machine, where the run's do not lie
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
                hint="Install repro-gate[container], or set isolation.mode to uid.",
            ) from error
        try:
            return cast("DockerApi", docker.APIClient(base_url=address, timeout=seconds))
        except docker.errors.DockerException as error:
            raise engine_fault("asking the container engine", error, address) from error
        except ValueError as error:
            # the client reads the file of `docker login` first, and decodes what is in it
            raise RunError(
                f"the registry logins of this account cannot be read: {safe_line(str(error))}",
                hint="Correct or remove config.json in $DOCKER_CONFIG (default: ~/.docker), then "
                "run docker login again.",
            ) from error

    return connect


def _knock(address: str) -> None:
    """Connect once without docker-py, which buries the system's reason under its own."""
    try:
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.connect(address.removeprefix(LOCAL))
    except OSError as error:
        raise engine_fault("reaching the container engine", error, address) from error
