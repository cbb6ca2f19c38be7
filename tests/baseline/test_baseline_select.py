"""Which entry judges a run: the ordered key as a law over all environments."""

from __future__ import annotations

from evidence_cases import COMMIT, CREATED_AT, manifest_of
from hypothesis import given
from hypothesis import strategies as st

from gate.baseline.acceptance import FarFromPeers
from gate.baseline.entry import Baseline, BaselineEntry
from gate.baseline.select import (
    KEY,
    judging_entries,
    key_place,
    peers_of,
    replaced_by,
    select_entry,
)
from gate.evidence.step_columns import StepDigests
from gate.training.environment import Environment

HERE = dict.fromkeys(KEY, "same") | {"device": "cpu", "cpu": "one"}
OTHERS = ("a-new-part", "b-new-part")
PARTS = (*KEY[1:], *OTHERS)
COMPARABLE = ("cpu", "os", "packages")


def entry(moved: frozenset[str], at: str = CREATED_AT) -> BaselineEntry:
    parts = {name: "other" if name in moved else text for name, text in HERE.items()}
    parts |= {name: "other" for name in OTHERS if name in moved}
    return BaselineEntry(
        commit=COMMIT,
        recorded_at=at,
        training={},
        environment=Environment(parts=parts),
        metrics=(),
        steps=StepDigests(),
        checkpoint=manifest_of(),
    )


def chosen(*entries: BaselineEntry, comparable: tuple[str, ...] = ()) -> frozenset[str]:
    """The parts in which the chosen entry differs."""
    here = Environment(parts=HERE)
    found = select_entry(Baseline(entries=entries), here, {}, comparable).entry
    assert found is not None
    return frozenset(found.environment.moved(here))


MOVED = st.frozensets(st.sampled_from(PARTS), max_size=5)


def first_place(moved: frozenset[str]) -> int:
    """Parts that the key does not name share the place behind it; nothing moved is later still."""
    unnamed = PARTS.index(OTHERS[0])
    return min((min(PARTS.index(part), unnamed) for part in moved), default=len(PARTS))


@given(moves=st.lists(MOVED, min_size=1, max_size=6))
def test_the_first_different_place_of_the_nearest_is_the_latest(
    moves: list[frozenset[str]],
) -> None:
    taken = chosen(*map(entry, moves))
    assert first_place(taken) == max(map(first_place, moves))


@given(moves=st.lists(MOVED, min_size=1, max_size=6), order=st.randoms())
def test_the_choice_does_not_depend_on_the_order_of_files(
    moves: list[frozenset[str]], order: object
) -> None:
    entries = [entry(one) for one in moves]
    shuffled = list(entries)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert chosen(*entries, comparable=COMPARABLE) == chosen(*shuffled, comparable=COMPARABLE)


@given(moves=st.lists(MOVED, min_size=1, max_size=6))
def test_what_may_be_compared_goes_before_what_may_not(moves: list[frozenset[str]]) -> None:
    taken = chosen(*map(entry, moves), comparable=COMPARABLE)
    if any(one.issubset(COMPARABLE) for one in moves):
        assert taken.issubset(COMPARABLE)
    # and the very environment before everything
    assert chosen(*map(entry, [*moves, frozenset()]), comparable=COMPARABLE) == frozenset()


def test_of_two_that_begin_alike_the_one_that_ends_is_nearer() -> None:
    near, far = frozenset({"driver"}), frozenset({"driver", "cpu"})
    assert chosen(entry(far), entry(near)) == near


def test_of_two_alike_the_newer_is_taken() -> None:
    old, new = entry(frozenset()), entry(frozenset(), at="2027-01-01T00:00:00+00:00")
    for entries in ((old, new), (new, old)):
        found = select_entry(Baseline(entries=entries), Environment(parts=HERE), {}, ())
        assert found.entry == new


def test_the_key_orders_what_separates_two_environments() -> None:
    assert sorted(["zzz", "cpu", "torch", "device", "driver"], key=key_place) == [
        "device", "driver", "torch", "cpu", "zzz",
    ]  # fmt: skip


def test_what_is_provisional_is_no_peer_and_judges_no_other_environment() -> None:
    here, there, alone = entry(frozenset()), entry(frozenset({"cpu"})), entry(frozenset({"os"}))
    far = FarFromPeers(peers=1, metric="loss")
    unconfirmed = alone.model_copy(update={"far": far})
    baseline = Baseline(entries=(here, there, unconfirmed))
    assert peers_of(baseline, here) == (there,)
    assert replaced_by(baseline, here) == here
    assert judging_entries(baseline, here.environment) == Baseline(entries=(here, there))
    # in its own environment it stays, so that somebody is told that it does not judge yet
    assert judging_entries(baseline, alone.environment) == baseline
    # a second recording confirms it
    confirmed = unconfirmed.model_copy(update={"recordings": 2})
    assert peers_of(Baseline(entries=(here, there, confirmed)), here) == (there, confirmed)
