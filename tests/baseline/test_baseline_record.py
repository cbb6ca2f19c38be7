from __future__ import annotations

import pytest
from evidence_cases import COMMIT, CREATED_AT, PARTS, evidence_of, evidence_set_of, settings_of

from gate.baseline.acceptance import RecordedPrice
from gate.baseline.entry import Baseline, BaselineEntry
from gate.baseline.record import (
    propose_entry,
    recorded_price,
    with_digest,
    with_entry,
    with_knob_costs,
)
from gate.baseline.select import select_entry
from gate.comparison.checks import first_not_finite
from gate.comparison.compare import compare_results
from gate.comparison.differences import CostState, DeterminismCost, KnobCost, KnobCosts
from gate.comparison.measurements import CostDocument, KnobPrice, KnobState, Price, Provenance
from gate.errors import BaselineError
from gate.evidence.run_evidence import RunEvidence
from gate.text.digests import sha256_hex
from gate.text.json_text import canonical_json
from gate.training.environment import Environment

COMPARE = settings_of().compare
TRAINING = {"train.max_steps": "3", "train.seed": "1"}
DIGEST = sha256_hex(canonical_json(TRAINING))


def _entry(
    run: RunEvidence | None = None,
    again: RunEvidence | None = None,
    changed_files: tuple[str, ...] = (),
) -> BaselineEntry:
    run = run or evidence_of()
    repeat = compare_results(run, again or run, COMPARE, ("strict-1", "strict-2"))
    evidence = evidence_set_of(run, changed_files=changed_files)
    return propose_entry(
        evidence,
        repeat,
        training=TRAINING,
        not_finite=first_not_finite((run,), COMPARE.allow_not_finite),
        reason="because",
    )


def test_an_entry_says_what_it_was_made_from() -> None:
    entry = _entry()
    assert (entry.commit, entry.reason, entry.training) == (COMMIT, "because", TRAINING)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_enters_no_baseline(value: float) -> None:
    with pytest.raises(BaselineError, match=r"loss holds (nan|inf) at step 2"):
        _entry(evidence_of(values=(1.0, value)))


def test_a_run_that_does_not_repeat_enters_no_baseline() -> None:
    with pytest.raises(BaselineError, match="the strict runs are not equal"):
        _entry(evidence_of(), evidence_of(weights=b"WEIGHTS"))


def test_a_dirty_tree_enters_no_baseline() -> None:
    with pytest.raises(BaselineError, match="there are uncommitted changes") as caught:
        _entry(changed_files=("train.py",))
    assert caught.value.details == ("train.py",)


def test_an_entry_replaces_its_environments_and_keeps_others() -> None:
    other = _entry(evidence_of(parts={**PARTS, "device": "gpu"}))
    first = with_entry(with_entry(None, _entry()), other)
    again = _entry().model_copy(update={"reason": "newer"})
    entries = with_entry(first, again).entries
    assert sorted(entry.reason for entry in entries) == ["because", "newer"]


def _price(ratio: float, state: CostState = CostState.MEASURED) -> Price:
    return Price(arm="strict", over="less", state=state, ratio=ratio, low=ratio, high=ratio)


def _knob(name: str, price: Price | None, state: KnobState = KnobState.NEEDED) -> KnobPrice:
    return KnobPrice(knob=name, price=price, state=state, reason="why")


def _cost(*knobs: KnobPrice, training: str = DIGEST) -> CostDocument:
    return CostDocument(
        provenance=Provenance(
            commit=COMMIT,
            created_at=CREATED_AT,
            settings_digest="1" * 64,
            training_digest=training,
            isolation="none",
            environment=Environment(parts=PARTS),
        ),
        rounds=3,
        warmup_steps=1,
        steps_used=20,
        order=(),
        arms=(),
        control=_price(1.0),
        prices=(),
        judged_arm="strict",
        attribution=knobs,
    )


def test_what_knobs_cost_is_noted_and_outlives_a_new_result() -> None:
    other = _entry(evidence_of(parts={**PARTS, "device": "gpu"}))
    baseline = with_entry(with_entry(None, _entry()), other)
    cost = _cost(
        _knob("threads", _price(1.2)),
        _knob("too small to tell", _price(1.001, CostState.INCONCLUSIVE)),
        _knob("not applied here", None),
        _knob("off", _price(1.4), KnobState.OFF),
    )
    entries = with_knob_costs(baseline, cost).entries
    noted = {entry.environment.parts["device"]: entry for entry in entries}
    assert noted["gpu"].knob_costs is None
    assert noted["cpu"].knob_costs == KnobCosts(
        measured_at=CREATED_AT, knobs=(KnobCost(knob="threads", ratio=1.2, low=1.2, high=1.2),)
    )
    again = with_entry(Baseline(entries=(noted["cpu"],)), _entry(evidence_of(weights=b"WEIGHTS")))
    assert again.entries[0].knob_costs == noted["cpu"].knob_costs
    assert again.entries[0].checkpoint != noted["cpu"].checkpoint


def test_the_price_of_strict_mode_is_noted_and_outlives_a_new_result() -> None:
    cost = _cost().model_copy(update={"prices": (_price(1.2),)})
    (noted,) = with_knob_costs(with_entry(None, _entry()), cost).entries
    assert noted.price == RecordedPrice(measured_at=CREATED_AT, time_ratio=1.2, low=1.2, high=1.2)
    again = with_entry(Baseline(entries=(noted,)), _entry(evidence_of(weights=b"WEIGHTS")))
    assert again.entries[0].price == noted.price


@pytest.mark.parametrize("state", [CostState.INCONCLUSIVE, CostState.NOT_MEASURABLE])
def test_a_price_that_was_not_measured_is_not_noted(state: CostState) -> None:
    cost = _cost().model_copy(update={"prices": (_price(1.2, state),)})
    (noted,) = with_knob_costs(with_entry(None, _entry()), cost).entries
    assert noted.price is None
    assert "price" not in noted.model_dump(mode="json")
    assert recorded_price(DeterminismCost(state=state, reason="noise"), CREATED_AT) is None


def test_prices_of_another_training_are_noted_nowhere() -> None:
    with pytest.raises(BaselineError, match="the knobs were measured in a different environment"):
        with_knob_costs(with_entry(None, _entry()), _cost(training="5" * 64))


def test_an_entry_of_another_training_is_dropped() -> None:
    old = _entry().model_copy(update={"training": {"train.max_steps": "4"}})
    assert with_entry(Baseline(entries=(old,)), _entry()).entries == (with_digest(_entry()),)


def test_order_of_recording_does_not_show_in_the_file() -> None:
    one, two = _entry(), _entry(evidence_of(parts={**PARTS, "device": "gpu"}))
    assert with_entry(with_entry(None, one), two) == with_entry(with_entry(None, two), one)


def _select(parts: dict[str, str], *entries: BaselineEntry) -> BaselineEntry | None:
    baseline = Baseline(entries=entries) if entries else None
    return select_entry(baseline, Environment(parts=parts), TRAINING, ("cpu",)).entry


def test_the_same_environment_is_chosen_before_a_comparable_one() -> None:
    near, same = _entry(evidence_of(parts={**PARTS, "cpu": "two"})), _entry()
    other = _entry(evidence_of(parts={**PARTS, "device": "gpu"}))
    assert _select(PARTS, other, near, same) == same
    assert _select(PARTS, other, near) == near


def test_among_different_ones_the_nearest_is_chosen() -> None:
    far = _entry(evidence_of(parts={**PARTS, "driver": "9", "torch": "1"}))
    near = _entry(evidence_of(parts={**PARTS, "driver": "9"}))
    assert _select(PARTS, far, near) == near


def test_an_entry_of_another_accelerator_is_only_named() -> None:
    gpu = _entry(evidence_of(parts={**PARTS, "device": "gpu"}))
    found = select_entry(Baseline(entries=(gpu,)), Environment(parts=PARTS), TRAINING, ())
    assert (found.entry, found.same_training, found.nearest) == (None, True, gpu)
    # however much else moved, one of the same kind goes before it
    cpu = _entry(evidence_of(parts={name: f"{text}0" for name, text in PARTS.items()}))
    cpu_here = cpu.model_copy(
        update={"environment": Environment(parts={**cpu.environment.parts, "device": "cpu"})}
    )
    assert _select(PARTS, gpu, cpu_here) == cpu_here


def test_no_entries_choose_nothing() -> None:
    assert _select(PARTS) is None


def test_an_entry_of_another_training_is_chosen_only_to_say_so() -> None:
    old = _entry().model_copy(update={"training": {"train.max_steps": "4"}})
    found = select_entry(Baseline(entries=(old,)), Environment(parts=PARTS), TRAINING, ())
    assert not found.same_training
    assert [one.key for one in found.other_settings] == ["train.max_steps", "train.seed"]
    both = Baseline(entries=(old, _entry()))
    assert select_entry(both, Environment(parts=PARTS), TRAINING, ()).same_training
