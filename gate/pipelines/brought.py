"""What a change brings with it: another image, other files that say which packages there are."""

from __future__ import annotations

from collections.abc import Callable

from gate.errors import GateError
from gate.evidence.brought import MAX_BROUGHT_FILES, NOTHING_BROUGHT, BroughtEnvironment
from gate.settings.gate_settings import GateSettings
from gate.settings.policy_files import dependency_files
from gate.system.git.port import Git
from gate.verdict.request import GateRequest


def brought_environment(
    request: GateRequest, parse: Callable[[bytes, str], GateSettings], git: Git
) -> BroughtEnvironment:
    """What differs between the base commit and the change; nothing where there is no base.

    `parse` reads the settings of the side that does not decide: on a pull request the head's, in a
    separate process. Settings that cannot be read bring nothing: they are shown as that.
    """
    if request.base_commit is None:
        return NOTHING_BROUGHT
    head = request.commit or git.resolve("HEAD")
    changed = _changed(request.base_commit, head, git)
    if request.commit is None:
        changed |= {*git.changed_files()}
    files = dependency_files(changed)[:MAX_BROUGHT_FILES]
    if request.repository_path(request.config_name) not in changed:
        return BroughtEnvironment(files=files)
    decides = request.settings.isolation.image or ""
    other = _image(head if request.pull_request else request.base_commit, request, parse, git)
    if other is None or other == decides:
        return BroughtEnvironment(files=files)
    base, after = (decides, other) if request.pull_request else (other, decides)
    return BroughtEnvironment(files=files, base_image=base, head_image=after)


def _changed(base: str, head: str, git: Git) -> set[str]:
    """What head itself changed: not what the base branch has got since the two parted."""
    changed = {*git.changed_between(base, head)}
    parted = git.merge_base(base, head)
    return changed & {*git.changed_between(parted, head)} if parted else changed


def _image(
    commit: str, request: GateRequest, parse: Callable[[bytes, str], GateSettings], git: Git
) -> str | None:
    """The image that a commit's settings ask for, empty for none, None where they cannot say."""
    path = request.repository_path(request.config_name)
    try:
        text = git.read_file(commit, path)
        if text is None:
            return None
        # a base without settings takes the head's: these have been read
        settings = request.settings if text == request.settings_text else parse(text, path)
    except GateError:
        return None
    return settings.isolation.image or ""
