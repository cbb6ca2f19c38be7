"""The GitHub Action: the runner's variables in; comment, summary, outputs and exit code out."""

from __future__ import annotations

import re
import secrets as randomness
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gate.action.event_request import event_request
from gate.action.training_packages import raise_start_fault
from gate.baseline.entry import PROPOSED_BASELINE
from gate.errors import (
    ExitCode,
    GateError,
    InternalError,
    PublishError,
    SettingsError,
    as_gate_error,
)
from gate.fleet.lines import CallFacts, call_facts, verdict_line
from gate.fleet.stores import branch_path, line_name
from gate.isolation.account_choice import ROOT_HINT
from gate.isolation.container_config import this_process
from gate.isolation.modes import Isolation, IsolationMode
from gate.package.secrets import InputSecrets
from gate.pipelines.adapters import Adapters
from gate.pipelines.delivery import DeliveredVerdict, run_and_deliver
from gate.pipelines.gate import gate, judging, run_only
from gate.publishing.history_branch import HistoryBranch
from gate.report.assembly import ReportLinks
from gate.report.comment import (
    Publication,
    comment_text,
    creates_comment,
    link_page,
    marker,
    publish_comment,
    summary_text,
)
from gate.report.escape import command_data, safe_url
from gate.report.outputs import (
    StepOutputs,
    fault_outputs,
    output_file_text,
    run_outputs,
    verdict_outputs,
)
from gate.report.runner_files import (
    annotation_commands,
    badge_json,
    fault_annotation,
    fault_status,
    notice_annotation,
    verdict_status,
)
from gate.report.wording import sentences
from gate.settings.event import (
    COMMIT_HASH,
    CONTAINER_ID,
    MAX_EVENT_BYTES,
    ActionContext,
    ActionInputs,
    Mode,
    SigningMethod,
    StepState,
    read_context,
    read_inputs,
    runner_files,
    state_file_text,
)
from gate.settings.gate_settings import FILE_NAME, CommentPolicy, GateSettings, ReportSettings
from gate.system.clock import Clock
from gate.system.console import quoted
from gate.system.files.port import Files
from gate.system.gate_names import DEFAULT_GATE, gate_of_config, status_context
from gate.system.github.pull_requests import GitHubComments, find_pull_request, set_commit_status
from gate.system.github.records import Comments, CommitStatus, PullRequest, RunOrigin, StatusState
from gate.text.untrusted_text import safe_block
from gate.verdict.assemble import fault_verdict
from gate.verdict.history_lines import (
    HISTORY_BRANCH,
    badge_file,
    history_file,
    line_bytes,
    with_line,
)
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Verdict

SetStatus = Callable[[ActionContext, str, CommitStatus], None]


def tell_status(
    context: ActionContext,
    inputs: ActionInputs,
    commit_status: tuple[StatusState, str],
    token: str,
    set_status: SetStatus,
) -> str:
    """Set the status on the checked commit, and return a line that says whether that worked.

    On a pull request this is its head. One commit may be the head of several pull requests, towards
    branches with different rules. The status context names the branch, so that none stands for
    another. The line is empty if no status was requested. A status that cannot be set changes no
    verdict.
    """
    fork = context.pull_request is not None and context.pull_request.from_fork
    if not inputs.status or inputs.mode is Mode.RUN:
        return ""
    # a job that ran untrusted code never uses its token, even after that code has ended
    if fork and inputs.mode is not Mode.JUDGE:
        return "no status: a fork's code ran in this job, so its token is not used"
    if not token:
        return "no status: no token was given"
    state, description = commit_status
    status = CommitStatus(
        # the head and not the checked-out merge commit, because required checks look at the head
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
    """Set the status of the event's commit on GitHub; raise `PublishError`."""
    set_commit_status(status, api_url=context.api_url, repository=context.repository, token=token)


Made = Callable[[bytes], Mapping[str, bytes]]
# arguments: context, token, the history's file, and a function from its old to its new content
KeepHistory = Callable[[ActionContext, str, str, Made], None]


def tell_history(
    context: ActionContext, verdict: Verdict, call: CallFacts, token: str, keep: KeepHistory
) -> str:
    """Add a line for this verdict to the history, on the repository's default branch only.

    Return a line for the log, or an empty text. No failure here changes the verdict.
    """
    if not context.on_default_branch:
        return ""
    if not token:
        return notice_annotation("history", "no line added: no token was given")

    def made(old: bytes) -> Mapping[str, bytes]:
        line = verdict_line(verdict, call)
        return {
            history_file(call.gate_id): with_line(old, line),
            # the file for reports keeps only the last lines, so each line also gets a file of its
            # own
            branch_path(line_name(line)): line_bytes(line) + b"\n",
            badge_file(call.gate_id): badge_json(verdict, gate_id=call.gate_id),
        }

    try:
        keep(context, token, history_file(call.gate_id), made)
    except PublishError as error:
        message = sentences(f"no line added: {error.message}", error.hint)
        return notice_annotation("history", message)
    except Exception as raised:  # noqa: BLE001 - the verdict stands, whatever this is
        return notice_annotation("history", f"no line added: {InternalError(raised)}")
    return f"line added to {history_file(call.gate_id)} on the branch {HISTORY_BRANCH}"


def github_history(context: ActionContext, token: str, path: str, made: Made) -> None:
    """Write to the history branch on GitHub; raise `PublishError`."""
    branch = HistoryBranch(api_url=context.api_url, repository=context.repository, token=token)
    branch.change(HISTORY_BRANCH, path, f"{path}: commit {context.head_commit[:12]}", made)


Say = Callable[[str], None]
FindPullRequest = Callable[[ActionContext, RunOrigin, str], PullRequest]
OpenComments = Callable[[ActionContext, str], AbstractContextManager[Comments]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Runner:
    """What the action gets: the runner's variables, and the factories of its adapters."""

    variables: Mapping[str, str]
    files: Files
    adapters: Callable[[Path], Adapters]
    comments: OpenComments
    say: Say
    find: FindPullRequest
    status: SetStatus
    history: KeepHistory
    clock: Clock


@dataclass(kw_only=True, slots=True)
class CallProgress:
    """What is known about a call when an error is raised; filled in while the call proceeds.

    `gate_id` is the request's. It is empty before there is a request, so that an early fault does
    not use the name of another gate of the repository.
    """

    context: ActionContext | None = None
    inputs: ActionInputs | None = None
    report: ReportSettings = field(default_factory=ReportSettings)
    gate_id: str = ""


def run_action(runner: Runner) -> ExitCode:
    """Gate the event's commit and report the result in every place that the runner offers.

    Only the verdict determines the exit code: a comment that cannot be posted changes nothing. No
    exception leaves this function. Every fault gets outputs, a status and a comment. Otherwise an
    older green status would remain on a commit that could not be checked again.
    """
    known = CallProgress()
    try:
        known.context, known.inputs = _read(runner)
        return _act(runner, known.context, known.inputs, known)
    except GateError as fault:
        return _tell_fault(runner, known, fault)
    except Exception as raised:  # noqa: BLE001 - the last handler: a traceback may quote a pull request
        if runner.variables.get("RUNNER_DEBUG") == "1":
            runner.say(quoted("".join(traceback.format_exception(raised))))
        return _tell_fault(runner, known, InternalError(raised))


def _tell_fault(runner: Runner, known: CallProgress, fault: GateError) -> ExitCode:
    """Log the fault, then report it in every known place; a place that fails stops no other."""
    runner.say(fault_annotation(fault))
    runner.say(quoted(str(fault)))
    context, inputs = known.context, known.inputs
    output_path, summary_path = runner_files(runner.variables)
    reports: list[Callable[[], None]] = [
        lambda: _append_outputs(runner, output_path, fault_outputs(fault.exit_code))
    ]
    if context is not None:
        reports.append(lambda: _tell_status(runner, context, fault_status(fault)))
    if context is not None and inputs is not None:
        reports.append(lambda: _comment_fault(runner, context, inputs, known, fault))
    else:
        reports.append(lambda: _summarize_fault(runner, summary_path, fault))
    for tell in reports:
        try:
            tell()
        except Exception as second:  # noqa: BLE001 - as above
            runner.say(
                quoted(f"the result could not be reported everywhere: {as_gate_error(second)}")
            )
    return fault.exit_code


def _comment_fault(
    runner: Runner,
    context: ActionContext,
    inputs: ActionInputs,
    known: CallProgress,
    fault: GateError,
) -> None:
    verdict = fault_verdict(context.head_commit, runner.clock.now().isoformat(), fault)
    links = ReportLinks(run_url=context.run_url)
    gate_id = known.gate_id or inputs.gate_id or gate_of_config(inputs.config)
    comment = comment_text(verdict, links, gate_id=gate_id)
    publication = _publish(runner, context, inputs, known.report, verdict, comment)
    if publication.reason_not_posted:
        runner.say(safe_block(f"no comment: {publication.reason_not_posted}"))
    if context.summary_path is not None:
        _append(runner, context.summary_path, summary_text(verdict, links, gate_id=gate_id))


def _summarize_fault(runner: Runner, path: Path | None, fault: GateError) -> None:
    """Write the job's summary of a call whose event or inputs could not be read."""
    if path is None:
        return
    commit = runner.variables.get("GITHUB_SHA", "")
    known = commit if COMMIT_HASH.match(commit) else ""
    verdict = fault_verdict(known, runner.clock.now().isoformat(), fault)
    _append(runner, path, summary_text(verdict, ReportLinks(), gate_id=DEFAULT_GATE))


# this variable is set only in the images of a release
RELEASED = "REPRO_GATE_RELEASE"
RELEASE_TAG = re.compile(r"v[0-9]+(?:\.[0-9]+\.[0-9]+)?")
PUSHED_BY_HAND = (
    "the tag {tag} of this action was pushed by hand: its image was built in this job, and may be "
    "another one in the next. A release names its image by digest: docs/releasing.md"
)


def hand_pushed_tag(variables: Mapping[str, str]) -> str:
    """Return a warning if this action was called by a tag that no release made, or nothing."""
    tag = variables.get("GITHUB_ACTION_REF", "")
    if variables.get(RELEASED) or not RELEASE_TAG.fullmatch(tag):
        return ""
    return PUSHED_BY_HAND.format(tag=tag)


def _read(runner: Runner) -> tuple[ActionContext, ActionInputs]:
    path = runner.variables.get("GITHUB_EVENT_PATH", "")
    # limited, because the event contains the pull request's title and text, which anyone may write
    event = runner.files.read_bytes(Path(path), max_bytes=MAX_EVENT_BYTES) if path else b"{}"
    inputs = read_inputs(runner.variables)
    context = read_context(runner.variables, event, inputs.mode)
    if context.origin is None:
        return context, inputs
    # only a judging job gets here, and it trains nothing, so the token may be used (T1)
    token = InputSecrets(runner.variables, runner.files).token()
    pull = runner.find(context, context.origin, token)
    return replace(context, pull_request=pull), inputs


def _act(
    runner: Runner, context: ActionContext, inputs: ActionInputs, known: CallProgress
) -> ExitCode:
    if inputs.mode is Mode.LINK:
        return _link_page(runner, context, inputs)
    raise_start_fault(runner.variables, runner.files)
    if by_hand := hand_pushed_tag(runner.variables):
        runner.say(f"::warning title=repro-gate::{command_data(by_hand)}")
    adapters = runner.adapters(context.workspace)
    judges = inputs.mode is Mode.JUDGE
    if not judges:
        _tell_post_step(runner, adapters)
    request = replace(event_request(context, inputs, adapters), imported_runs=judges)
    adapters = adapters if judges else isolated(adapters)
    known.report, known.gate_id = request.settings.report, request.gate_id
    # the workspace contains the pull request's commit, in which a link could lead root anywhere
    for folder in (request.out, context.workspace / inputs.evidence):
        adapters.files.refuse_links(folder, below=context.workspace)
    try:
        if inputs.mode is Mode.RUN:
            return _run_only(runner, context, request, adapters)
        return _judge_and_tell(runner, context, inputs, request, adapters)
    finally:
        _give_back(context, request, adapters.files)


def _run_only(
    runner: Runner, context: ActionContext, request: GateRequest, adapters: Adapters
) -> ExitCode:
    """Run the first of two jobs, whose exit code only says whether the training ran."""
    # refuse a key instead of ignoring it: the author believes that this job signs
    if InputSecrets(runner.variables, runner.files).names_key():
        raise SettingsError(
            "mode run takes no signing key: this job runs the pull request's code",
            hint="Give the key to the job with mode judge.",
        )
    if request.sign is SigningMethod.SIGSTORE:
        raise SettingsError(
            "mode run seals nothing: this job runs the pull request's code",
            hint="Give `sign: sigstore`, and `id-token: write`, to the job with mode judge.",
        )
    folder = _from_workspace(run_only(request, adapters), context)
    runner.say(f"evidence: {folder}; a job with mode judge reads it")
    _append_outputs(runner, context.output_path, run_outputs(folder))
    return ExitCode.PASS


def _judge_and_tell(
    runner: Runner,
    context: ActionContext,
    inputs: ActionInputs,
    request: GateRequest,
    adapters: Adapters,
) -> ExitCode:
    """Run the whole pipeline, or without the training in mode judge, and report the verdict."""
    secrets = InputSecrets(runner.variables, runner.files)
    outcome = run_and_deliver(
        request,
        adapters,
        # for a fork use a source without any secret, so that no mistake further down can read one
        InputSecrets({}, runner.files) if request.from_fork else secrets,
        judging(context.workspace / inputs.evidence) if request.imported_runs else gate,
    )
    settings = request.settings.report
    publication = _publish(
        runner, context, inputs, settings, outcome.verdict, outcome.reports.comment
    )
    _tell(runner, context, outcome, publication)
    _tell_status(runner, context, verdict_status(outcome.verdict))
    if settings.history:
        token = secrets.token()
        call = call_facts(
            runner.variables,
            gate_id=request.gate_id,
            repository=context.repository,
            sealed=outcome.sealing.bundle is not None,
        )
        line = tell_history(context, outcome.verdict, call, token, runner.history)
        if line:
            runner.say(line)
    return outcome.verdict.exit_code


def _tell_status(runner: Runner, context: ActionContext, status: tuple[StatusState, str]) -> None:
    inputs = read_inputs(runner.variables)
    token = InputSecrets(runner.variables, runner.files).token()
    line = tell_status(context, inputs, status, token, runner.status)
    if line:
        runner.say(safe_block(line))


def _tell_post_step(runner: Runner, adapters: Adapters) -> None:
    """Write the state before anything starts, for the post step after a killed process."""
    path = runner.variables.get("GITHUB_STATE", "")
    if path:
        own = next((name for name in this_process() if CONTAINER_ID.match(name)), "")
        _append(runner, Path(path), state_file_text(StepState(run=adapters.run, container=own)))


def isolated(adapters: Adapters) -> Adapters:
    """Return adapters that refuse to train under the account with the step's secrets."""

    def isolate(settings: GateSettings, folders: tuple[Path, ...]) -> Isolation:
        isolation = adapters.isolate(settings, folders)
        # a training under the same account could read the step's variables in /proc
        if isolation.mode is IsolationMode.NONE:
            raise SettingsError(
                f"the training would share the action's account: {isolation.reason}",
                hint="It could read this step's token and key. Leave isolation.mode at auto. "
                f"{ROOT_HINT}",
            )
        return isolation

    return replace(adapters, isolate=isolate)


def _publish(
    runner: Runner,
    context: ActionContext,
    inputs: ActionInputs,
    settings: ReportSettings,
    verdict: Verdict,
    comment: str,
) -> Publication:
    why_not = _not_to_be_posted(context, inputs, settings)
    if why_not:
        return Publication(reason_not_posted=why_not)
    token = InputSecrets(runner.variables, runner.files).token()
    if not token:
        return Publication(reason_not_posted="no token was given")
    create = creates_comment(settings.comment, verdict)
    first_line = comment.partition("\n")[0]
    try:
        with runner.comments(context, token) as comments:
            return publish_comment(comments, marker=first_line, body=comment, create=create)
    except PublishError as error:
        return Publication(reason_not_posted=str(error))


def _not_to_be_posted(
    context: ActionContext, inputs: ActionInputs, settings: ReportSettings
) -> str:
    """Return why there is no comment, regardless of the verdict, or an empty text."""
    if context.pull_request is None:
        return "this event has no pull request"
    if not inputs.comment:
        return "input comment is false"
    if settings.comment is CommentPolicy.NEVER:
        return "report.comment is never"
    # a workflow that follows another one, or that judges, runs no code of the pull request
    trains = context.origin is None and inputs.mode is not Mode.JUDGE
    if context.pull_request.from_fork and trains:
        return (
            "a fork's code ran in this job, so its token is not used; see the README, Pull "
            "requests from forks, for two jobs"
        )
    return ""


def _link_page(runner: Runner, context: ActionContext, inputs: ActionInputs) -> ExitCode:
    """Run the step after the upload; the verdict stands even if the link fails."""
    link = _page_link(runner, context, inputs)
    if link.reason_not_posted:
        runner.say(notice_annotation("page", f"not linked: {link.reason_not_posted}"))
    else:
        runner.say(f"page linked, comment {link.action}: {link.comment_url}")
    return ExitCode.PASS


def _page_link(runner: Runner, context: ActionContext, inputs: ActionInputs) -> Publication:
    why_not = _not_to_be_posted(context, inputs, ReportSettings())
    # without an address, the upload step was skipped or found no page
    why_not = why_not or (
        "" if inputs.page_url else "input page_url is empty: no page was uploaded"
    )
    if why_not:
        return Publication(reason_not_posted=why_not)
    try:
        token = InputSecrets(runner.variables, runner.files).token()
        if not token:
            return Publication(reason_not_posted="no token was given")
        with runner.comments(context, token) as comments:
            return link_page(
                comments,
                marker=marker(inputs.gate_id) if inputs.gate_id else "",
                run_url=context.run_url,
                page_url=inputs.page_url,
            )
    except Exception as raised:  # noqa: BLE001 - a fault here must not take the verdict's comment
        known = as_gate_error(raised)
        return Publication(reason_not_posted=sentences(known.message, known.hint))


def _tell(
    runner: Runner,
    context: ActionContext,
    outcome: DeliveredVerdict,
    publication: Publication,
) -> None:
    """Write annotations and the log first, then the runner's files."""
    for command in annotation_commands(outcome.verdict, outcome.lines):
        runner.say(command)
    if outcome.fault is not None:
        runner.say(quoted(str(outcome.fault)))
    if publication.reason_not_posted:
        runner.say(safe_block(f"no comment: {publication.reason_not_posted}"))
    else:
        runner.say(f"comment {publication.action}: {publication.comment_url}")
    if outcome.sealing.bundle is None:
        runner.say(f"not sealed: {outcome.sealing.why_not}")
    for line in (*outcome.reports.links.published.lines, *outcome.kept):
        runner.say(safe_block(line))
    if context.summary_path is not None:
        _append(runner, context.summary_path, outcome.reports.summary)
    proposed = outcome.out / PROPOSED_BASELINE
    outputs = verdict_outputs(
        outcome.verdict,
        publication,
        package_path=_from_workspace(outcome.package, context),
        bundle_path=_from_workspace(outcome.sealing.bundle, context),
        report_path=_from_workspace(outcome.out / "report.html", context),
        proposed_baseline_path=_from_workspace(
            proposed if runner.files.exists(proposed) else None, context
        ),
        proposed_baseline_target=outcome.proposed_target,
    )
    _append_outputs(runner, context.output_path, outputs)


def _from_workspace(path: Path | None, context: ActionContext) -> str:
    """Return the path relative to the workspace: later steps do not see the container's paths."""
    return "" if path is None else path.relative_to(context.workspace).as_posix()


def _append_outputs(runner: Runner, path: Path | None, outputs: StepOutputs) -> None:
    if path is not None:
        # a new random delimiter for each append, made after the training: no text can contain it
        delimiter = f"repro_gate_{randomness.token_hex(16)}"
        _append(runner, path, output_file_text(outputs, delimiter))


def _append(runner: Runner, path: Path, text: str) -> None:
    """Append to a file of the runner, so that the text of earlier steps stays."""
    runner.files.append_bytes(path, text.encode("utf-8"))


def _give_back(context: ActionContext, request: GateRequest, files: Files) -> None:
    """Give root's files to the workspace's owner, because later steps have to read them."""
    first_step = context.workspace / request.out.relative_to(context.workspace).parts[0]
    if files.exists(first_step):
        # from the first folder of the path on, because root made the folders in between as well
        files.give_to(first_step, *files.owner(context.workspace))


def github_pull_request(context: ActionContext, origin: RunOrigin, token: str) -> PullRequest:
    """Ask GitHub for the pull request that a finished workflow ran on."""
    return find_pull_request(
        api_url=context.api_url, repository=context.repository, token=token, origin=origin
    )


def github_comments(context: ActionContext, token: str) -> AbstractContextManager[Comments]:
    """Return the comments of the event's pull request; leaving the context ends the connection."""
    if context.pull_request is None:
        raise PublishError("this event has no pull request")
    return GitHubComments(
        api_url=context.api_url,
        repository=context.repository,
        number=context.pull_request.number,
        token=token,
    )
