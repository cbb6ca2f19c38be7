"""The comment on the pull request: the verdict in ten seconds, with everything else folded away."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gate.errors import PublishError
from gate.report.assembly import ReportLinks, report_of
from gate.report.escape import (
    code_block,
    fenced,
    output_lines,
    prose,
    safe_url,
    spans,
    unlinked_lines,
)
from gate.report.layout import FAILURE_MODE, OUTCOME, Limits, Report, Section, ShownLines
from gate.report.lead import BELOW, IS_IT, NOTHING_TO_DO, WHAT_NOW, lead_of
from gate.report.markdown import (
    MarkdownPart,
    alert_markdown,
    facts_line,
    fit,
    folded,
    folded_command,
    folded_text,
    folded_together,
    table_markdown,
    titled_part,
)
from gate.report.wording import sentences
from gate.settings.gate_settings import CommentPolicy
from gate.system.github.records import Comment, Comments
from gate.verdict.verdict import NextStep, Outcome, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """The result of posting: the comment's address, or the reason why there is none."""

    comment_url: str = ""
    action: str = ""
    reason_not_posted: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Create:
    """The decision to write a new comment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The decision to replace this comment's text."""

    comment_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unchanged:
    """The decision to change nothing, because the comment has this text already."""

    url: str


Decision = Create | Update | Unchanged


def comment_change(listed: Iterable[Comment], *, author: str, marker: str, body: str) -> Decision:
    """Decide what to do so that exactly one comment carries `marker` and has the text `body`.

    Marker and author must both match, because anybody can write the marker. The first match wins,
    and later comments are not fetched.
    """
    for comment in listed:
        # Anybody may copy the marker. A comment of another author must not be edited, and must not
        # be taken for the verdict.
        if comment.author == author and _first_line(comment.body) == marker:
            # No edit without a change: each edit stays in the comment's history.
            if _same_text(comment.body, body):
                return Unchanged(url=comment.url)
            return Update(comment_id=comment.comment_id)
    return Create()


def creates_comment(policy: CommentPolicy, verdict: Verdict) -> bool:
    """Return whether a pull request without a comment gets one for this verdict."""
    if policy is CommentPolicy.CHANGES:
        return not verdict.passes or verdict.outcome is not Outcome.REPRODUCED
    if policy is CommentPolicy.FAILURES:
        return not verdict.passes
    return policy is CommentPolicy.ALWAYS


def publish_comment(
    comments: Comments, *, marker: str, body: str, create: bool = True
) -> Publication:
    """Post the comment on the pull request, or return why that was not possible.

    Without `create` only an existing comment is replaced: an old failure must not stay above a
    green check. Never raises `PublishError`, because a verdict holds whether or not it could be
    posted.
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
    """Compare texts; GitHub may return one with other line ends and without the last one."""
    return left.replace("\r\n", "\n").strip() == right.replace("\r\n", "\n").strip()


# GitHub refuses a comment above 65,536 characters; the limit leaves some room
COMMENT_BYTES = 60_000
LEAD_LIMIT = 2000
REST = "The rest of the answer"
COMMENT_LIMITS = Limits(deltas=10, rows=40)


MARKER = re.compile(r"<!-- repro-gate:[A-Za-z0-9._-]{1,40} -->")


def marker(gate_id: str) -> str:
    """Return the hidden first line by which a later run finds its comment."""
    # GitHub does not render an HTML comment.
    return f"<!-- repro-gate:{gate_id} -->"


def comment_text(verdict: Verdict, links: ReportLinks, *, gate_id: str = "default") -> str:
    """Return the comment in GitHub Markdown, at most `COMMENT_BYTES`; equal for equal verdicts."""
    report = report_of(verdict, links, COMMENT_LIMITS)
    # The head is never cut, so the marker is in the head.
    head = f"{marker(gate_id)}\n{head_markdown(report, gate_id)}"
    return fit(head, _parts(report, gate_id), COMMENT_BYTES)


def _parts(report: Report, gate_id: str) -> tuple[MarkdownPart, ...]:
    """Return the differences, each folded separately, and everything else folded together."""
    rest = tuple(
        section for section in report.sections if section.in_comment and not section.leading
    )
    verify = folded_command("Verify the sealed package", report.verify_command)
    unsaid = _rest(report, gate_id)
    return (
        *((folded_text(REST, unsaid),) if unsaid else ()),
        *(folded(section) for section in report.sections if section.leading),
        folded_together("More", (*_also_compared(report), *rest)),
        *((verify,) if report.verify_command else ()),
    )


def _also_compared(report: Report) -> tuple[Section, ...]:
    """Return the rows of the overview that did not decide."""
    rows = tuple(row for row in report.overview.rows if row not in report.deciding.rows)
    table = replace(report.overview, rows=rows, total=len(rows))
    return (Section(title="Also compared", table=table),) if rows else ()


def head_markdown(report: Report, gate_id: str) -> str:
    """Return the visible part: three answers in sixty words, and the four rows that decide."""
    title = _title(report, gate_id)
    lead = lead_of(report, title)
    parts = (
        f"### {title}",
        _paragraph(lead.happened),
        change_markdown(report.brief.change),
        f"**{IS_IT}** {_paragraph(lead.this_change)}",
        next_markdown(lead.steps, none=not report.next_steps),
        table_markdown(report.deciding),
        fenced(unlinked_lines(output_lines(report.drawing)), "text"),
        alert_markdown(report.alerts, report.alerts_total),
        _footer(report),
    )
    return "\n\n".join(part for part in parts if part)


def _title(report: Report, gate_id: str) -> str:
    name = "" if gate_id == "default" else f" ({prose(gate_id)})"
    return f"{report.icon} repro-gate{name} {prose(report.headline)}"


def _paragraph(sentences: tuple[str, ...]) -> str:
    return spans(" ".join(sentences), LEAD_LIMIT)


def _rest(report: Report, gate_id: str) -> str:
    """Return the sentences and steps that did not fit into the lead; usually empty."""
    rest = lead_of(report, _title(report, gate_id)).rest
    parts = (
        _paragraph(rest.happened),
        f"**{IS_IT}** {_paragraph(rest.this_change)}" if rest.this_change else "",
        next_markdown(rest.steps, none=False) if rest.steps else "",
    )
    return "\n\n".join(filter(None, parts))


def change_markdown(change: ShownLines | None) -> str:
    """Return the changed lines as a diff, which GitHub colours."""
    if change is None:
        return ""
    lines = unlinked_lines(output_lines(change.lines))
    return f"{spans(change.caption)}\n\n{fenced(lines, 'diff')}"


def next_markdown(steps: tuple[NextStep, ...], *, none: bool) -> str:
    """Return the next steps with their commands to copy; `none` means there is nothing to do."""
    if not steps:
        return f"**{WHAT_NOW}** {NOTHING_TO_DO if none else BELOW}"
    if len(steps) == 1:
        block = code_block(steps[0].command)
        text = f"**{WHAT_NOW}** {spans(steps[0].text)}"
        return f"{text}\n\n{block}" if block else text
    return "\n\n".join((f"**{WHAT_NOW}**", *map(_step_markdown, steps)))


def _step_markdown(step: NextStep) -> str:
    text = f"- {spans(step.text)}"
    block = code_block(step.command)
    # two columns further right, so that the block belongs to its list item
    indented = "\n".join(f"  {line}" for line in block.splitlines())
    return f"{text}\n\n{indented}" if block else text


# the end of a page's address as an artifact; before it is the run's own address
PAGE_ADDRESS = re.compile(r"/artifacts/[0-9]{1,20}\Z")


def _run_link(url: str) -> str:
    return f" · [this run]({url})"


def page_linked(body: str, run_url: str, page_url: str) -> str | None:
    """Return the comment with the page's address added, or None if it belongs to another run."""
    link = _run_link(safe_url(run_url))
    if link not in body:
        return None
    before, _, after = body.partition(link)
    # If a step was re-run, the comment has the link to an earlier upload: remove that.
    earlier = re.compile(rf" · \[its page\]\({re.escape(run_url)}/artifacts/[0-9]+\)")
    return f"{before}{link} · [its page]({page_url}){earlier.sub('', after, count=1)}"


def link_page(comments: Comments, *, marker: str, run_url: str, page_url: str) -> Publication:
    """Add the page's address to this run's comment, or return why that was not possible.

    GitHub assigns an artifact's address on upload, which happens after the comment. `marker` is
    empty if the caller does not know it; the run must then have written exactly one comment.
    """
    # The address comes from a step's input, so accept only an artifact of this very run.
    if (
        not run_url
        or not page_url.startswith(run_url)
        or not PAGE_ADDRESS.fullmatch(page_url[len(run_url) :])
    ):
        reason = f"input page_url is not the address of an artifact of {run_url}"
        return Publication(reason_not_posted=reason)
    try:
        author = comments.author()
        links = [
            (comment, body)
            for comment in comments.listed()
            if comment.author == author
            and _is_marker(_first_line(comment.body), marker)
            and (body := page_linked(comment.body, run_url, page_url)) is not None
        ]
        if len(links) != 1:
            several = f"this run wrote {len(links)} comments: give gate_id"
            return Publication(reason_not_posted=several if links else "this run wrote no comment")
        ((comment, body),) = links
        if _same_text(comment.body, body):
            return Publication(comment_url=comment.url, action="unchanged")
        return _carry_out(comments, Update(comment_id=comment.comment_id), body)
    except PublishError as error:
        return Publication(reason_not_posted=sentences(error.message, error.hint))


def _is_marker(line: str, expected: str) -> bool:
    return line == expected or (not expected and bool(MARKER.fullmatch(line)))


def _footer(report: Report) -> str:
    url = safe_url(report.run_url)
    links = f"{_run_link(url)} · [its artifacts]({url}#artifacts)" if url else ""
    shown = {OUTCOME, "commit", FAILURE_MODE}
    facts = tuple(fact for fact in report.facts if fact[0].text in shown)
    time = f" · {prose(report.time)}" if report.time else ""
    return f"<sub>{facts_line(facts)}{time}{links}</sub>"


# the runner drops a whole summary above 1 MiB
SUMMARY_BYTES = 1_000_000
SUMMARY_LIMITS = Limits(deltas=2_000, rows=500)
LONG_TABLE = 40


def summary_text(verdict: Verdict, links: ReportLinks, *, gate_id: str = "default") -> str:
    """Return the job summary in GitHub Markdown, at most `SUMMARY_BYTES`."""
    report = report_of(verdict, links, SUMMARY_LIMITS)
    sections = map(_part, (*_also_compared(report), *report.sections))
    unsaid = _rest(report, gate_id)
    first = (MarkdownPart(text=f"#### {REST}\n\n{unsaid}"),) if unsaid else ()
    return fit(head_markdown(report, gate_id), (*first, *sections), SUMMARY_BYTES)


def _part(section: Section) -> MarkdownPart:
    """Return a section open if it is short, and folded if its table is long."""
    if len(section.table.rows) > LONG_TABLE:
        return folded(section)
    return titled_part(section)
