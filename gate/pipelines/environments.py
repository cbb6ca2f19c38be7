"""Whose environment a run trains in: head's, and the base commit's where the two differ.

A change that brings another image or other packages is not compared with a base commit that ran
with them too: each side trains in what its own commit asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gate.errors import SettingsError
from gate.isolation.modes import Isolation
from gate.settings.gate_settings import GateSettings
from gate.training.runs import Commit
from gate.verdict.request import GateRequest

Isolate = Callable[[GateSettings, tuple[Path, ...]], Isolation]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEnvironment:
    """What a run is isolated by, and the variables of the host that it may get some of."""

    isolation: Isolation
    host: Mapping[str, str]


def training_environments(
    request: GateRequest,
    isolate: Isolate,
    folder: Path,
    host: Mapping[str, str],
    base_path: str,
) -> dict[Commit, TrainingEnvironment]:
    """Head's environment, and the base commit's where it has another that can be had here.

    `base_path` is a PATH with the programs of the base commit's own packages, empty where there
    are none. Raises `SettingsError` for an image that a pull request may not bring, and what
    `isolate` raises.
    """
    brought, settings = request.brought, request.settings
    decided = TrainingEnvironment(isolation=isolate(settings, (folder,)), host=host)
    if not decided.isolation.in_container:
        if not base_path or not settings.policy.run_base_on_drift:
            return {Commit.HEAD: decided}
        base = TrainingEnvironment(isolation=decided.isolation, host={**host, "PATH": base_path})
        return {Commit.HEAD: decided, Commit.BASE: base}
    if not brought.another_image:
        return {Commit.HEAD: decided}
    # before the engine fetches it or starts anything in it
    refuse_image(request)
    return {
        commit: decided
        if image == settings.isolation.image
        else TrainingEnvironment(
            isolation=isolate(_with_image(settings, image), (folder,)), host=host
        )
        for commit, image in (
            (Commit.HEAD, brought.head_image),
            (Commit.BASE, brought.base_image),
        )
        if image
    }


def refuse_image(request: GateRequest) -> None:
    """Raise `SettingsError` where a pull request asks for an image that its base does not allow."""
    image, allowed = request.brought.head_image, request.settings.policy.images
    # on the command line the caller's own settings decide, and they name it
    if not request.pull_request or any(_fits(image, pattern) for pattern in allowed):
        return
    name = image.partition("@")[0]
    raise SettingsError(
        f"this pull request trains in another image, {image}, which policy.images of the base "
        "commit does not allow",
        hint=f"Add a pattern such as `{name}` to policy.images on the base branch first; this "
        "change can then be tried in its own image.",
    )


def _fits(image: str, pattern: str) -> bool:
    """A pattern of names fits whatever digest they have; an image without a name is its digest."""
    name, _, _ = image.partition("@")
    return fnmatchcase(name, pattern) or fnmatchcase(image, pattern)


def _with_image(settings: GateSettings, image: str) -> GateSettings:
    isolation = settings.isolation.model_copy(update={"image": image})
    return settings.model_copy(update={"isolation": isolation})
