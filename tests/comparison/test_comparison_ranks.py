"""Which rank of several differs first between two runs."""

from __future__ import annotations

import pytest
from evidence_cases import evidence_of, manifest_of, series_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.checks import first_not_finite
from gate.comparison.compare import compare_results, distinct_results, equal_results
from gate.comparison.differences import Comparison, EventKind
from gate.evidence.run_evidence import CheckpointManifest, RankRecord, RunEvidence
from gate.evidence.step_columns import StepDigest, StepDigests

COMPARE = settings_of().compare
STEPS = 3


def record(rank: int, changed: dict[tuple[int, str], str] | None = None) -> RankRecord:
    """A rank whose fingerprints are named by step and kind, some of them changed."""
    told = {(step, name): f"sha256:{step}0" for step in range(1, 4) for name in ("input", "random")}
    told |= changed or {}
    return RankRecord(
        rank=rank,
        steps=StepDigests.of(
            StepDigest(
                step=step,
                parameters=f"sha256:{step}1",
                fingerprints={name: text for (at, name), text in told.items() if at == step},
            )
            for step in range(1, STEPS + 1)
        ),
        metrics=(series_of((3.0, 2.0, 1.0)),) if rank else (),
    )


def of_ranks(*ranks: RankRecord, **changes: object) -> RunEvidence:
    return evidence_of().model_copy(update={"ranks": ranks, **changes})


def compared(left: RunEvidence, right: RunEvidence) -> Comparison:
    return compare_results(left, right, COMPARE, ("a", "b"))


def state_of(**weights: bytes) -> CheckpointManifest:
    tensors = manifest_of(**weights).tensors
    named = [one.model_copy(update={"name": one.name.replace("_", "/", 1)}) for one in tensors]
    return manifest_of().model_copy(update={"tensors": tuple(sorted(named, key=lambda t: t.name))})


def test_the_rank_that_differs_earlier_is_the_first() -> None:
    same = of_ranks(record(0), record(1))
    other = of_ranks(record(0, {(3, "input"): "sha256:9"}), record(1, {(2, "input"): "sha256:9"}))
    found = compared(same, other)
    assert [(one.rank, one.first.step) for one in found.ranks_apart] == [(1, 2), (0, 3)]
    assert found.first_ranks == (1,)


def test_in_one_step_the_cause_goes_before_what_follows_from_it() -> None:
    same = of_ranks(record(0), record(1))
    draws = record(0, {(1, "random"): "sha256:9"})
    found = compared(same, of_ranks(draws, record(1, {(1, "input"): "sha256:9"})))
    assert found.first_ranks == (0,)
    assert found.ranks_apart[0].first.kind is EventKind.RANDOM


def test_where_all_ranks_differ_alike_none_is_named() -> None:
    changed = {(1, "input"): "sha256:9"}
    found = compared(
        of_ranks(record(0), record(1)), of_ranks(record(0, changed), record(1, changed))
    )
    assert len(found.ranks_apart) == 2
    assert found.first_ranks == ()


def test_a_loss_of_another_rank_is_a_difference_of_the_run() -> None:
    left = of_ranks(record(0), record(1))
    moved = record(1).model_copy(update={"metrics": (series_of((3.0, 2.5, 1.0)),)})
    right = of_ranks(record(0), moved)
    found = compared(left, right)
    assert not equal_results(left, right)
    assert distinct_results((left, right)) == 2
    assert [(one.metric, one.step) for one in found.metrics] == [("loss (rank 1)", 2)]
    assert found.first_ranks == (1,)
    assert found.first is not None
    assert (found.first.kind, found.first.step) == (EventKind.LOSS, 2)


def test_a_metric_that_one_run_lacks_on_a_rank_is_a_fault() -> None:
    silent = record(1).model_copy(update={"metrics": ()})
    found = compared(of_ranks(record(0), record(1)), of_ranks(record(0), silent))
    assert [one.metric for one in found.series] == ["loss (rank 1)"]


def test_the_loss_of_the_run_is_rank_0s() -> None:
    left = of_ranks(record(0), record(1))
    right = evidence_of(values=(1.0, 0.5, 0.125)).model_copy(update={"ranks": left.ranks})
    assert compared(left, right).first_ranks == (0,)


def test_without_records_the_states_say_which_rank() -> None:
    left = of_ranks(checkpoint=state_of(state_w=b"a", **{"state.rank1_w": b"b"}))
    right = of_ranks(checkpoint=state_of(state_w=b"a", **{"state.rank1_w": b"c"}))
    assert compared(left, right).first_ranks == (1,)


def test_against_a_baseline_that_has_the_losses_of_rank_0_alone_it_is_not_the_first() -> None:
    states = {"state_w": b"a", "state.rank1_w": b"a"}
    entry = evidence_of(values=(1.0, 0.5, 0.25)).model_copy(
        update={"checkpoint": state_of(**states)}
    )
    moved = evidence_of(values=(1.0, 0.75, 0.25)).model_copy(
        update={
            "ranks": (record(0), record(1)),
            "checkpoint": state_of(**dict.fromkeys(states, b"b")),
        }
    )
    found = compared(entry, moved)
    assert found.first is not None
    assert (found.first.kind, found.first.step) == (EventKind.LOSS, 2)
    assert found.first_ranks == ()


def test_one_rank_is_never_named() -> None:
    found = compared(evidence_of(), evidence_of(values=(1.0, 0.5, 0.125), weights=b"other"))
    assert (found.ranks_apart, found.first_ranks) == ((), ())


def test_a_number_of_another_rank_that_is_not_finite_never_passes() -> None:
    bad = record(1).model_copy(update={"metrics": (series_of((3.0, float("nan"), 1.0)),)})
    found = first_not_finite((of_ranks(record(0), bad),), ())
    assert found is not None
    assert (found.name, found.step) == ("loss (rank 1)", 2)


@given(st.lists(st.booleans(), min_size=2, max_size=6), st.sampled_from(["input", "random"]))
def test_exactly_the_ranks_that_differ_are_named_where_they_are_not_all(
    differs: list[bool], name: str
) -> None:
    changed = {(2, name): "sha256:9"}
    same = of_ranks(*(record(rank) for rank in range(len(differs))))
    other = of_ranks(*(record(rank, changed if one else None) for rank, one in enumerate(differs)))
    named = tuple(rank for rank, one in enumerate(differs) if one)
    assert compared(same, other).first_ranks == (named if len(named) < len(differs) else ())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_no_partner_is_not_compared(rank: int) -> None:
    found = compared(of_ranks(record(0), record(1)), of_ranks(record(rank)))
    assert found.ranks_apart == ()
