"""How far a new entry is from the one that it replaces."""

from __future__ import annotations

from evidence_cases import COMMIT, evidence_of, settings_of

from gate.baseline.acceptance import Movement
from gate.baseline.movement import movement_of
from gate.comparison.compare import compare_results
from gate.evidence.run_evidence import RunEvidence
from gate.report.entry_words import movement_words

OLD = evidence_of(values=(2.5, 2.25, 2.0))


def _moved(new: RunEvidence, **tolerance: object) -> Movement | None:
    rules = ({"metric": "*", **tolerance},) if tolerance else ()
    compare = settings_of(compare={"tolerances": rules}).compare
    against = compare_results(OLD, new, compare, ("old", "new"))
    return movement_of(
        against,
        compare.tolerances,
        replaced=OLD.metrics,
        commit=COMMIT,
        outcome="code-drift",
    )


def _words(new: RunEvidence, **tolerance: object) -> str:
    moved = _moved(new, **tolerance)
    assert moved is not None
    return movement_words(moved)


def test_equal_bits_did_not_move() -> None:
    assert _moved(OLD) is None


def test_the_worst_metric_is_told_with_multiples_of_its_tolerance() -> None:
    new = evidence_of(values=(2.5, 2.25, 2.008), weights=b"WEIGHTS")
    told = "loss at step 3: 2 → 2.008, moved by 0.4 % (8 times the tolerance); weights differ"
    assert _words(new, relative=0.0005) == told
    assert "(40 times the tolerance)" in _words(new, relative=0.0001)
    assert "(within its tolerance)" in _words(new, relative=0.1)


def test_of_several_limits_the_widest_counts_since_any_one_suffices() -> None:
    new = evidence_of(values=(2.5, 2.25, 2.008))
    assert "(2 times the tolerance)" in _words(new, relative=0.0001, absolute=0.004)


def test_without_a_tolerance_units_in_the_last_place_are_told_where_they_are_few() -> None:
    near = evidence_of(values=(2.5, 2.25, 2.0000000000000004))
    assert _words(near).endswith("moved by 2.22e-14 % (1 ULP, no tolerance); weights differ")
    far = evidence_of(values=(2.5, 2.25, 3.0))
    assert _words(far).endswith("moved by 50 % (no tolerance); weights differ")


def test_weights_alone_may_move() -> None:
    told = _words(evidence_of(values=(2.5, 2.25, 2.0), weights=b"WEIGHTS"))
    assert told == "no number moved; weights differ"


def test_another_number_of_steps_is_told() -> None:
    told = _words(evidence_of(values=(2.5, 2.25)))
    assert told == "no number moved; other metrics, steps or tensors; weights differ"


def test_the_replaced_entry_and_what_the_gate_said_are_kept() -> None:
    moved = _moved(evidence_of(values=(2.5, 2.25, 2.5)))
    assert moved is not None
    assert (moved.commit, moved.outcome, moved.before, moved.after) == (
        COMMIT, "code-drift", "2.0", "2.5",
    )  # fmt: skip
