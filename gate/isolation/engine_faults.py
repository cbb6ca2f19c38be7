"""A container engine's faults in words that a person can act on."""

from __future__ import annotations

from gate.errors import RunError
from gate.text.untrusted_text import safe_line

MESSAGE_LIMIT = 400
# a part of the engine's or the system's words, in lower case, and what to do then; first match wins
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
    """The engine's own words, and a hint for the faults that people meet."""
    told = str(getattr(error, "explanation", None) or error)
    words = safe_line(told, limit=MESSAGE_LIMIT)
    return RunError(f"{doing} failed: {words}", hint=_hint(told.lower(), address))


def _hint(words: str, address: str) -> str:
    found = (hint for part, hint in HINTS.items() if part in words)
    return next(found, "See the engine's log on this machine.").format(address=address)
