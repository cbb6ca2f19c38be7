"""The verdict beside the commit under test: a commit status, where the step asks for one."""

from __future__ import annotations

from collections.abc import Callable

from gate.errors import PublishError
from gate.report.escape import safe_url
from gate.settings.event import ActionContext, ActionInputs
from gate.settings.gate_settings import FILE_NAME
from gate.settings.mode import Mode
from gate.system.gate_names import DEFAULT_GATE, status_context
from gate.system.github.pull_request_records import CommitStatus, StatusState
from gate.system.github.status import set_commit_status

SetStatus = Callable[[ActionContext, str, CommitStatus], None]


def tell_status(
    context: ActionContext,
    inputs: ActionInputs,
    told: tuple[StatusState, str],
    token: str,
    set_status: SetStatus,
) -> str:
    """Set the status on the commit that was checked, and say whether that worked.

    On a pull request that is its head. A commit may be the head of several, towards branches with
    other rules: the context names the branch, so none answers for another. Nothing is said where
    nothing was asked for; what keeps a status from being set changes no verdict.
    """
    fork = context.pull_request is not None and context.pull_request.from_fork
    if not inputs.status or inputs.mode is Mode.RUN:
        return ""
    # the token stays unused in a job that ran untrusted code, even after it has ended
    if fork and inputs.mode is not Mode.JUDGE:
        return "no status: a fork's code ran in this job, so its token is not used"
    if not token:
        return "no status: no token was given"
    state, description = told
    status = CommitStatus(
        # the head and not the merge commit that was checked out: a required check looks at the head
        commit=context.head_commit,
        state=state,
        context=status_context(
            inputs.gate_id or DEFAULT_GATE, inputs.config, FILE_NAME, context.base_branch
        ),
        description=description,
        target_url=safe_url(context.run_url),
    )
    try:
        set_status(context, token, status)
    except PublishError as error:
        return f"no status: {error}"
    return f"status {state.value} set on commit {context.head_commit}"


def github_status(context: ActionContext, token: str, status: CommitStatus) -> None:
    """Set the real status of the event's commit; raises `PublishError`."""
    set_commit_status(status, api_url=context.api_url, repository=context.repository, token=token)
