"""Turns an event into a request: which commit, judged by which rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from gate.errors import GateError, RepositoryError, SettingsError
from gate.pipelines.adapters import Adapters
from gate.pipelines.environments import brought_environment
from gate.pipelines.policy_files import HeadFiles, committed_entries
from gate.pipelines.reader_questions import (
    BaselineChangesQuestion,
    ChangesQuestion,
    KeyChangesQuestion,
    RootChangesQuestion,
    SettingsChangesQuestion,
)
from gate.pipelines.settings_file import settings_in
from gate.settings.event import ActionContext, ActionInputs
from gate.settings.gate_settings import FILE_NAME
from gate.settings.load import MINIMAL_FILE, parse_settings
from gate.settings.policy_change import PolicyChange
from gate.settings.reach import refuse_reach
from gate.system.git.repository import Git
from gate.text.untrusted_text import safe_line
from gate.verdict.history_lines import HISTORY_BRANCH, History, history_file
from gate.verdict.request import GateRequest

LOOK_ALIKE: Final = {".yml": ".yaml", ".yaml": ".yml"}


def event_request(context: ActionContext, inputs: ActionInputs, adapters: Adapters) -> GateRequest:
    """Return the request of an event; policy files come from the commit that is merged into (T2).

    Only if the base has no settings file, head's settings are used, and the request says so. They
    must not reach outside the tree. A separate process parses everything of head.
    """
    with HeadFiles(adapters, context.workspace) as head_files:
        return _request(context, inputs, adapters.git, head_files)


def _request(
    context: ActionContext, inputs: ActionInputs, git: Git, head_files: HeadFiles
) -> GateRequest:
    head = git.resolve(context.head_commit)
    pull_request = context.pull_request
    # taken from the event, because a workflow in the pull request could name its own head as input
    trusted_base = context.trusted_base
    named_base = trusted_base or inputs.base
    base = git.resolve(named_base) if named_base else None
    path = inputs.config or FILE_NAME
    # an input may name a base for comparison, but only the event's base is trusted to decide
    trusted = git.read_file(base, path) if base and trusted_base else None
    # the base's file wins even if head has another one, which is shown but not obeyed (T2)
    text = trusted if trusted is not None else _settings_of_head(git, head, path)
    untrusted = trusted is None and trusted_base is not None
    # this process later holds key and token, so it does not parse untrusted YAML (T5)
    settings = head_files.settings(text, path) if untrusted else parse_settings(text, path)
    if untrusted:
        # nobody with a say has read these settings, so they must not reach outside their own tree
        refuse_reach(settings, path)
    request = GateRequest(
        top=context.workspace,
        project=Path(path).parent.as_posix(),
        config_name=Path(path).name,
        settings=settings,
        settings_text=text,
        settings_from="base" if trusted is not None else "head",
        out=context.workspace / inputs.out,
        commit=head,
        base_commit=base,
        base_branch=context.base_branch,
        pull_request=trusted_base is not None,
        from_fork=pull_request is not None and pull_request.from_fork,
        repository=context.repository,
        run_url=context.run_url,
        credentials_left=git.credentials_left(),
        baseline_reason=inputs.baseline_reason,
        on_runner=True,
        sign=inputs.sign,
        nightly=context.nightly,
        named_gate=inputs.gate_id,
        artifact=inputs.artifact,
    )
    if settings.report.history:
        history = _history(git, head_files, request.gate_id)
        request = replace(request, history=history)
    if trusted_base is None or base is None:
        return request
    # shown to the reviewer, because these files decide over later changes once merged
    changes = _policy_changes(request, (base, head), git, head_files)
    environment = brought_environment(request, head_files.settings, git)
    return replace(request, policy_changes=changes, environment_change=environment)


def _settings_of_head(git: Git, head: str, path: str) -> bytes:
    """Return the settings file of the commit under test; raise `SettingsError` without one."""
    text = git.read_file(head, path)
    if text is None:
        raise SettingsError(
            f"{path}: not in commit {head[:12]}", hint=_other_settings(git, head, Path(path))
        )
    return text


def _other_settings(git: Git, head: str, path: Path) -> str:
    """Return a hint with the settings files that the commit has instead, else a minimal file."""
    look_alike = path.with_suffix(LOOK_ALIKE.get(path.suffix, path.suffix)).as_posix()
    if look_alike != path.as_posix() and git.read_file(head, look_alike) is not None:
        existing, configured = safe_line(look_alike), safe_line(path.as_posix())
        return (
            f"Rename it: git mv {existing} {configured}. Or set the action's input: "
            f"config: {existing}"
        )
    others = settings_in(git, git.top_level())
    if others:
        shown = ", or config: ".join(map(safe_line, others))
        return f"This repository has others. Set the action's input: config: {shown}"
    return f"Create one; a minimal file:\n{MINIMAL_FILE}"


def _history(git: Git, head_files: HeadFiles, gate_id: str) -> History:
    """Return earlier runs from the clone; what prevents that becomes a notice, not a fault.

    Anyone who may push a branch may have written them, so a separate process parses them.
    """
    path = history_file(gate_id)
    try:
        commit = git.resolve(f"refs/remotes/origin/{HISTORY_BRANCH}")
        data = git.read_file(commit, path)
        if data is None:
            return History(problem=f"no history of this gate yet: no {path} on {HISTORY_BRANCH}")
        return head_files.history(data, path)
    except RepositoryError:
        return History(problem=f"no history yet: no branch {HISTORY_BRANCH} in this clone")
    except GateError as fault:
        return History(problem=f"the history cannot be read: {fault.message}")


def _policy_changes(
    request: GateRequest, commits: tuple[str, str], git: Git, head_files: HeadFiles
) -> tuple[PolicyChange, ...]:
    """Return what the pull request changes in settings, baseline and trust: shown, not obeyed."""
    settings = request.settings
    policy_files: list[tuple[type[ChangesQuestion], str]] = [
        (SettingsChangesQuestion, request.config_name),
        (KeyChangesQuestion, settings.signing.trusted_keys),
    ]
    if settings.signing.trusted_root is not None:
        policy_files.append((RootChangesQuestion, settings.signing.trusted_root))
    changes: list[PolicyChange] = []
    for kind, name in policy_files:
        path = request.repository_path(name)
        before, after = (git.read_file(commit, path) for commit in commits)
        changes += head_files.changes(kind, path, before, after)
    folder = request.repository_path(settings.baseline.path)
    old, new = (committed_entries(git, commit, folder) for commit in commits)
    changes += head_files.changes(BaselineChangesQuestion, folder, old, new)
    return tuple(changes)
