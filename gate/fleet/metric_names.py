"""The metrics of a fleet of gates: one table that exports, alert rules and dashboards share.

Names and labels are stable. `run_id`, `commit`, `author`, `runner` and `environment` have a new
value for each verdict. So they are labels of a single metric, whose value is always 1: join it on
`repository` and `gate_id`. Every metric is a gauge, because a history can be read from any moment
on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GATE: Final = ("repository", "gate_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricName:
    """A gauge: its name, its labels in order, and the meaning of its value."""

    name: str
    labels: tuple[str, ...] = GATE
    help: str


class BurnWindow(StrEnum):
    """The short windows of a burn rate, in addition to the target's own window."""

    HOUR = "1h"
    SIX_HOURS = "6h"
    THREE_DAYS = "3d"


# About a gate's last verdict: pushed by the job that made it, or read from a history.
LAST_INFO: Final = MetricName(
    name="repro_gate_last_verdict_info",
    labels=(
        *GATE,
        "run_id",
        "commit",
        "outcome",
        "level",
        "failure_mode",
        "author",
        "runner",
        "environment",
    ),
    help="The last verdict of a gate; always 1.",
)
LAST_TIME: Final = MetricName(
    name="repro_gate_last_verdict_timestamp_seconds",
    help="When the last verdict was made, in seconds since 1970.",
)
LAST_PASSES: Final = MetricName(
    name="repro_gate_last_verdict_passes", help="1 where the last verdict passes, else 0."
)
LAST_SEALED: Final = MetricName(
    name="repro_gate_last_verdict_sealed", help="1 where the last verdict is sealed, else 0."
)
LAST_DIGESTS: Final = MetricName(
    name="repro_gate_last_digests_equal",
    help="1 where all captured tensors of two strict runs are equal, else 0.",
)
LAST_SPREAD: Final = MetricName(
    name="repro_gate_last_metric_spread_ratio",
    help="The largest relative difference of a metric between strict runs.",
)
LAST_DATA: Final = MetricName(
    name="repro_gate_last_data_verified",
    help="1 where all declared data was hashed and is what the baseline has, else 0.",
)
LAST_OPERATORS: Final = MetricName(
    name="repro_gate_last_uncovered_operators",
    help="Operators without a deterministic kernel in the last verdict's audit.",
)
LAST_STEP: Final = MetricName(
    name="repro_gate_last_step_seconds", help="The median step of the strict runs."
)
LAST_SECONDS: Final = MetricName(
    name="repro_gate_last_time_to_verdict_seconds",
    help="From the start of the call to the last verdict.",
)
LAST_COST: Final = MetricName(
    name="repro_gate_last_determinism_cost_ratio",
    help="Step time in strict mode over that in default mode.",
)

# Computed from a history, for the ten indicators; the label `indicator` is `M1` to `M10`.
VERDICTS: Final = MetricName(
    name="repro_gate_verdicts",
    labels=(*GATE, "outcome", "failure_mode"),
    help="Verdicts in the window, by outcome and failure mode.",
)
GOOD: Final = MetricName(
    name="repro_gate_sli_good_events",
    labels=(*GATE, "indicator"),
    help="Numerator: good events in the window.",
)
VALID: Final = MetricName(
    name="repro_gate_sli_valid_events",
    labels=(*GATE, "indicator"),
    help="Denominator: events in the window that could be good.",
)
TARGET: Final = MetricName(
    name="repro_gate_slo_target_ratio",
    labels=(*GATE, "indicator"),
    help="The share of good events that is promised.",
)
WINDOW: Final = MetricName(
    name="repro_gate_slo_window_seconds", help="The window of the targets of a gate."
)
BUDGET_LEFT: Final = MetricName(
    name="repro_gate_slo_budget_left_ratio",
    labels=(*GATE, "indicator"),
    help="The share of the window's error budget that is left; below 0 the target is missed.",
)
BURN_RATE: Final = MetricName(
    name="repro_gate_slo_burn_rate",
    labels=(*GATE, "indicator", "window"),
    help="Share of bad events over the share allowed; at 1 the budget lasts for the window.",
)
BUDGET_SPENT: Final = MetricName(
    name="repro_gate_slo_budget_spent_ratio",
    labels=(*GATE, "indicator", "window"),
    help="The share of the whole window's error budget that this shorter window spent.",
)
SILENT: Final = MetricName(
    name="repro_gate_silent",
    help="1 where the last verdict is older than the gate's limit, else 0.",
)
SILENT_LIMIT: Final = MetricName(
    name="repro_gate_silent_limit_seconds", help="How old a gate's last verdict may be."
)
UNREADABLE: Final = MetricName(
    name="repro_gate_history_unreadable_lines",
    labels=("reason",),
    help="Lines of the history that were left out, by reason.",
)
READ_AT: Final = MetricName(
    name="repro_gate_history_read_timestamp_seconds",
    labels=(),
    help="When the history was last read, in seconds since 1970.",
)

# OF_LAST_VERDICT is what a job pushes; OF_HISTORY is added when a history is read.
OF_LAST_VERDICT: Final = (
    LAST_INFO,
    LAST_TIME,
    LAST_PASSES,
    LAST_SEALED,
    LAST_DIGESTS,
    LAST_SPREAD,
    LAST_DATA,
    LAST_OPERATORS,
    LAST_STEP,
    LAST_SECONDS,
    LAST_COST,
)
OF_HISTORY: Final = (
    VERDICTS,
    GOOD,
    VALID,
    TARGET,
    WINDOW,
    BUDGET_LEFT,
    BURN_RATE,
    BUDGET_SPENT,
    SILENT,
    SILENT_LIMIT,
    UNREADABLE,
    READ_AT,
)
METRICS: Final = (*OF_LAST_VERDICT, *OF_HISTORY)
