"""Turn trainings into rows: one gate call, or strict runs compared with each other."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison
from gate.errors import GateError
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import ComparisonSettings
from gate.verdict.verdict import Answer as Equality
from gate.verdict.verdict import Outcome, Verdict
from gpu_check.bench import Bench, GateCall, Sections
from gpu_check.rows import Answer, Row, held

# torch's message about an operator that it refuses under deterministic algorithms
REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")
REPEATED = (Outcome.REPRODUCED, Outcome.WITHIN_TOLERANCE, Outcome.NO_BASELINE)
WARM_UP = 5


def gated(
    what: str, bench: Bench, arguments: Sequence[str], sections: Sections | None = None
) -> Row:
    """Run a script of `training/` through the whole gate; its strict runs have to be equal."""
    return verdict_row(what, bench.gate_training(*arguments, sections=sections))


def verdict_row(what: str, call: GateCall, accepted: Iterable[Outcome] = REPEATED) -> Row:
    """Return the row of a gate call; it holds if the runs are equal and the outcome is accepted."""
    if not call.document.startswith("{"):
        return held(what, f"exit code {call.exit_code}: {call.complaint}", holds=False)
    verdict = Verdict.model_validate_json(call.document)
    holds = verdict.outcome in tuple(accepted) and verdict.answers.repeat is Equality.EQUAL
    codes = ", ".join(dict.fromkeys(finding.code for finding in verdict.findings))
    seen = f"{verdict.outcome}: {verdict.cause}; isolation {verdict.isolation.described}"
    return held(what, f"{seen}; findings: {codes or 'none'}", holds=holds)


def isolation_of(call: GateCall) -> str:
    """Return the isolation of a gate call's trainings; empty if the call gave no verdict."""
    if not call.document.startswith("{"):
        return ""
    return Verdict.model_validate_json(call.document).isolation.described


def strict_pair(bench: Bench, *arguments: str, sections: Sections | None = None) -> Comparison:
    """Train twice in strict mode in fresh processes, and compare as the gate does.

    Raises `GateError` when a run had a problem or trained on another device than asked for.
    """
    runs = [
        bench.train(*arguments, label=label, sections=sections)
        for label in ("strict-1", "strict-2")
    ]
    for run in runs:
        refuse_cpu(bench, run)
    return compared(*runs)


def compared(first: RunEvidence, second: RunEvidence) -> Comparison:
    """Compare two runs as the gate compares them, without any tolerance."""
    names = (first.run.label, second.run.label)
    return compare_results(first, second, ComparisonSettings(), names)


def pair_row(what: str, bench: Bench, *arguments: str, sections: Sections | None = None) -> Row:
    """Return the row of two strict runs: equal, or an operator that torch refuses by name.

    Anything else fails.
    """
    try:
        comparison = strict_pair(bench, *arguments, sections=sections)
    except GateError as error:
        found = REFUSED.search("\n".join(error.details))
        if found:
            return Row(what=what, answer=Answer.TOLD, told=f"torch refuses {found.group(1)}")
        return held(what, told_error(error), holds=False)
    return comparison_row(what, comparison)


def comparison_row(what: str, comparison: Comparison) -> Row:
    """Return the row of a comparison; it holds if something was compared and all is equal."""
    counts = (
        f"{comparison.compared_steps} steps, {comparison.compared_points} numbers, "
        f"{comparison.compared_tensors} tensors"
    )
    first = comparison.first
    if comparison.differs or first is not None:
        where = "at the end" if first is None else f"{first.name} {first.where}"
        return held(what, f"differs: {where}; {counts}", holds=False)
    return held(what, f"equal: {counts}", holds=comparison.something_compared)


def told_error(error: GateError) -> str:
    """Return an error's message with the last of its details, the training's last line."""
    return "; ".join((error.message, *error.details[-1:]))


def refuse_cpu(bench: Bench, run: RunEvidence) -> None:
    """Raise `GateError` if a run on a GPU machine trained on the CPU: it proves nothing then."""
    device = run.environment.parts.get("device", "")
    if bench.gpu and device == "cpu":
        raise GateError(
            f"{run.run.label} trained on the CPU",
            hint="Look at the part facts: torch, device files.",
        )


def median_step(run: RunEvidence) -> float:
    """Return the median seconds of a step after the warm-up, as the harness timed them."""
    return statistics.median(float(timing.seconds) for timing in run.timings[WARM_UP:])
