"""Parses the GitHub event and the action's inputs once, from a mapping, into typed records.

It also writes the step state for the post step. A cancelled step writes nothing at its end, so the
state is written at the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from gate.errors import SettingsError
from gate.settings.signer_places import SignerPlace, read_signer_place
from gate.system.gate_names import (
    DEFAULT_GATE,
    GATE_ID,
    artifact_name,
    is_artifact_name,
    output_folder,
)
from gate.system.github.records import PullRequest, RunOrigin, api_address
from gate.text.document import path_inside_project
from gate.text.strict_json import parse_json


class Mode(StrEnum):
    """How much of the pipeline one step runs: all of it, only the training, or only the judging.

    `link` is the step after the upload: it adds the page's address to the comment.
    """

    GATE = "gate"
    RUN = "run"
    JUDGE = "judge"
    LINK = "link"


# the modes in which no code of a pull request runs
TRAINS_NOTHING = frozenset((Mode.JUDGE, Mode.LINK))


class SigningMethod(StrEnum):
    """What signs a pass: a key, or the job's identity through Sigstore."""

    KEY = "key"
    SIGSTORE = "sigstore"


RUN_NAME = "repro_gate_run"
CONTAINER_NAME = "repro_gate_container"
# Both values are passed to the container engine, so accept only what the step itself can have
# written.
RUN_ID = re.compile(r"[0-9a-f]{16}\Z")
CONTAINER_ID = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepState:
    """The label of the step's training containers, and the id of the step's own container.

    Both are empty if the step wrote no state: then there is nothing to clean up.
    """

    run: str = ""
    container: str = ""


def state_file_text(state: StepState) -> str:
    """Return the text to append to the file that `GITHUB_STATE` names."""
    return f"{RUN_NAME}={state.run}\n{CONTAINER_NAME}={state.container}\n"


def read_step_state(variables: Mapping[str, str]) -> StepState:
    """Return the state that the step wrote; a value that it cannot have written is dropped."""
    run = variables.get(f"STATE_{RUN_NAME}", "")
    container = variables.get(f"STATE_{CONTAINER_NAME}", "")
    return StepState(
        run=run if RUN_ID.match(run) else "",
        container=container if CONTAINER_ID.match(container) else "",
    )


CORRECT_INPUT = "Correct it under `with:` in the step of the workflow."
ON_A_RUNNER = "`repro-gate action` is for a GitHub runner; locally use `repro-gate gate`."
# `\Z` and not `$`, because `$` also matches before a final line end.
REPOSITORY_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}\Z")
# SHA-1, or SHA-256 in repositories with that object format.
COMMIT_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
TARGET_EVENT = "pull_request_target"
FOLLOWING_EVENT = "workflow_run"
QUEUE_EVENT = "merge_group"
COMMIT_EVENTS = ("push", "workflow_dispatch", "schedule", QUEUE_EVENT)
LINE_LIMIT = 300
BRANCHES = "refs/heads/"
MAX_BRANCH = 255
# characters that git-check-ref-format(1) forbids
NO_BRANCH = frozenset(" ~^:?*[\\\x7f").union(map(chr, range(32)))
MAX_EVENT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionInputs:
    """The step's `with:` without secrets, which `gate.package.secrets` reads late.

    `gate_id` is empty if the settings name the gate. `artifact` is the name under which the
    workflow uploads `out`, or empty for the default name.
    """

    config: str
    base: str
    out: str
    comment: bool
    mode: Mode
    evidence: str
    status: bool
    baseline_reason: str
    sign: SigningMethod
    signer: SignerPlace | None
    gate_id: str = ""
    artifact: str = ""
    page_url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionContext:
    """Where the action runs: repository, event, and the files that the runner reads.

    `queue_base` and `queue_branch` are the commit and the branch that a merge queue's group is to
    be merged into. `on_default_branch` is true if the event is about a commit of the default
    branch. `nightly` is true for a schedule, a manual start or a push to that branch: nobody waits
    for these.
    """

    repository: str
    workspace: Path
    api_url: str
    run_url: str
    pull_request: PullRequest | None
    head_commit: str
    origin: RunOrigin | None
    queue_base: str | None
    queue_branch: str
    on_default_branch: bool
    nightly: bool
    output_path: Path | None
    summary_path: Path | None

    @property
    def trusted_base(self) -> str | None:
        """The commit that the change is to be merged into; None if the event has none."""
        return self.pull_request.base_sha if self.pull_request else self.queue_base

    @property
    def base_branch(self) -> str:
        """The branch that the change is to be merged into; empty if the event has none."""
        return self.pull_request.base_branch if self.pull_request else self.queue_branch


def read_inputs(variables: Mapping[str, str]) -> ActionInputs:
    """Return the action's inputs from `INPUT_*`; an empty input counts as absent.

    Raises `SettingsError` for an invalid input.
    """
    gate_id = _gate_id(variables)
    return ActionInputs(
        config=_config(variables),
        base=_input(variables, "base"),
        out=_folder(variables, "out", default=output_folder(gate_id or DEFAULT_GATE)),
        comment=_flag(variables, "comment", default=True),
        mode=_mode(variables),
        evidence=_folder(variables, "evidence", default="repro-gate-evidence"),
        status=_flag(variables, "status", default=False),
        baseline_reason=_line(variables, "baseline_reason"),
        sign=_sign(variables),
        signer=_signer(variables),
        gate_id=gate_id,
        artifact=_artifact(variables, gate_id),
        page_url=_input(variables, "page_url"),
    )


def _gate_id(variables: Mapping[str, str]) -> str:
    text = _input(variables, "gate_id")
    # the id becomes part of file names, of a comment's marker and of the check's name
    if text and not GATE_ID.match(text):
        raise SettingsError(
            f"input gate_id: {text[:60]!r} is not the id of a gate",
            hint="Use at most 40 letters, digits, dots, hyphens and underscores, such as `a100`.",
        )
    return text


def _artifact(variables: Mapping[str, str], gate_id: str) -> str:
    """Return the artifact's name; empty for the name that `baseline accept` tries by itself."""
    text = _input(variables, "artifact")
    if text and not is_artifact_name(text):
        raise SettingsError(
            f"input artifact: {text[:60]!r} is not the name of an artifact",
            hint="Give the `name:` of the step that uploads the output folder.",
        )
    named = text or (artifact_name(gate_id) if gate_id else "")
    return "" if named == artifact_name(DEFAULT_GATE) else named


def _input(variables: Mapping[str, str], name: str) -> str:
    return variables.get(f"INPUT_{name.upper()}", "").strip()


def _line(variables: Mapping[str, str], name: str) -> str:
    """Return one line of text that a person typed into a form."""
    text = _input(variables, name)
    if not text.isprintable() or len(text) > LINE_LIMIT:
        raise SettingsError(
            f"input {name}: not one line of at most {LINE_LIMIT} characters",
            hint="Say it in one sentence; the pull request has room for more.",
        )
    return text


def _folder(variables: Mapping[str, str], name: str, *, default: str) -> str:
    """Return a folder inside the workspace.

    Root writes there and gives the files to the workspace's owner, so no other place is allowed.
    """
    text = _input(variables, name) or default
    try:
        return path_inside_project(text)
    except ValueError as error:
        raise SettingsError(
            f"input {name}: {text[:80]!r} {error}", hint=f"Name a folder such as {default}."
        ) from error


def _config(variables: Mapping[str, str]) -> str:
    """Return the path of the settings file, which is read from commits; empty for the default."""
    text = _input(variables, "config")
    try:
        return PurePosixPath(path_inside_project(text)).as_posix() if text else ""
    except ValueError as error:
        raise SettingsError(
            f"input config: {text[:80]!r} {error}", hint="Name a file such as ml/repro-gate.yml."
        ) from error


def _mode(variables: Mapping[str, str]) -> Mode:
    text = _input(variables, "mode").lower() or Mode.GATE.value
    if text not in {mode.value for mode in Mode}:
        known = ", ".join(mode.value for mode in Mode)
        raise SettingsError(f"input mode: {text[:40]!r} is not one of {known}", hint=CORRECT_INPUT)
    return Mode(text)


def _sign(variables: Mapping[str, str]) -> SigningMethod:
    text = _input(variables, "sign").lower() or SigningMethod.KEY.value
    if text not in {method.value for method in SigningMethod}:
        known = ", ".join(method.value for method in SigningMethod)
        raise SettingsError(f"input sign: {text[:40]!r} is not one of {known}", hint=CORRECT_INPUT)
    # refuse these inputs instead of ignoring them: the author believes that they sign
    for name in ("signing_key", "signer"):
        if text == SigningMethod.SIGSTORE.value and _input(variables, name):
            raise SettingsError(
                f"input sign: sigstore takes no {name}",
                hint="Leave one of the two out.",
            )
    return SigningMethod(text)


def _signer(variables: Mapping[str, str]) -> SignerPlace | None:
    """Return the place of the key; its secrets are read later."""
    text = _input(variables, "signer")
    if text and _input(variables, "signing_key"):
        raise SettingsError(
            "inputs signer and signing_key are two ways to give one key",
            hint="Leave one of the two out.",
        )
    try:
        return read_signer_place(text) if text else None
    except SettingsError as error:
        raise SettingsError(f"input signer: {error.message}", hint=error.hint) from error


def _flag(variables: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = _input(variables, name).lower()
    # YAML users write yes and on too; anything unexpected is an error instead of a silent false
    if text not in {"", "true", "false"}:
        raise SettingsError(
            f"input {name}: {text[:40]!r} is neither true nor false",
            hint=CORRECT_INPUT,
        )
    return text == "true" if text else default


def read_context(
    variables: Mapping[str, str], event: bytes, mode: Mode = Mode.GATE
) -> ActionContext:
    """Return the context of the event; `event` is the content of `GITHUB_EVENT_PATH`.

    Raises `SettingsError` for an unknown event, for a malformed event file, and for a trigger that
    would run a stranger's code with secrets. After a `workflow_run`, which only a judging mode may
    follow, `origin` is set and the pull request is still unknown.
    """
    name = variables.get("GITHUB_EVENT_NAME", "")
    _refuse_trigger(name, mode)
    # use the hashes in the event: variables such as GITHUB_HEAD_REF contain names, which can move
    pull_request, origin = None, None
    if name == "pull_request":
        pull_request = _pull_request(event)
    elif name == FOLLOWING_EVENT:
        origin = _origin(event)
    elif name not in COMMIT_EVENTS:
        raise SettingsError(
            f"event {name[:60]!r}: not supported",
            hint=f"Use pull_request or one of {', '.join(COMMIT_EVENTS)}.",
        )
    pull_request_or_origin = pull_request or origin
    on_default_branch = _on_default_branch(name, event, variables)
    queue_base, queue_branch = _queue_base(event) if name == QUEUE_EVENT else (None, "")
    output_path, summary_path = runner_files(variables)
    return ActionContext(
        repository=_repository(variables),
        workspace=Path(variables.get("GITHUB_WORKSPACE", ".")),
        api_url=api_address(variables),
        run_url=run_url_of(variables),
        pull_request=pull_request,
        head_commit=pull_request_or_origin.head_sha
        if pull_request_or_origin
        else _commit(variables),
        origin=origin,
        queue_base=queue_base,
        queue_branch=queue_branch,
        on_default_branch=on_default_branch,
        nightly=on_default_branch or name == "workflow_dispatch",
        output_path=output_path,
        summary_path=summary_path,
    )


def _refuse_trigger(name: str, mode: Mode) -> None:
    # both triggers run a workflow of this repository with its secrets, which head's code would get
    if name == TARGET_EVENT or (name == FOLLOWING_EVENT and mode not in TRAINS_NOTHING):
        raise SettingsError(
            f"event {name}: refused because it would run the pull request's code with this "
            "repository's secrets",
            hint="Start the gate `on: pull_request`. For forks, use two jobs; the one with "
            "secrets runs no code of the fork: README, Pull requests from forks.",
        )


def _origin(event: bytes) -> RunOrigin:
    """Return what the finished workflow ran on.

    The event's list `pull_requests` is empty for forks, so it is not used.
    """
    value = parse_json(event, "GITHUB_EVENT_PATH", max_bytes=MAX_EVENT_BYTES)
    if _dig(value, "workflow_run", "event") != "pull_request":
        raise SettingsError(
            "the workflow that this one follows was not started by a pull request",
            hint="Judge after a workflow that runs `on: pull_request`; elsewhere use mode gate.",
        )
    head_sha = _dig(value, "workflow_run", "head_sha")
    branch = _dig(value, "workflow_run", "head_branch")
    owner = _dig(value, "workflow_run", "head_repository", "owner", "login")
    repository = _dig(value, "workflow_run", "head_repository", "full_name")
    texts = (head_sha, branch, owner, repository)
    if not all(isinstance(text, str) and text for text in texts) or not COMMIT_HASH.match(
        str(head_sha)
    ):
        raise SettingsError(
            "GITHUB_EVENT_PATH: no workflow_run with head_sha, head_branch and head_repository",
            hint="The event file is written by the runner; do not replace it.",
        )
    return RunOrigin(
        head_sha=str(head_sha),
        head_repository=str(repository),
        head_owner=str(owner),
        head_branch=str(branch),
    )


def _repository(variables: Mapping[str, str]) -> str:
    name = variables.get("GITHUB_REPOSITORY", "")
    if not REPOSITORY_NAME.match(name):
        raise SettingsError(
            f"GITHUB_REPOSITORY {name[:80]!r} is not owner/name",
            hint=ON_A_RUNNER,
        )
    return name


def _commit(variables: Mapping[str, str]) -> str:
    commit = variables.get("GITHUB_SHA", "")
    if not COMMIT_HASH.match(commit):
        raise SettingsError(f"GITHUB_SHA {commit[:80]!r} is not a commit hash", hint=ON_A_RUNNER)
    return commit


def _path(variables: Mapping[str, str], name: str) -> Path | None:
    text = variables.get(name, "")
    return Path(text) if text else None


def runner_files(variables: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    """Return the files for outputs and the job's summary, each None if the runner names none."""
    return _path(variables, "GITHUB_OUTPUT"), _path(variables, "GITHUB_STEP_SUMMARY")


def run_url_of(variables: Mapping[str, str]) -> str:
    """Return the address of this workflow run; empty outside of one."""
    server, run = variables.get("GITHUB_SERVER_URL", ""), variables.get("GITHUB_RUN_ID", "")
    if not server.startswith(("https://", "http://")) or not run.isdigit():
        return ""
    return f"{server.rstrip('/')}/{_repository(variables)}/actions/runs/{run}"


def _pull_request(event: bytes) -> PullRequest:
    value = parse_json(event, "GITHUB_EVENT_PATH", max_bytes=MAX_EVENT_BYTES)
    number = _dig(value, "pull_request", "number")
    head = _dig(value, "pull_request", "head", "sha")
    base = _dig(value, "pull_request", "base", "sha")
    branch = _dig(value, "pull_request", "base", "ref")
    head_repository = _dig(value, "pull_request", "head", "repo", "full_name")
    base_repository = _dig(value, "pull_request", "base", "repo", "full_name")
    commits = all(isinstance(commit, str) and COMMIT_HASH.match(commit) for commit in (head, base))
    if not isinstance(number, int) or not commits or not _is_branch(branch):
        raise SettingsError(
            "GITHUB_EVENT_PATH: no pull_request with number, head.sha, base.sha and base.ref",
            hint="The event file is written by the runner; do not replace it.",
        )
    return PullRequest(
        number=number,
        head_sha=str(head),
        base_sha=str(base),
        base_branch=str(branch),
        # a deleted fork has no repository in the event, and counts as a fork
        from_fork=head_repository != base_repository,
    )


def _queue_base(event: bytes) -> tuple[str, str]:
    """Return the commit and the branch that a merge queue's group is to be merged into."""
    value = parse_json(event, "GITHUB_EVENT_PATH", max_bytes=MAX_EVENT_BYTES)
    base = _dig(value, "merge_group", "base_sha")
    ref = _dig(value, "merge_group", "base_ref")
    branch = ref.removeprefix(BRANCHES) if isinstance(ref, str) else None
    if not isinstance(base, str) or not COMMIT_HASH.match(base) or not _is_branch(branch):
        raise SettingsError(
            "GITHUB_EVENT_PATH: no merge_group with base_sha and base_ref",
            hint="The event file is written by the runner; do not replace it.",
        )
    return base, str(branch)


def _is_branch(name: object) -> bool:
    """Decide whether a text can be a branch name; git refuses to create any other."""
    # rules of git-check-ref-format(1); GitHub allows at most 255 bytes
    return isinstance(name, str) and 0 < len(name) <= MAX_BRANCH and not set(name) & NO_BRANCH


def _on_default_branch(name: str, event: bytes, variables: Mapping[str, str]) -> bool:
    """Decide from the event, not from an input, whether the commit is on the default branch."""
    # GitHub runs schedules only on the default branch, and their event names no branch
    if name == "schedule":
        return True
    if name not in {"push", "workflow_dispatch"}:
        return False
    value = parse_json(event, "GITHUB_EVENT_PATH", max_bytes=MAX_EVENT_BYTES)
    default = _dig(value, "repository", "default_branch")
    return isinstance(default, str) and variables.get("GITHUB_REF") == f"refs/heads/{default}"


def _dig(value: object, *path: str) -> object:
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
