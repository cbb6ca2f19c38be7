"""A new entry beside those of the same training elsewhere: its last digits may be others."""

from __future__ import annotations

import pytest
from evidence_cases import COMMIT, CREATED_AT, evidence_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.baseline.entry import BaselineEntry
from gate.baseline.movement import far_from_peers
from gate.evidence.run_evidence import RunEvidence

FINITE = st.floats(min_value=-1e6, max_value=1e6)
CURVES = st.tuples(FINITE, FINITE, FINITE)


def _entry(*values: float, run: RunEvidence | None = None) -> BaselineEntry:
    made = run or evidence_of(values=values)
    return BaselineEntry(
        commit=COMMIT,
        recorded_at=CREATED_AT,
        training={"train.seed": "1"},
        environment=made.environment,
        metrics=made.metrics,
        steps=made.steps,
        checkpoint=made.checkpoint,
    )


def _far(entry: BaselineEntry, *peers: BaselineEntry, absolute: float = 0.0) -> str:
    rules = settings_of(compare={"tolerances": ({"metric": "*", "absolute": absolute},)}).compare
    found = far_from_peers(entry, peers, rules.tolerances)
    return "" if found is None else f"{found.metric} {found.step} {found.value} of {found.peers}"


def test_without_a_peer_nothing_is_far() -> None:
    assert _far(_entry(1e9, 1e9, 1e9)) == ""


def test_last_digits_are_near_and_another_result_is_far() -> None:
    peer = _entry(2.5, 2.25, 2.125)
    assert _far(_entry(2.5, 2.25, 2.1250001), peer) == ""
    assert _far(_entry(2.5, 2.25, 9.125), peer) == "loss 3 9.125 of 1"


def test_one_percent_of_the_largest_value_is_the_border() -> None:
    peer = _entry(2.0, 1.0, 1.0)
    assert _far(_entry(2.0, 1.0, 1.019), peer) == ""
    assert _far(_entry(2.0, 1.0, 1.021), peer) == "loss 3 1.021 of 1"


def test_a_tolerance_that_is_wider_is_the_border() -> None:
    peer = _entry(2.0, 1.0, 1.0)
    assert _far(_entry(2.0, 1.0, 1.4), peer, absolute=0.5) == ""
    assert _far(_entry(2.0, 1.0, 1.6), peer, absolute=0.5) == "loss 3 1.6 of 1"


def test_peers_that_are_apart_leave_as_much_room_on_either_side() -> None:
    peers = _entry(2.0, 1.0, 1.0), _entry(2.0, 1.0, 1.5)
    assert _far(_entry(2.0, 1.0, 1.99), *peers) == ""
    assert _far(_entry(2.0, 1.0, 0.51), *peers) == ""
    assert _far(_entry(2.0, 1.0, 2.01), *peers) == "loss 3 2.01 of 2"


def test_the_farthest_number_is_named() -> None:
    assert _far(_entry(3.5, 2.25, 9.0), _entry(2.5, 2.25, 2.0)) == "loss 3 9.0 of 1"


def test_what_every_peer_has_and_the_entry_lacks_is_far() -> None:
    other = evidence_of()
    renamed = other.metrics[0].model_copy(update={"name": "accuracy"})
    bare = _entry(run=other.model_copy(update={"metrics": (renamed,)}))
    found = far_from_peers(bare, (_entry(2.5, 2.25, 2.125),), ())
    assert found is not None
    assert (found.metric, found.value) == ("loss", "")
    assert _far(_entry(2.5, 2.25), _entry(2.5, 2.25, 2.125)) == "loss 3  of 1"


@pytest.mark.parametrize("digits", [5, 6])
def test_goldens_rounded_by_hand_are_near_so_other_checks_have_to_catch_them(digits: int) -> None:
    exact = (2.500001234567, 2.250001234567, 2.125001234567)
    rounded = tuple(round(value, digits) for value in exact)
    assert _far(_entry(*rounded), _entry(*exact)) == ""


@given(CURVES)
def test_a_twin_is_never_far(values: tuple[float, ...]) -> None:
    assert _far(_entry(*values), _entry(*values)) == ""


@given(CURVES, st.lists(CURVES, min_size=1, max_size=4))
def test_a_peer_more_that_agrees_makes_nothing_far(
    entry: tuple[float, ...], peers: list[tuple[float, ...]]
) -> None:
    known = [_entry(*values) for values in peers]
    if _far(_entry(*entry), *known) == "":
        assert _far(_entry(*entry), *known, _entry(*entry)) == ""
