"""No more is run than is needed: once two strict runs differ, nothing else can change that."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from gate.comparison.equality import equal_results
from gate.comparison.finiteness import never_passes
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.pipelines.judging_comparisons import against_run
from gate.training.plan import plan_gate, plan_operator_audit, plan_seeds
from gate.training.runs import Commit, PlannedRun, RunMode
from gate.verdict.not_run import NotRun, Part, WhyNotRun
from gate.verdict.request import GateRequest

Made = tuple[RunEvidence, ...]


def strict_of_head(runs: Made) -> Made:
    """The strict runs of the commit under test."""
    wanted = (Commit.HEAD, RunMode.STRICT)
    return tuple(run for run in runs if (run.run.commit, run.run.mode) == wanted)


def differ(runs: Made, request: GateRequest) -> bool:
    """Whether two strict runs of the commit under test differ: then this is the outcome."""
    strict = strict_of_head(runs)
    # most are equal, which is seen without looking for where they part
    return any(
        not equal_results(strict[0], run)
        and not against_run(strict[0], run, request).numerically_equal
        for run in strict[1:]
    )


def never_pass(runs: Made, request: GateRequest) -> bool:
    """Whether a strict run of the commit has a number that never passes: the outcome too."""
    return never_passes(strict_of_head(runs), request.settings.compare.allow_not_finite)


def made_until_they_differ(
    turns: Generator[Made], planned: tuple[PlannedRun, ...], request: GateRequest
) -> Made:
    """The runs of each turn, in the order of the plan; no further turn once the outcome is known.

    That is when two strict runs differ, or one holds a number that never passes.
    """
    made: dict[str, RunEvidence] = {}
    with closing(turns):
        for turn in turns:
            made |= {run.run.label: run for run in turn}
            known = tuple(made.values())
            if len(made) < len(planned) and (differ(known, request) or never_pass(known, request)):
                break
    return tuple(made[run.label] for run in planned if run.label in made)


def not_run(
    request: GateRequest, evidence: EvidenceSet, *, failed_audit: bool
) -> tuple[NotRun, ...]:
    """What this call could have run and did not, because of its settings or of what it found.

    `failed_audit`: the operator audit was tried.
    """
    unpriced = _missing(plan_gate(request.strict_runs, priced=True), evidence, RunMode.DEFAULT)
    found = [] if request.priced else [(Part.DEFAULT_RUNS, WhyNotRun.NOT_PRICED, unpriced)]
    apart = differ(evidence.runs, request)
    if apart or never_pass(evidence.runs, request):
        why = WhyNotRun.RUNS_DIFFER if apart else WhyNotRun.NOT_FINITE
        planned = plan_gate(request.strict_runs, priced=request.priced)
        asked = request.settings.operator_audit and not failed_audit
        audit = (plan_operator_audit(),) if asked else ()
        seeds = plan_seeds(request.settings) if not evidence.seeded else ()
        stopped = (
            (Part.STRICT_RUNS, _missing(planned, evidence, RunMode.STRICT)),
            (Part.DEFAULT_RUNS, _missing(planned, evidence, RunMode.DEFAULT)),
            (Part.SEEDS, len(seeds)),
            (Part.OPERATOR_AUDIT, _missing(audit, evidence, RunMode.AUDIT)),
        )
        found += [(part, why, runs) for part, runs in stopped]
    return tuple(NotRun(part=part, why=why, runs=runs) for part, why, runs in found if runs)


def _missing(planned: tuple[PlannedRun, ...], evidence: EvidenceSet, mode: RunMode) -> int:
    labels = {run.run.label for run in evidence.runs}
    return sum(run.mode is mode and run.label not in labels for run in planned)
