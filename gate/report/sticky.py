"""One comment a gate: found again by its marker and its author, and only then replaced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gate.errors import PublishError
from gate.report.report import Publication
from gate.settings.gate_settings import CommentPolicy
from gate.system.github.pull_request_records import Comment, Comments
from gate.verdict.verdict import Outcome, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Create:
    """Write a new comment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Replace the text of this comment."""

    comment_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unchanged:
    """The comment already says so."""

    url: str


Decision = Create | Update | Unchanged


def comment_change(listed: Iterable[Comment], *, author: str, marker: str, body: str) -> Decision:
    """What to do so that exactly one comment carries `marker`, and says `body`.

    Marker and author must both match: anybody can write the marker. The first match wins,
    and nothing behind it is read.
    """
    for comment in listed:
        # anybody may copy the marker: a comment of theirs
        # must neither be edited nor be taken for the verdict
        if comment.author == author and _first_line(comment.body) == marker:
            # each edit stays in the comment's history, and none is due
            if _same_text(comment.body, body):
                return Unchanged(url=comment.url)
            return Update(comment_id=comment.comment_id)
    return Create()


def wanted(policy: CommentPolicy, verdict: Verdict) -> bool:
    """Whether a pull request without a comment gets one after this verdict."""
    if policy is CommentPolicy.CHANGES:
        return not verdict.passes or verdict.outcome is not Outcome.REPRODUCED
    if policy is CommentPolicy.FAILURES:
        return not verdict.passes
    return policy is CommentPolicy.ALWAYS


def publish(comments: Comments, *, marker: str, body: str, create: bool = True) -> Publication:
    """Put the comment on the pull request, or say why that was not possible.

    Without `create` only a comment that is there already is replaced: an older red one must not
    stay above a green check. Never raises `PublishError`: a verdict stands whether or not it could
    be posted.
    """
    try:
        author = comments.author()
        decision = comment_change(comments.listed(), author=author, marker=marker, body=body)
        if isinstance(decision, Create) and not create:
            return Publication(reason_not_posted="report.comment asks for none after this result")
        return _carry_out(comments, decision, body)
    except PublishError as error:
        reason = f"{error.message}. {error.hint}" if error.hint else error.message
        return Publication(reason_not_posted=reason)


def _carry_out(comments: Comments, decision: Decision, body: str) -> Publication:
    if isinstance(decision, Unchanged):
        return Publication(comment_url=decision.url, action="unchanged")
    if isinstance(decision, Update):
        url = comments.update(decision.comment_id, body).url
        return Publication(comment_url=url, action="updated")
    return Publication(comment_url=comments.create(body).url, action="created")


def _first_line(body: str) -> str:
    return body.partition("\n")[0].strip()


def _same_text(left: str, right: str) -> bool:
    """GitHub may hand a text back with other line ends and without the last one."""
    return left.replace("\r\n", "\n").strip() == right.replace("\r\n", "\n").strip()
