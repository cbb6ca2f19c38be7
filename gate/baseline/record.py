"""Make a baseline entry from a run, refuse an invalid one, and add it to the baseline."""

from __future__ import annotations

from collections.abc import Mapping

from gate.baseline.acceptance import RecordedPrice
from gate.baseline.entry import Baseline, BaselineEntry, entry_name
from gate.comparison.differences import (
    Comparison,
    CostState,
    DeterminismCost,
    KnobCost,
    KnobCosts,
    NotFinite,
)
from gate.comparison.measurements import CostDocument, KnobState
from gate.data.data_sets import REPEAT_PREPROCESSING, same_data, unrepeated_data
from gate.errors import BaselineError
from gate.evidence.configuration import configuration_of
from gate.evidence.run_evidence import EvidenceSet
from gate.evidence.step_work import SeedResults
from gate.text.digests import sha256_hex
from gate.text.json_text import canonical_json, canonical_sha256
from gate.training.runs import RunMode

FINGERPRINTED_STEPS = 20


def with_digest(entry: BaselineEntry) -> BaselineEntry:
    """Return the entry with the digest of its content."""
    content = entry.model_dump(exclude={"digest"})
    return entry.model_copy(update={"digest": canonical_sha256(content)})


def propose_entry(
    evidence: EvidenceSet,
    repeat: Comparison,
    *,
    training: Mapping[str, str],
    not_finite: NotFinite | None,
    reason: str,
    seeded: SeedResults = (),
) -> BaselineEntry:
    """Return the entry that the first strict run would become; `successor` adds its digest.

    Raises `BaselineError` when the run must not become one: it was not repeatable, compared
    nothing, contains a NaN or infinity that the settings do not allow (`not_finite`), or belongs to
    no commit.
    """
    if not repeat.numerically_equal:
        raise BaselineError(
            "not recorded: the strict runs are not equal, so there is no single result to record",
            hint="Run `repro-gate gate` and follow its diagnosis first.",
        )
    if not_finite is not None:
        where = f"at step {not_finite.step}" if not_finite.step is not None else "at the end"
        raise BaselineError(
            f"not recorded: {not_finite.name} holds {not_finite.value} {where}",
            hint="A baseline of NaN or infinity would pass every later failure. A tensor that is "
            "meant to hold it, such as a mask, belongs in compare.allow_not_finite.",
        )
    if evidence.unrepeated is not None:
        raise BaselineError(
            f"not recorded: {unrepeated_data(evidence.unrepeated)}", hint=REPEAT_PREPROCESSING
        )
    if evidence.changed_files:
        raise BaselineError(
            "not recorded: there are uncommitted changes, so the entry would name the wrong commit",
            hint="Commit the changes, then record.",
            details=evidence.changed_files[:20],
        )
    # All strict runs are equal, so the choice of the first changes no bit.
    run = evidence.runs[0]
    configuration = configuration_of(
        [strict_run.configuration for strict_run in evidence.runs_of(RunMode.STRICT)]
    )
    return BaselineEntry(
        commit=evidence.commit,
        recorded_at=evidence.created_at,
        reason=reason,
        training=dict(training),
        environment=run.environment,
        metrics=run.metrics,
        steps=run.steps.with_fingerprints_at(filter(_keeps_fingerprints, run.steps.steps)),
        given=run.given,
        checkpoint=run.checkpoint,
        seeded=seeded,
        data=evidence.data,
        configuration=configuration.values if configuration is not None else {},
    )


def _keeps_fingerprints(step: int) -> bool:
    """Return whether an entry keeps the fingerprints of this step, which only explain a drift.

    It keeps those of the first steps, where most changes show, then fewer and fewer. So a drift of
    a long training can be diagnosed too, and the file stays short enough to review.
    """
    # Sampling intervals are powers of two as well, so the kept steps are observed ones.
    return step <= FINGERPRINTED_STEPS or step & (step - 1) == 0


def with_entry(baseline: Baseline | None, entry: BaselineEntry) -> Baseline:
    """Return the baseline with this entry, which replaces the one of its environment and training.

    Entries of a different training or different data are dropped: nothing can be compared with them
    any more.
    """
    same_training = [
        candidate
        for candidate in (baseline.entries if baseline else ())
        if candidate.training == entry.training and same_data(candidate.data, entry.data)
    ]
    # Two entries of one environment would leave open which one judges.
    others = [
        candidate for candidate in same_training if candidate.environment.moved(entry.environment)
    ]
    # Sorted as if the folder were read back.
    return Baseline(entries=tuple(sorted((*others, successor(baseline, entry)), key=entry_name)))


def successor(baseline: Baseline | None, entry: BaselineEntry) -> BaselineEntry:
    """Return the entry with its digest and with the costs of the entry that it replaces."""
    replaced = [
        previous
        for previous in (baseline.entries if baseline else ())
        if previous.training == entry.training and not previous.environment.moved(entry.environment)
    ]
    if replaced:
        known = replaced[0]
        # A new result does not change the costs, which keep their own date.
        costs, price = entry.knob_costs or known.knob_costs, entry.price or known.price
        entry = entry.model_copy(update={"knob_costs": costs, "price": price})
    return with_digest(entry)


def recorded_price(cost: DeterminismCost | None, measured_at: str) -> RecordedPrice | None:
    """Return what an entry keeps of a cost; None where it was not measured or is noise."""
    if cost is None or cost.state is not CostState.MEASURED:
        return None
    return _price((cost.time_ratio, cost.low, cost.high), cost.memory_ratio, measured_at)


def _attributed_price(cost: CostDocument) -> RecordedPrice | None:
    """Return the price of strict mode as `repro-gate cost` measured it."""
    for price in cost.prices:
        if price.arm == cost.judged_arm and price.state is CostState.MEASURED:
            numbers = price.ratio, price.low, price.high
            return _price(numbers, price.memory_ratio, cost.provenance.created_at)
    return None


def _price(
    numbers: tuple[float | None, float | None, float | None],
    memory_ratio: float | None,
    measured_at: str,
) -> RecordedPrice | None:
    ratio, low, high = numbers
    if ratio is None or low is None or high is None:
        return None
    return RecordedPrice(
        measured_at=measured_at, time_ratio=ratio, low=low, high=high, memory_ratio=memory_ratio
    )


def with_knob_costs(baseline: Baseline, cost: CostDocument) -> Baseline:
    """Return the baseline with a cost measurement noted in the entry of its environment.

    It notes the price of each knob and of all together. Raises `BaselineError` when there is no
    such entry.
    """
    provenance = cost.provenance
    costs = KnobCosts(
        measured_at=provenance.created_at,
        knobs=tuple(
            KnobCost(knob=row.knob, ratio=row.price.ratio, low=row.price.low, high=row.price.high)
            for row in cost.attribution
            if row.state is not KnobState.OFF
            and row.price is not None
            # A figure that noise could explain is not noted as a price.
            and row.price.state is CostState.MEASURED
            and row.price.ratio is not None
            and row.price.low is not None
            and row.price.high is not None
        ),
    )
    # A price holds only for the environment and training that it was measured with.
    priced = [
        entry
        for entry in baseline.entries
        if not entry.environment.moved(provenance.environment)
        and sha256_hex(canonical_json(entry.training)) == provenance.training_digest
    ]
    if not priced:
        raise BaselineError(
            "the knobs were measured in a different environment than the entry",
            hint="Record again: the machine changed between the runs.",
        )
    return Baseline(
        entries=tuple(
            with_digest(
                entry.model_copy(
                    update={"knob_costs": costs, "price": _attributed_price(cost) or entry.price}
                )
            )
            if entry in priced
            else entry
            for entry in baseline.entries
        )
    )
