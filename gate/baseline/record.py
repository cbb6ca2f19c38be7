"""Make a baseline entry from a run, refuse a poisoned one, and put it into the file."""

from __future__ import annotations

from collections.abc import Mapping

from gate.codec.digests import sha256_hex
from gate.codec.documents import read_document
from gate.codec.json_text import canonical_json
from gate.errors import BaselineError, DocumentError
from gate.records.baseline import MAX_BASELINE_BYTES, Baseline, BaselineEntry
from gate.records.comparison import Comparison, CostState, KnobCost, KnobCosts
from gate.records.measurement import CostDocument, KnobState
from gate.records.observed.evidence import EvidenceSet, StepDigest
from gate.records.observed.seeds import SeedResults
from gate.records.verdict import NotFinite

FINGERPRINTED_STEPS = 20


def read_baseline(data: bytes | None, source: str) -> Baseline | None:
    """Parse the committed file; None when there is none.

    Raises `DocumentError` for a broken file, one of another schema version, entries that were
    edited by hand, and two entries of one environment and training.
    """
    if data is None:
        return None
    baseline = read_document(Baseline, data, source, max_bytes=MAX_BASELINE_BYTES)
    edited = [number for number, one in enumerate(baseline.entries) if one != with_digest(one)]
    if edited:
        raise DocumentError(
            f"{source}: entries[{edited[0]}] was edited by hand: it does not match its digest",
            hint="Restore the file from version control, or record the entry again.",
        )
    known: set[bytes] = set()
    for number, one in enumerate(baseline.entries):
        key = canonical_json([one.training, one.environment.parts])
        if key in known:
            raise DocumentError(
                f"{source}: entries[{number}] is of the same environment and training as one "
                "before it",
                hint="Remove one of the two: it would be open which of them judges.",
            )
        known.add(key)
    return baseline


def with_digest(entry: BaselineEntry) -> BaselineEntry:
    """The entry with the digest of its content."""
    content = entry.model_dump(mode="json", exclude={"digest"})
    return entry.model_copy(update={"digest": sha256_hex(canonical_json(content))})


def propose_entry(
    evidence: EvidenceSet,
    repeat: Comparison,
    *,
    training: Mapping[str, str],
    not_finite: NotFinite | None,
    reason: str,
    seeded: SeedResults = (),
) -> BaselineEntry:
    """The entry that the first strict run would become.

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
    entry = BaselineEntry(
        commit=evidence.commit,
        recorded_at=evidence.created_at,
        reason=reason,
        training=dict(training),
        environment=run.environment,
        metrics=run.metrics,
        steps=tuple(map(_kept_of, run.steps)),
        checkpoint=run.checkpoint,
        seeded=seeded,
    )
    return with_digest(entry)


def _kept_of(step: StepDigest) -> StepDigest:
    """The digests that decide at every step; fingerprints, which only explain, of some steps.

    The first ones, where most changes show, and then fewer and fewer: so a drift of a long training
    has a cause as well, and the file stays short enough to review.
    """
    # sampling intervals are powers of two as well, so the steps that are kept meet those observed
    power_of_two = step.step & (step.step - 1) == 0
    if step.step <= FINGERPRINTED_STEPS or power_of_two:
        return step
    return step.model_copy(update={"fingerprints": {}})


def with_entry(baseline: Baseline | None, entry: BaselineEntry) -> Baseline:
    """The baseline with this entry: it replaces the one of the same environment and training.

    Entries of another training are dropped: `repro-gate.yml` has moved on and nothing can be
    compared with them any more.
    """
    same_training = [
        candidate
        for candidate in (baseline.entries if baseline else ())
        if candidate.training == entry.training
    ]
    # an entry of the same environment is replaced: two would leave it open which one judges
    others = [
        candidate for candidate in same_training if candidate.environment.moved(entry.environment)
    ]
    replaced = next((previous for previous in same_training if previous not in others), None)
    if replaced is not None and entry.knob_costs is None:
        # with their own date: nothing that a new result moves
        entry = entry.model_copy(update={"knob_costs": replaced.knob_costs})
    # one order, so that a review shows the changed entry and nothing else
    ordered = sorted(
        (*others, with_digest(entry)), key=lambda kept: sorted(kept.environment.parts.items())
    )
    return Baseline(entries=tuple(ordered))


def with_knob_costs(baseline: Baseline, cost: CostDocument) -> Baseline:
    """The baseline with what was measured noted in the entry of the environment it was measured in.

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
            with_digest(entry.model_copy(update={"knob_costs": costs}))
            if entry in priced
            else entry
            for entry in baseline.entries
        )
    )
