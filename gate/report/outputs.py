"""The step's outputs, in the form that the runner reads from its file."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gate.errors import ExitCode, PublishError
from gate.report.comment import Publication
from gate.verdict.verdict import FailureMode, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutputs:
    """The outputs that later steps can read; each is text, empty if there is nothing to say.

    `exit_reason` is the exit code in words. Costs are in percent without the sign: `4.2` means that
    strict mode takes 4.2 % longer.
    """

    verdict: str = ""
    exit_reason: str = ""
    exit_code: str = ""
    failure_mode: str = ""
    determinism_cost_pct: str = ""
    cost_low: str = ""
    cost_high: str = ""
    checkpoint_digest: str = ""
    package_path: str = ""
    bundle_path: str = ""
    comment_url: str = ""
    report_path: str = ""
    evidence_path: str = ""
    proposed_baseline_path: str = ""
    proposed_baseline_target: str = ""


def verdict_outputs(  # noqa: PLR0913 - each parameter is an output
    verdict: Verdict,
    publication: Publication,
    *,
    package_path: str = "",
    bundle_path: str = "",
    report_path: str = "",
    proposed_baseline_path: str = "",
    proposed_baseline_target: str = "",
) -> StepOutputs:
    """Return the outputs of a gate that reached a verdict."""
    cost = verdict.cost
    return StepOutputs(
        verdict=verdict.outcome.value,
        exit_reason=exit_reason(verdict.exit_code),
        exit_code=str(int(verdict.exit_code)),
        failure_mode=verdict.failure_mode.value,
        determinism_cost_pct=_percent(cost.time_ratio if cost else None),
        cost_low=_percent(cost.low if cost else None),
        cost_high=_percent(cost.high if cost else None),
        checkpoint_digest=verdict.checkpoint_digest,
        package_path=package_path,
        bundle_path=bundle_path,
        comment_url=publication.comment_url,
        report_path=report_path,
        proposed_baseline_path=proposed_baseline_path,
        proposed_baseline_target=proposed_baseline_target,
    )


def run_outputs(evidence_path: str) -> StepOutputs:
    """Return the outputs of a job that only ran the training; there is no verdict yet."""
    return StepOutputs(
        exit_reason="ran", exit_code=str(int(ExitCode.PASS)), evidence_path=evidence_path
    )


def fault_outputs(exit_code: ExitCode) -> StepOutputs:
    """Return the outputs of a gate that ended before it reached a verdict."""
    return StepOutputs(
        verdict="error",
        exit_reason=exit_reason(exit_code),
        exit_code=str(int(exit_code)),
        failure_mode=FailureMode.NONE.value,
    )


def exit_reason(exit_code: ExitCode) -> str:
    """Return an exit code in one word: pass, fail, usage, error, cancelled."""
    return exit_code.name.lower()


def output_file_text(outputs: StepOutputs, delimiter: str) -> str:
    """Return the text to append to the runner's output file, each value between delimiter lines.

    `delimiter` must be unguessable. Raises `PublishError` if a value contains it, because whoever
    chose the value could then write other outputs.
    """
    return "".join(
        _entry(field.name, getattr(outputs, field.name), delimiter) for field in fields(outputs)
    )


def _entry(name: str, value: str, delimiter: str) -> str:
    # A value with the delimiter would end its own entry. The training could then choose the outputs
    # after it (CVE-2022-35954 in the runner's toolkit).
    if delimiter in value:
        raise PublishError(
            f"output {name} contains the delimiter of the output file",
            hint="Run the job again; if it repeats, find out where this value comes from.",
        )
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{(ratio - 1) * 100:.2f}"
