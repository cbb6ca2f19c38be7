"""Turn a verdict, with the facts of its call, into a line of the history."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gate.comparison.differences import Comparison, CostState, MetricDelta
from gate.comparison.level_records import Performance
from gate.evidence.operator_records import FlagReach
from gate.settings.data import Verify
from gate.system.gate_names import DEFAULT_GATE
from gate.text.json_text import canonical_sha256
from gate.training.runs import Commit, RunMode
from gate.verdict.history_lines import HistoryLine
from gate.verdict.verdict import Verdict

NAME_CHARACTERS: Final = 60
NUMBER_CHARACTERS: Final = 40
RUN_CHARACTERS: Final = 100
KEY_DIGITS: Final = 16
HIGHEST_RATIO: Final = 1e6
# What would only matter on CUDA does not count in a run on another device.
UNCOVERED: Final = frozenset({FlagReach.NO_FORM, FlagReach.NOT_KNOWN})
# Variables of GitHub Actions, GitLab, Jenkins and Buildkite; the first one that is set is used.
RUNS: Final = ("GITHUB_RUN_ID", "CI_JOB_ID", "BUILD_TAG", "BUILDKITE_JOB_ID")
AUTHORS: Final = ("GITHUB_ACTOR", "GITLAB_USER_LOGIN", "BUILD_USER_ID", "BUILDKITE_BUILD_CREATOR")
RUNNERS: Final = ("RUNNER_NAME", "CI_RUNNER_DESCRIPTION", "NODE_NAME", "BUILDKITE_AGENT_NAME")
ATTEMPT: Final = "GITHUB_RUN_ATTEMPT"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFacts:
    """The facts about a call that its verdict does not contain; see `HistoryLine`."""

    run_id: str = ""
    gate_id: str = DEFAULT_GATE
    repository: str = ""
    author: str = ""
    runner: str = ""
    sealed: bool = False
    cancelled: bool = False


def call_facts(
    variables: Mapping[str, str],
    *,
    gate_id: str,
    repository: str,
    sealed: bool = False,
    cancelled: bool = False,
) -> CallFacts:
    """Return the facts of a call, from the variables that CI services set."""
    run_id, attempt = _first(variables, RUNS), variables.get(ATTEMPT, "")
    # A re-run keeps the id of the first attempt, so append the attempt's number.
    if run_id and attempt not in {"", "1"}:
        run_id = f"{run_id}-{attempt}"
    return CallFacts(
        run_id=_plain(run_id, RUN_CHARACTERS),
        gate_id=gate_id,
        repository=repository if repository.isascii() and repository.isprintable() else "",
        author=_first(variables, AUTHORS)[:NAME_CHARACTERS],
        runner=_first(variables, RUNNERS)[:NAME_CHARACTERS],
        sealed=sealed,
        cancelled=cancelled,
    )


def _first(variables: Mapping[str, str], names: Iterable[str]) -> str:
    return next((variables[name] for name in names if variables.get(name)), "")


def _plain(text: str, longest: int) -> str:
    """Return printable ASCII only: an id becomes part of file names and labels."""
    return "".join(letter for letter in text if " " <= letter <= "~")[:longest]


def verdict_line(verdict: Verdict, call: CallFacts) -> HistoryLine:
    """Return the line that the history keeps of a verdict."""
    series, cost, timeline = verdict.main_series, verdict.cost, verdict.timeline
    ratio = cost.time_ratio if cost is not None and cost.state is CostState.MEASURED else None
    last = series.last_decimal if series is not None else ""
    where = verdict.environment
    return HistoryLine(
        judged_at=verdict.created_at,
        run_id=call.run_id,
        gate_id=call.gate_id,
        repository=call.repository,
        commit=verdict.commit,
        author=call.author,
        runner=call.runner,
        environment="" if where is None else canonical_sha256(where.parts)[:KEY_DIGITS],
        outcome=verdict.outcome,
        passes=verdict.passes,
        cancelled=call.cancelled,
        level=verdict.level,
        failure_mode=verdict.failure_mode,
        strict_runs=verdict.strict_runs,
        digests_equal=_digests_equal(verdict.repeat),
        metric=series.name[:NAME_CHARACTERS] if series is not None else "",
        last=last if len(last) <= NUMBER_CHARACTERS else "",
        spread=_spread(verdict.repeat),
        uncovered_operators=_uncovered(verdict),
        data_verified=_data_verified(verdict),
        step_seconds=_step_seconds(verdict.performance),
        training_seconds=None if timeline is None else timeline.training_seconds,
        seconds=None if timeline is None else timeline.seconds,
        # only passes are ever sealed, so a line never claims anything else
        sealed=call.sealed and verdict.passes,
        cost_ratio=ratio if ratio is not None and 0 < ratio < HIGHEST_RATIO else None,
    )


def _digests_equal(repeat: Comparison | None) -> bool | None:
    if repeat is None or repeat.compared_tensors == 0:
        return None
    return not repeat.tensors


def _spread(repeat: Comparison | None) -> float | None:
    if repeat is None or repeat.compared_points == 0:
        return None
    distances = [_apart(delta) for delta in repeat.metrics]
    return (
        None
        if None in distances
        else max((distance for distance in distances if distance is not None), default=0.0)
    )


def _apart(delta: MetricDelta) -> float | None:
    """Return the difference divided by the larger side, which also works if `expected` is 0."""
    try:
        left, right = float(delta.expected), float(delta.observed)
    except ValueError:
        return None
    if not (math.isfinite(left) and math.isfinite(right)):
        return None
    largest = max(abs(left), abs(right))
    # Halved first: the difference of two large numbers with opposite signs would overflow.
    return 2 * abs(left / 2 / largest - right / 2 / largest) if largest else 0.0


def _uncovered(verdict: Verdict) -> int | None:
    """Return the number of uncovered operators, or None without a complete operator audit.

    torch's own warnings name only some of them.
    """
    report = verdict.operator_audit
    if report is None or not report.complete or report.dropped:
        return None
    return sum(row.reach in UNCOVERED for row in report.rows)


def _data_verified(verdict: Verdict) -> bool | None:
    if not verdict.data:
        return None
    whole = all(data_set.verify is Verify.FULL for data_set in verdict.data)
    return whole and not verdict.data_moved and verdict.unrepeated is None


def _step_seconds(performance: Iterable[Performance]) -> float | None:
    measured = (measured_run for measured_run in performance if measured_run.commit is Commit.HEAD)
    return next(
        (
            measured_run.median_step_seconds
            for measured_run in measured
            if measured_run.mode is RunMode.STRICT
        ),
        None,
    )
