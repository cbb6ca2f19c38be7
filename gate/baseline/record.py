"""Make a baseline entry from a run, refuse a poisoned one, and put it beside the others."""

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
from gate.data.data_sets import same_data
from gate.errors import BaselineError
from gate.evidence.configuration import configuration_of
from gate.evidence.run_evidence import EvidenceSet
from gate.evidence.step_work import SeedResults
from gate.text.digests import sha256_hex
from gate.text.json_text import canonical_json, canonical_sha256
from gate.training.runs import RunMode

FINGERPRINTED_STEPS = 20


def with_digest(entry: BaselineEntry) -> BaselineEntry:
    """The entry with the digest of its content."""
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
    """The entry that the first strict run would become; its digest comes with `successor`.

    Raises `BaselineError` when it may not become one: it was not repeatable, compared nothing,
    holds a NaN or infinity that the settings do not allow (`not_finite`), or belongs to no commit.
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
    if evidence.changed_files:
        raise BaselineError(
            "not recorded: there are uncommitted changes, so the entry would name the wrong commit",
            hint="Commit the changes, then record.",
            details=evidence.changed_files[:20],
        )
    # the first of two that are equal: which one is taken changes no bit
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
    """Whether an entry keeps what only explains, beside what decides at every step.

    The first ones, where most changes show, and then fewer and fewer: so a drift of a long training
    has a cause as well, and the file stays short enough to review.
    """
    # sampling intervals are powers of two as well, so the steps that are kept meet those observed
    return step <= FINGERPRINTED_STEPS or step & (step - 1) == 0


def with_entry(baseline: Baseline | None, entry: BaselineEntry) -> Baseline:
    """The baseline with this entry: it replaces the one of the same environment and training.

    Entries of another training or of other data are dropped: the project has moved on, and nothing
    can be compared with them any more.
    """
    same_training = [
        candidate
        for candidate in (baseline.entries if baseline else ())
        if candidate.training == entry.training and same_data(candidate.data, entry.data)
    ]
    # an entry of the same environment is replaced: two would leave it open which one judges
    others = [
        candidate for candidate in same_training if candidate.environment.moved(entry.environment)
    ]
    # in the order of a folder that is read back
    return Baseline(entries=tuple(sorted((*others, successor(baseline, entry)), key=entry_name)))


def successor(baseline: Baseline | None, entry: BaselineEntry) -> BaselineEntry:
    """The entry with its digest, and with what determinism cost by the entry that it replaces."""
    replaced = [
        previous
        for previous in (baseline.entries if baseline else ())
        if previous.training == entry.training and not previous.environment.moved(entry.environment)
    ]
    if replaced:
        known = replaced[0]
        # with their own date: nothing that a new result moves
        costs, price = entry.knob_costs or known.knob_costs, entry.price or known.price
        entry = entry.model_copy(update={"knob_costs": costs, "price": price})
    return with_digest(entry)


def recorded_price(cost: DeterminismCost | None, measured_at: str) -> RecordedPrice | None:
    """What an entry keeps of a cost; None where it was not measured or is within the noise."""
    if cost is None or cost.state is not CostState.MEASURED:
        return None
    return _price((cost.time_ratio, cost.low, cost.high), cost.memory_ratio, measured_at)


def _attributed_price(cost: CostDocument) -> RecordedPrice | None:
    """The price of strict mode as `repro-gate cost` measured it."""
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
    """The baseline with what was measured noted in the entry of the environment it was measured in.

    That is the price of each knob, and of all together.

    Raises `BaselineError` when there is no such entry.
    """
    provenance = cost.provenance
    costs = KnobCosts(
        measured_at=provenance.created_at,
        knobs=tuple(
            KnobCost(knob=row.knob, ratio=row.price.ratio, low=row.price.low, high=row.price.high)
            for row in cost.attribution
            if row.state is not KnobState.OFF
            and row.price is not None
            # what the noise could have made is not noted as a price
            and row.price.state is CostState.MEASURED
            and row.price.ratio is not None
            and row.price.low is not None
            and row.price.high is not None
        ),
    )
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
