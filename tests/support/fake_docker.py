"""A fake container engine without isolation: its containers are processes of this machine.

It has the interface of `docker.APIClient`, including frames and refusals, and records its calls.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from typing import Any

from requests import Response
from requests.exceptions import HTTPError

IMAGE = "sha256:" + "1" * 64
REGISTRY_DIGEST = "sha256:" + "2" * 64
REFERENCE = f"team/trainer@{REGISTRY_DIGEST}"


class EngineRefusalError(HTTPError):
    """The error that docker-py raises: a status, and the engine's explanation."""

    def __init__(self, status: int, explanation: str) -> None:
        answer = Response()
        answer.status_code = status
        super().__init__(f"{status} from the engine", response=answer)
        self.explanation = explanation


@dataclass
class Container:
    """A container that was created; it has a process once it is started."""

    config: dict[str, Any]
    ours: socket.socket
    theirs: socket.socket
    process: subprocess.Popen[bytes] | None = None
    pump: threading.Thread | None = None


@dataclass
class FakeDocker:
    """The engine; `images` are known by id and reference.

    If `out_of_memory` is set, every container is reported as killed for its memory. `refuses` maps
    names of calls to the error that they raise.
    """

    images: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            name: {"Id": IMAGE, "RepoDigests": [REFERENCE]} for name in (IMAGE, REFERENCE)
        }
    )
    own: dict[str, dict[str, str]] = field(default_factory=dict)
    refuses: dict[str, EngineRefusalError] = field(default_factory=dict)
    out_of_memory: bool = False
    containers_made: dict[str, Container] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)
    configs: list[dict[str, Any]] = field(default_factory=list)

    def connect(self, seconds: float) -> FakeDocker:
        assert seconds > 0
        return self

    def close(self) -> None:
        """Do nothing, because there is no connection."""

    def info(self) -> dict[str, Any]:
        self._refuse("info")
        return {}

    def inspect_image(self, image: str) -> dict[str, Any]:
        if image not in self.images:
            raise EngineRefusalError(404, f"no such image: {image}: No such image: {image}")
        return self.images[image]

    def pull(self, repository: str) -> str:
        self.pulled.append(repository)
        self._refuse("pull")
        self.images[repository] = {"Id": IMAGE, "RepoDigests": [repository]}
        return ""

    def inspect_container(self, container: str) -> dict[str, Any]:
        if container in self.own:
            mounts = self.own[container].items()
            return {"Mounts": [{"Destination": here, "Source": there} for here, there in mounts]}
        process = self._container(container).process
        assert process is not None
        code = process.poll()
        told = 0 if code is None else code if code >= 0 else 128 - code
        state = {"Running": code is None, "ExitCode": told, "OOMKilled": self.out_of_memory}
        return {"State": state}

    def create_container_from_config(self, config: dict[str, Any]) -> dict[str, Any]:
        self._refuse("create")
        name = f"container-{len(self.configs)}"
        self.configs.append(config)
        ours, theirs = socket.socketpair()
        self.containers_made[name] = Container(config, ours, theirs)
        return {"Id": name}

    def attach_socket(self, container: str, params: dict[str, int]) -> socket.socket:
        assert params == {"stdout": 1, "stderr": 1, "stream": 1, "logs": 0}
        self._refuse("attach")
        return self._container(container).theirs

    def start(self, container: str) -> None:
        self._refuse("start")
        made = self._container(container)
        own = dict(pair.split("=", 1) for pair in made.config["Env"])
        made.process = subprocess.Popen(
            made.config["Entrypoint"],
            cwd=made.config["WorkingDir"],
            env={"PATH": os.environ["PATH"], **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        made.pump = threading.Thread(target=_pump, args=(made.process, made.ours))
        made.pump.start()

    def kill(self, container: str, signal: str) -> None:
        process = self._container(container).process
        assert process is not None
        process.send_signal(_number(signal))

    def remove_container(self, container: str, *, v: bool, force: bool) -> None:
        assert v
        assert force
        self._refuse("remove")
        made = self._container(container)
        if made.process is not None and made.pump is not None:
            made.process.kill()
            made.process.wait()
            made.pump.join()
        made.ours.close()
        made.theirs.close()
        del self.containers_made[container]

    def containers(self, *, all: bool, filters: dict[str, str]) -> list[dict[str, Any]]:  # noqa: A002 - docker-py's own name
        assert all
        label, _, value = filters["label"].partition("=")
        return [
            {"Id": name}
            for name, made in self.containers_made.items()
            if made.config["Labels"].get(label) == value
        ]

    def _container(self, name: str) -> Container:
        if name not in self.containers_made:
            raise EngineRefusalError(404, f"No such container: {name}")
        return self.containers_made[name]

    def _refuse(self, call: str) -> None:
        if call in self.refuses:
            raise self.refuses[call]


def _number(name: str) -> signal.Signals:
    return signal.Signals[name]


def _pump(process: subprocess.Popen[bytes], stream: socket.socket) -> None:
    """Send a process's output in frames, header and data in separate writes, as an engine may."""
    assert process.stdout is not None
    with process.stdout:
        while data := os.read(process.stdout.fileno(), 65536):
            header = b"\x01\0\0\0" + len(data).to_bytes(4, "big")
            try:
                for piece in (header[:3], header[3:], data):
                    stream.sendall(piece)
            except OSError:
                return
    process.wait()
    stream.shutdown(socket.SHUT_WR)
