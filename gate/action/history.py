"""The verdict beside earlier ones: a line on a branch of its own, where the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gate.errors import InternalError, PublishError
from gate.publishing.history import HistoryBranch
from gate.report.badge import badge_json
from gate.report.entry_words import history_line
from gate.report.runner_files import notice_annotation
from gate.report.wording import sentences
from gate.settings.event import ActionContext
from gate.verdict.history import with_line
from gate.verdict.published_history import HISTORY_BRANCH, badge_file, history_file
from gate.verdict.verdict import Verdict

Made = Callable[[bytes], Mapping[str, bytes]]
# the history's file, and what becomes of it
KeepHistory = Callable[[ActionContext, str, str, Made], None]


def tell_history(
    context: ActionContext, verdict: Verdict, gate_id: str, token: str, keep: KeepHistory
) -> str:
    """Add a line for this verdict, on the default branch of the repository itself.

    The answer is a line for the log, empty where there is nothing to say. Nothing that
    goes wrong here changes a verdict.
    """
    if not context.on_default_branch:
        return ""
    if not token:
        return notice_annotation("history", "no line added: no token was given")

    def made(old: bytes) -> Mapping[str, bytes]:
        return {
            history_file(gate_id): with_line(old, history_line(verdict)),
            badge_file(gate_id): badge_json(verdict, gate_id=gate_id),
        }

    try:
        keep(context, token, history_file(gate_id), made)
    except PublishError as error:
        message = sentences(f"no line added: {error.message}", error.hint)
        return notice_annotation("history", message)
    except Exception as raised:  # noqa: BLE001 - the verdict stands, whatever this is
        return notice_annotation("history", f"no line added: {InternalError(raised)}")
    return f"line added to {history_file(gate_id)} on the branch {HISTORY_BRANCH}"


def github_history(context: ActionContext, token: str, path: str, made: Made) -> None:
    """Write to the real branch; raises `PublishError`."""
    branch = HistoryBranch(api_url=context.api_url, repository=context.repository, token=token)
    branch.change(HISTORY_BRANCH, path, f"{path}: commit {context.head_commit[:12]}", made)
