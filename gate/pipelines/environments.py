"""Decides in which environment each commit trains, what a change installs, and why a GPU is missed.

If a change installs another image or other packages, each commit trains in the environment that it
asks for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gate.errors import GateError, SettingsError
from gate.evidence.lock_files import MAX_BROUGHT_FILES, NOTHING_BROUGHT, BroughtEnvironment
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Isolation
from gate.isolation.process_request import Processes
from gate.pipelines.adapters import Adapters
from gate.pipelines.doctor.machine_checks import why_no_gpu
from gate.settings.gate_settings import Device, GateSettings
from gate.settings.policy_change import dependency_files
from gate.system.files.port import Files
from gate.system.git.repository import Git
from gate.system.machine import GpuMissed, GpusSeen, TrainingSeen
from gate.training.runs import Commit
from gate.verdict.request import GateRequest


def brought_environment(
    request: GateRequest, parse: Callable[[bytes, str], GateSettings], git: Git
) -> BroughtEnvironment:
    """Return how the environments of base commit and change differ; empty without a base.

    `parse` reads the settings of the side that does not decide. On a pull request that is head,
    whose settings a separate process parses. Unreadable settings change no environment here; they
    are reported elsewhere.
    """
    if request.base_commit is None:
        return NOTHING_BROUGHT
    head = request.commit or git.resolve("HEAD")
    changed = _changed(request.base_commit, head, git)
    # the work tree is trained, so its uncommitted changes count too
    if request.commit is None:
        changed |= {*git.changed_files()}
    # lock files that the settings name may have any name
    named = changed.intersection(map(request.repository_path, request.settings.environment.locks))
    files = tuple(sorted({*dependency_files(changed), *named}))[:MAX_BROUGHT_FILES]
    # an unchanged settings file names the same image on both sides
    if request.repository_path(request.config_name) not in changed:
        return BroughtEnvironment(files=files)
    decides = request.settings.isolation.image or ""
    other = _image(head if request.pull_request else request.base_commit, request, parse, git)
    if other is None or other == decides:
        return BroughtEnvironment(files=files)
    base, after = (decides, other) if request.pull_request else (other, decides)
    return BroughtEnvironment(files=files, base_image=base, head_image=after)


def _changed(base: str, head: str, git: Git) -> set[str]:
    """Return what head itself changed, without what the base branch gained since the fork point."""
    changed = {*git.changed_between(base, head)}
    parted = git.merge_base(base, head)
    return changed & {*git.changed_between(parted, head)} if parted else changed


def _image(
    commit: str, request: GateRequest, parse: Callable[[bytes, str], GateSettings], git: Git
) -> str | None:
    """Return the image that a commit's settings name; empty for none, None if unreadable."""
    path = request.repository_path(request.config_name)
    try:
        text = git.read_file(commit, path)
        if text is None:
            return None
        # a base without settings takes head's, which have been parsed already
        settings = request.settings if text == request.settings_text else parse(text, path)
    except GateError:
        return None
    return settings.isolation.image or ""


Isolate = Callable[[GateSettings, tuple[Path, ...]], Isolation]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEnvironment:
    """The isolation of a run, and the host variables from which its own are chosen."""

    isolation: Isolation
    host: Mapping[str, str]


def training_environments(
    request: GateRequest,
    isolate: Isolate,
    folder: Path,
    host: Mapping[str, str],
    base_path: str,
) -> dict[Commit, TrainingEnvironment]:
    """Return head's environment, and the base commit's if it is different and available.

    `base_path` is a PATH with the programs of the base commit's own packages, or empty. Raises
    `SettingsError` for an image that a pull request must not use, and what `isolate` raises.
    """
    change, settings = request.environment_change, request.settings
    decided = TrainingEnvironment(isolation=isolate(settings, (folder,)), host=host)
    if not decided.isolation.in_container:
        if not base_path or not settings.policy.run_base_on_drift:
            return {Commit.HEAD: decided}
        base = TrainingEnvironment(isolation=decided.isolation, host={**host, "PATH": base_path})
        return {Commit.HEAD: decided, Commit.BASE: base}
    if not change.another_image:
        return {Commit.HEAD: decided}
    # before the engine downloads the image or starts anything in it
    refuse_image(request)
    return {
        commit: decided
        if image == settings.isolation.image
        else TrainingEnvironment(
            isolation=isolate(_with_image(settings, image), (folder,)), host=host
        )
        for commit, image in (
            (Commit.HEAD, change.head_image),
            (Commit.BASE, change.base_image),
        )
        if image
    }


def refuse_image(request: GateRequest) -> None:
    """Raise `SettingsError` if a pull request uses an image that its base does not allow."""
    image, allowed = request.environment_change.head_image, request.settings.policy.images
    # on the command line the caller's own settings name the image, so they allow it
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
    """Match a pattern against the image's name, or against the whole image with its digest.

    An image without a name consists of its digest alone.
    """
    name, _, _ = image.partition("@")
    return fnmatchcase(name, pattern) or fnmatchcase(image, pattern)


def _with_image(settings: GateSettings, image: str) -> GateSettings:
    isolation = settings.isolation.model_copy(update={"image": image})
    return settings.model_copy(update={"isolation": isolation})


# arguments: settings, isolation, the run's folder, files, processes, variables of the host
Probe = Callable[[GateSettings, Isolation, Path, Files, Processes, Mapping[str, str]], TrainingSeen]


class GpuSearch:
    """Finds out at most once a call why a run used no GPU; `missed` is None if it missed none."""

    def __init__(
        self, settings: GateSettings, adapters: Adapters, folder: Path, probe: Probe
    ) -> None:
        """`folder` is the folder of a run, which `probe` may use between two runs."""
        self._settings = settings
        self._probe = probe
        self._adapters = adapters
        self._folder = folder
        self._looked = False
        self.missed: GpuMissed | None = None

    def look(self, run: RunEvidence, isolation: Isolation) -> None:
        """Ask the training's Python in a separate process, isolated like a run.

        The training itself is never asked to start a GPU that it does not use.
        """
        adapters = self._adapters
        if self._looked or self._settings.train.device is Device.CPU:
            return
        self._looked = True
        host = adapters.gpus() if run.environment.ranks_on_cpu else GpusSeen()
        if not host.names:
            return
        try:
            with adapters.progress.running("checking why the training used no GPU"):
                training = self._probe(
                    self._settings,
                    isolation,
                    self._folder,
                    adapters.files,
                    adapters.processes,
                    adapters.host,
                )
        except GateError as fault:
            training = TrainingSeen(problem=fault.message, hint=fault.hint)
        # the probe used the training's account, and leaves nothing for the next run to find
        adapters.clean_up(isolation)
        self.missed = why_no_gpu(host, training, isolation)
