"""An operator is blamed only where all that decides its output was compared and is equal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import call, trace, value

from gate.diagnosis.traces import compare_traces
from gate.evidence.trace import Claim, Origin, RankTrace, TracedCall, TracedSettings, TraceFinding

ONE_THREAD, TWO_THREADS = {"threads": "1"}, {"threads": "2"}


def traced(
    made: str,
    *beside: TracedCall,
    settings: dict[str, str] = ONE_THREAD,
    layout: str = "",
    content: str = "a",
    **fields: object,
) -> RankTrace:
    """One call of equal input whose output is `made`."""
    one = call(
        0, "aten::sum", (value(content, name="input", layout=layout),), (value(made),), **fields
    )
    recorded = (TracedSettings(call=0, settings=settings),)
    return trace(one, *beside).model_copy(update={"settings": recorded})


def compared(one: RankTrace, other: RankTrace, *, drift: bool = False) -> TraceFinding:
    return compare_traces((one,), (other,), drift=drift)


SIDES = {
    "whole": st.booleans(),
    "layout": st.sampled_from(["", "strides (1, 4)"]),
    "random_state": st.sampled_from(["", "a", "b"]),
    "settings": st.sampled_from([ONE_THREAD, TWO_THREADS]),
}
BOTH = {
    "origin": st.sampled_from(Origin),
    "content": st.sampled_from(["", "a"]),
    "random": st.booleans(),
}


@given(st.fixed_dictionaries(SIDES), st.fixed_dictionaries(SIDES), st.fixed_dictionaries(BOTH))
def test_the_operator_is_blamed_only_when_all_else_was_compared_and_is_equal(
    left: dict[str, Any], right: dict[str, Any], both: dict[str, Any]
) -> None:
    found = compared(traced("x", **left, **both), traced("y", **right, **both))
    equal = all(left[name] == right[name] for name in ("layout", "settings"))
    drawn = left["random_state"] == right["random_state"] != "" or not both["random"]
    known = left["whole"] and right["whole"] and not both["origin"] and bool(both["content"])
    blamed = found.claim is Claim.NONDETERMINISTIC_OPERATOR
    assert blamed == (equal and drawn and known)
    assert blamed == ("operator is nondeterministic" in found.sentence)


def test_an_operator_beside_other_threads_is_not_blamed() -> None:
    beside = call(1, "aten::add_", (value("z"),), (value("z"),), thread=3)
    found = compared(*(traced(made, beside) for made in "xy"))
    assert found.claim is Claim.UNPROVEN
    assert "but other threads ran operators at the same time" in found.sentence


def test_another_number_of_threads_is_said_to_be_the_reason() -> None:
    one, other = traced("x", settings=ONE_THREAD), traced("y", settings=TWO_THREADS)
    found = compared(one, other)
    assert found.claim is Claim.SETTING
    assert found.sentence == (
        "aten::sum at train.py:1 gives a different output for equal inputs, because a setting "
        "differs: the number of threads is 1 in one run, 2 in the other"
    )
    assert "threads is 2 instead of 1" in compared(one, other, drift=True).sentence


def test_a_draw_from_an_equal_state_blames_no_generator() -> None:
    one, other = (traced(made, random=True, random_state="s") for made in "xy")
    assert compared(one, other).claim is Claim.NONDETERMINISTIC_OPERATOR
    other = traced("y", random=True, random_state="t")
    assert "whose state differs" in compared(one, other).sentence


def test_another_layout_is_followed_to_the_call_that_made_it() -> None:
    one, other = (
        trace(
            call(0, "aten::clone", (value("a"),), (value("a", layout=layout),)),
            call(1, "aten::view", (value("a", 0, layout=layout),), (value("a", layout=layout),)),
            call(2, "aten::sum", (value("a", 1, layout=layout),), (value(made),)),
        )
        for made, layout in (("x", ""), ("y", "strides (1, 4)"))
    )
    found = compared(one, other)
    assert found.claim is Claim.MEMORY_LAYOUT
    assert found.sentence == (
        "aten::clone at train.py:1 has equal values in another memory layout; "
        "aten::sum at train.py:3 is the first to compute a different result from it"
    )


def test_a_value_from_a_worker_is_seen_through_views() -> None:
    one, other = (
        trace(
            call(0, "aten::set_", (), (value(""),), origin=Origin.WORKER),
            call(1, "aten::view", (value(made, 0),), (value(""),)),
            call(2, "aten::sum", (value(made, 1),), (value(made * 2),)),
        )
        for made in "xy"
    )
    found = compared(one, other)
    assert (found.claim, found.line) == (Claim.OUTSIDE_VALUE, 1)
    assert found.sentence == (
        "a value made outside the traced calls differs, by a worker of a DataLoader (taken at "
        "train.py:1); aten::sum at train.py:3 is the first to use it"
    )


def taken(number: int) -> tuple[TracedCall, TracedCall]:
    """An empty tensor that is given a worker's storage, whose values nobody read."""
    arguments = "size=[0], dtype=torch.float32"
    return (
        call(number, "aten::empty", (), (value("", form="float32 (0,)"),), arguments=arguments),
        call(number + 1, "aten::set_", (), (value(""),), origin=Origin.WORKER, line=1),
    )


@pytest.mark.parametrize("drift", [True, False])
def test_when_the_data_of_a_worker_arrives_is_no_other_code_path(*, drift: bool) -> None:
    early = trace(
        *taken(0),
        *taken(2),
        call(4, "aten::sum", (value("x", 1),), (value("xx"),)),
        call(5, "aten::mean", (value("z", 3),), (value("zz"),)),
    )
    late = trace(
        *taken(0),
        call(2, "aten::sum", (value("y", 1),), (value("yy"),)),
        *taken(3),
        call(5, "aten::mean", (value("z", 4),), (value("zz"),)),
    )
    for one, other in ((early, late), (late, early)):
        found = compare_traces((one,), (other,), drift=drift)
        assert (found.claim, found.line, found.elsewhere) == (Claim.OUTSIDE_VALUE, 1, True)
        assert "differs, by a worker of a DataLoader (taken at train.py:1)" in found.sentence
    equal = trace(*taken(0), *taken(2), call(4, "aten::mean", (value("z", 3),), (value("zz"),)))
    again = trace(*taken(0), call(2, "aten::mean", (value("z", 1),), (value("zz"),)))
    assert compare_traces((equal,), (again,), drift=drift).claim is Claim.NOT_FOUND


def test_data_of_another_shape_from_a_worker_is_other_data() -> None:
    one, other = (
        trace(
            *taken(0),
            call(2, "aten::sum", (value("x", 1, form=form),), (value(form),)),
        )
        for form in ("float32 (8, 4)", "float32 (6, 4)")
    )
    found = compare_traces((one,), (other,), drift=True)
    assert (found.claim, found.line) == (Claim.OUTSIDE_VALUE, 1)
    assert found.sentence == (
        "a value made outside the traced calls differs, by a worker of a DataLoader (taken at "
        "train.py:1); aten::sum at train.py:3 is the first to use it"
    )
    assert found.remedy == (
        "Look at changes to the data, to the data set and to its transforms, which run in the "
        "workers."
    )


def test_memory_that_a_receive_fills_may_hold_anything_before() -> None:
    one, other = (
        trace(
            call(0, "aten::empty", (), (value(""),)),
            call(
                1,
                "c10d::recv_any_source_",
                (value(f"old {made}", 0, name="tensors", unset_by=(0,), overwritten=True),),
                (value("", name="tensors"),),
            ),
            call(2, "aten::sum", (value(made, 1),), (value(made * 2),)),
        )
        for made in "xy"
    )
    found = compared(one, other)
    assert found.claim is Claim.ARRIVAL
    assert "takes the message that arrives first, from any rank" in found.sentence
    assert found.remedy == "Receive from each rank by its number (src=), in a fixed order."


def test_what_nobody_compared_is_said() -> None:
    one, other = (traced(made, whole=False) for made in "xy")
    assert compared(one, other).sentence == (
        "aten::sum at train.py:1 is the first call whose output differs; its inputs look equal, "
        "but one of its arguments could not be compared"
    )


def test_a_cast_of_one_side_alone_is_another_type_of_number() -> None:
    base = trace(call(0, "aten::addmm", (value("a"),), (value("x"),)))
    cast = call(0, "aten::_to_copy", (value("a"),), (value("y"),), arguments="dtype=torch.bfloat16")
    assert compared(base, trace(cast), drift=True).precision == "bfloat16 instead of float32"
    assert compared(trace(cast), base, drift=True).precision == "float32 instead of bfloat16"


def test_a_cast_that_moved_is_no_other_type_of_number() -> None:
    cast = call(0, "aten::_to_copy", (value("a"),), (value("y"),), arguments="dtype=torch.float64")
    clamp = call(0, "aten::clamp_", (value("a"),), (value("x"),))
    behind = {"number": 1}
    base = trace(cast, clamp.model_copy(update=behind))
    head = trace(clamp, cast.model_copy(update=behind))
    assert compared(base, head, drift=True).precision == ""
    once = trace(clamp, call(1, "aten::sin", (value("a"),), (value("z"),)))
    assert compared(base, once, drift=True).precision == "float32 instead of float64"


@pytest.mark.parametrize("origin", Origin)
def test_of_two_commits_that_repeat_themselves_no_value_is_laid_to_chance(origin: Origin) -> None:
    taken = call(0, "aten::lift_fresh", (), (value(""),), origin=origin)
    before, makers = ((taken,), (0,)) if origin else ((), ())
    one, other = (
        trace(*before, call(1, "aten::sum", (value(made, *makers),), (value(made * 2),)))
        for made in "xy"
    )
    found = compared(one, other, drift=True)
    assert found.claim is Claim.OUTSIDE_VALUE
    assert found.remedy.startswith("Look at changes to ")
    assert not compared(one, other).remedy.startswith("Look at changes to ")
