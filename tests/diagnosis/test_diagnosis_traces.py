"""Two traces compared, as values: what parts them and what is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import call, chain, trace, value

from gate.comparison.differences import EventKind
from gate.diagnosis.diagnosis import CauseClass, Diagnosis, Suspect, SuspectKind
from gate.diagnosis.trace_alignment import align
from gate.diagnosis.trace_window import with_trace
from gate.diagnosis.traces import compare_traces, first_not_finite_call
from gate.evidence.trace import ChangedNumber, Claim, NoTrace, Phase, RankTrace, TraceFinding

LETTERS = st.text("abcdefgh", min_size=1, max_size=30)


def compared(one: RankTrace, other: RankTrace, *, drift: bool = False) -> TraceFinding:
    return compare_traces((one,), (other,), drift=drift)


def test_equal_inputs_and_another_output_are_a_nondeterministic_operator() -> None:
    found = compared(chain("abcd"), chain("abxy"))
    assert found.claim is Claim.NONDETERMINISTIC_OPERATOR
    assert found.sentence == (
        "aten::mul at train.py:3 gives a different output for equal inputs: the operator is "
        "nondeterministic"
    )
    assert [row.state for row in found.rows if row.here] == ["output differs"]


def test_an_operator_of_the_scripts_own_is_called_custom() -> None:
    one, other = (trace(call(0, "mine::kernel", (value("a"),), (value(made),))) for made in "bc")
    assert "the custom operator is nondeterministic" in compared(one, other).sentence


def test_the_backward_pass_is_told_with_its_forward_line() -> None:
    one, other = (
        trace(
            call(
                0,
                "aten::index_put",
                (value("a"),),
                (value(made),),
                phase=Phase.BACKWARD,
                file="",
                line=0,
                forward_file="model.py",
                forward_line=14,
                module="embed",
            )
        )
        for made in "bc"
    )
    found = compared(one, other)
    assert found.sentence.startswith(
        "aten::index_put in the backward pass of model.py:14 in module embed gives a different"
    )
    assert (found.place, found.forward_place) == ("", "model.py:14")


def test_another_backward_path_is_told_with_the_forward_call_that_takes_it() -> None:
    def run(operator: str) -> RankTrace:
        behind = {"phase": Phase.BACKWARD, "file": "", "line": 0, "forward_file": "train.py"}
        calls = [call(0, operator, (value("a"),), (value(f"{operator} of a"),), line=7)]
        calls += [call(n, "aten::neg", (), (value(f"equal {n}"),)) for n in range(1, 10)]
        made = (value(f"gradient by {operator}"),)
        calls.append(call(10, f"{operator}_backward", (), made, forward_line=7, **behind))
        return trace(*calls)

    found = compared(run("aten::sum"), run("aten::mean"), drift=True)
    assert (found.operator, found.place) == ("aten::mean", "train.py:7")
    assert found.sentence.startswith("aten::mean at train.py:7 is called instead of aten::sum")


def test_compiled_code_is_below_the_dispatcher() -> None:
    one, other = (
        trace(call(0, "aten::mm", (value("a"),), (value(made),), compiled=True)) for made in "bc"
    )
    found = compared(one, other)
    assert found.claim is Claim.BELOW_DISPATCHER
    assert "what happens inside it is below the dispatcher" in found.sentence


def test_a_difference_goes_through_compiled_code_unseen() -> None:
    one, other = (
        trace(
            call(0, "aten::mul", (value("a"),), (value(made),)),
            call(1, "aten::addmm", (value(made, 0),), (value(made + "1"),), compiled=True),
            call(2, "aten::addmm", (value(made + "2", -1),), (value(made + "3"),), compiled=True),
            call(3, "aten::add_", (value(made + "4", -1),), (value(made + "5"),)),
        )
        for made in "bc"
    )
    assert compared(one, other).operator == "aten::mul"


def test_what_another_rank_sent_is_said_so() -> None:
    sent = call(0, "c10d::allreduce_", (value("a"),), (value(""),))
    one, other = (
        trace(sent, call(1, "aten::div", (value(content, 0),), (value(content + "!"),)))
        for content in "bc"
    )
    found = compared(one, other)
    assert found.claim is Claim.OUTSIDE_VALUE
    assert found.sentence.startswith(
        "the value that c10d::allreduce_ at train.py:1 received from another"
    )


def test_a_rank_that_made_the_difference_goes_before_one_that_received_it() -> None:
    sent = call(0, "c10d::allreduce_", (value("a"),), (value(""),))
    first = [
        trace(sent, call(1, "aten::div", (value(content, 0),), (value(content + "!"),)))
        for content in "bc"
    ]
    second = [chain(f"aa{content}").model_copy(update={"rank": 1}) for content in "bc"]
    found = compare_traces((first[0], second[0]), (first[1], second[1]), drift=False)
    assert (found.rank, found.claim) == (1, Claim.NONDETERMINISTIC_OPERATOR)
    assert found.sentence.startswith("on rank 1: aten::mul at train.py:3 gives a different output")


def test_a_difference_that_a_collective_passed_on_is_told_where_it_entered() -> None:
    one, other = (
        trace(
            call(0, "aten::mul", (value("a"),), (value(made),)),
            call(1, "c10d::allreduce_", (value(made, 0),), (value(""),)),
            call(2, "aten::add_", (value(made, 1),), (value(made + "!"),), phase=Phase.OPTIMIZER),
        )
        for made in "bc"
    )
    assert compared(one, other).operator == "aten::mul"


def test_a_number_read_from_a_tensor_that_differs_is_no_new_cause() -> None:
    one, other = (
        trace(
            call(0, "aten::mm", (value("a"),), (value(made),)),
            call(1, "aten::_local_scalar_dense", (value(made, 0),)),
            call(
                2,
                "aten::mul",
                (value("z"),),
                (value(made + "!"),),
                arguments=f"other={made}",
                phase=Phase.OPTIMIZER,
            ),
        )
        for made in "bc"
    )
    assert compared(one, other).operator == "aten::mm"


def test_a_trace_that_was_cut_says_how_far_it_goes() -> None:
    cut = chain("abc").model_copy(update={"ended": "calls"})
    assert compared(cut, cut).sentence == (
        "two traced runs agree as far as they go; the trace ended at call 3, before "
        "the window was over"
    )


def evaluated(*operators: str, after: str = "abcdefghijkl") -> RankTrace:
    """A step, then an evaluation on which nothing depends, then the next step."""
    made = [("aten::mul", letter) for letter in "step"]
    made += [(operator, f"{operator} made it") for operator in operators]
    made += [("aten::mul", letter) for letter in after]
    calls = (call(at, name, (), (value(one),)) for at, (name, one) in enumerate(made))
    return trace(*calls)


def test_a_sparse_gradient_that_no_call_made_leads_back_to_the_input_that_differs() -> None:
    def run(rows: str) -> RankTrace:
        loss = call(1, "aten::embedding", (value(rows, 0),), (value(f"{rows} taken"),))
        back = {"phase": Phase.BACKWARD, "file": "", "forward_file": "train.py", "forward_line": 2}
        grown = call(2, "aten::mul", (value(f"{rows} taken", 1),), (value(f"{rows} x"),), **back)
        update = {"phase": Phase.OPTIMIZER}
        places = call(3, "aten::_indices", (value("", -1),), (value("places"),), **update)
        sparse = value(f"{rows} gradient", 3, -1)
        step = call(4, "aten::_values", (sparse,), (value(f"{rows} values"),), **update)
        drawn = call(0, "aten::lift_fresh", (value(rows, -1),), (value(rows),))
        return trace(drawn, loss, grown, places, step)

    found = compared(run("one"), run("two"))
    assert (found.claim, found.operator, found.place) == (
        Claim.OUTSIDE_VALUE,
        "aten::lift_fresh",
        "train.py:1",
    )
    # alone, nobody knows who wrote what no call made
    ends = [run(rows) for rows in ("one", "two")]
    updates = [trace(*(end.calls[number] for number in (3, 4))) for end in ends]
    assert compared(*updates).claim is not Claim.BELOW_DISPATCHER


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            ("aten::gelu", "aten::mean"),
            "aten::gelu at train.py:5 is called instead of aten::relu: the code path changed",
        ),
        (
            ("aten::relu", "aten::dropout", "aten::mean"),
            "aten::dropout at train.py:6 is called in the head commit only",
        ),
    ],
)
def test_other_calls_of_an_evaluation_are_named_where_its_number_differs(
    other: tuple[str, ...], sentence: str
) -> None:
    one, two = evaluated("aten::relu", "aten::mean"), evaluated(*other)
    assert compare_traces((one,), (two,), drift=True, logged=True).sentence == sentence
    # where weights differ, what only an evaluation calls is no cause
    assert compare_traces((one,), (two,), drift=True).reason is NoTrace.AGREE


def test_another_argument_is_named_where_only_a_buffer_keeps_what_it_makes() -> None:
    one, two = (
        trace(
            call(0, "aten::native_batch_norm", (), (value("x"),), arguments=f"momentum={momentum}"),
            call(1, "aten::relu", (value("x", 0),), (value("y"),)),
        )
        for momentum in (0.1, 0.05)
    )
    found = compare_traces((one,), (two,), drift=True, logged=True)
    assert found.sentence == (
        "aten::native_batch_norm at train.py:1 is called with momentum=0.05 instead of momentum=0.1"
    )
    assert not compare_traces((one,), (two,), drift=True).names_a_call


def test_runs_without_a_trace_claim_nothing() -> None:
    found = compare_traces((), (), drift=True)
    assert found.claim is Claim.NOT_FOUND
    assert found.sentence == "no training process left a trace in both runs"


def test_values_that_were_not_read_are_not_taken_for_a_difference() -> None:
    one = trace(call(0, outputs=(value(""),)), call(1, "aten::add", (value("a", 0),)))
    other = trace(call(0, outputs=(value("b"),)), call(1, "aten::add", (value("a", 0),)))
    assert compared(one, other).claim is Claim.NOT_FOUND


@given(LETTERS, st.booleans())
def test_a_trace_agrees_with_itself(contents: str, drift: bool) -> None:  # noqa: FBT001 - drawn by name
    same = chain(contents)
    assert compared(same, same, drift=drift).claim is Claim.NOT_FOUND


@given(LETTERS, LETTERS)
def test_the_first_letter_that_differs_is_the_call_that_is_named(one: str, other: str) -> None:
    expected = next(
        (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        None,
    )
    assert compared(chain(one), chain(other)).call == expected


@given(st.integers(0, 12), st.integers(1, 5))
def test_calls_of_one_side_alone_that_move_nothing_are_passed_over(place: int, many: int) -> None:
    plain = chain("abcdefghijklmnopqrstuvwxyz").calls
    extra = tuple(call(0, "aten::sum", outputs=(value(str(number)),)) for number in range(many))
    longer = (*plain[:place], *extra, *plain[place:])
    found = align(plain, longer)
    assert found.parted is None
    assert [len(block.observed) for block in found.blocks] == [many]
    assert len(found.pairs) == len(plain)


def test_alignment_is_a_value() -> None:
    plain = chain("abc").calls
    assert replace(align(plain, plain)) == align(plain, plain)


def test_a_loss_computed_another_way_is_named_though_gradients_do_not_see_it() -> None:
    def run(*loss: str, made: str) -> RankTrace:
        calls = [call(0, "aten::mul", (value("a"),), (value("errors"),))]
        for number, operator in enumerate(loss, start=1):
            out = made if number == len(loss) else operator
            calls.append(call(number, operator, (value("x", number - 1),), (value(out),)))
        start = len(calls)
        calls.append(call(start, "aten::ones_like", (value(made, start - 1),), (value("1"),)))
        later = range(start + 1, start + 10)
        after = [call(n, "aten::div", (value("1", n - 1),), (value("1"),)) for n in later]
        return trace(*calls, *after)

    base = run("aten::mean", made="0.30")
    head = run("aten::_to_copy", "aten::mean", "aten::_to_copy", made="0.31")
    found = compared(base, head, drift=True)
    assert (found.claim, found.operator, found.place) == (
        Claim.CODE_PATH,
        "aten::_to_copy",
        "train.py:2",
    )
    same = compared(base, run("aten::_to_copy", "aten::mean", made="0.30"), drift=True)
    assert same.claim is Claim.NOT_FOUND


def test_another_row_of_one_views_result_is_another_tensor_and_no_write_past_torch() -> None:
    def run(offset: str) -> RankTrace:
        rows = call(0, "aten::unbind", (value("image"),), (value("all rows"),), view=True)
        taken = value(f"row at {offset}", 0, offset=offset)
        return trace(rows, call(1, "aten::roll", (taken,), (value(f"{offset}, rolled"),)))

    found = compared(run("64"), run("128"))
    assert found.claim is Claim.OTHER_TENSORS
    assert found.sentence.startswith("aten::roll at train.py:2 takes different tensors than in")


def test_a_write_into_another_part_of_a_tensor_is_told_with_the_call_that_chose_the_part() -> None:
    def run(start: str) -> RankTrace:
        part = {"offset": start}
        return trace(
            call(0, "aten::zeros", (), (value("zeros"),)),
            call(
                1, "aten::slice", (), (value("0", **part),), view=True, arguments=f"start={start}"
            ),
            call(2, "aten::fill_", (value("0", 1, **part),), (value("1", **part),)),
            call(3, "aten::addmm", (value(f"ones at {start}", 2),), (value(f"{start} used"),)),
        )

    found = compared(run("16"), run("32"), drift=True)
    assert (found.claim, found.place) == (Claim.CODE_PATH, "train.py:2")
    assert found.sentence == (
        "aten::slice at train.py:2 is called with start=32 instead of start=16"
    )


def test_rows_that_python_shuffles_are_other_tensors_and_no_write_past_torch() -> None:
    def run(*rows: int) -> RankTrace:
        made = [call(n, "aten::lift_fresh", (), (value(f"row {n}"),)) for n in range(4)]
        content = f"rows {rows}"
        taken = call(4, "aten::stack", (value(content, *rows),), (value(f"{content}, stacked"),))
        return trace(*made, taken)

    for rows in ((2, 0), (0, 3)):
        found = compared(run(0, 2), run(*rows))
        assert (found.claim, found.place) == (Claim.OTHER_TENSORS, "train.py:5")
        assert found.sentence == (
            "aten::stack at train.py:5 takes different tensors than in the other run, or the same "
            "ones "
            "in a "
            "different order: something outside torch chose them"
        )
    changed = run(0, 2).calls[4].model_copy(update={"inputs": (value("written", 0, 2),)})
    written = trace(*run(0, 2).calls[:4], changed.model_copy(update={"outputs": (value("x"),)}))
    assert compared(run(0, 2), written).claim is Claim.BELOW_DISPATCHER


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("other=14.0", "other=12.0"),
        ("value=1e-05, p=0.5", "value=2e-05, p=0.25"),
        ("other=10", "other=9.9"),
        ("other=0.5, alpha=2.5", "other=1, alpha=2"),
    ],
)
def test_calls_may_differ_in_real_numbers_alone(before: str, after: str) -> None:
    found = _of_arguments(before, after)
    assert found.real_numbers
    pairs = zip(before.split(", "), after.split(", "), strict=True)
    assert found.numbers == tuple(
        ChangedNumber(before=old.partition("=")[2], after=new.partition("=")[2])
        for old, new in pairs
    )


def test_a_number_that_one_call_alone_is_given_is_none_that_changed() -> None:
    found = _of_arguments("alpha=0.5, p=0.1", "beta=0.5, p=0.2")
    assert found.real_numbers
    assert found.numbers == (ChangedNumber(before="0.1", after="0.2"),)
    assert _of_arguments("p=0.1", f"p=0.{'1' * 40}").numbers == ()
    found = _of_arguments("dtype=torch.bfloat16", "dtype=torch.float16")
    assert not found.real_numbers
    assert found.numbers == (ChangedNumber(before="bfloat16", after="float16"),)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n=48", "n=40"),
        ("other=10, n=48", "other=9.9, n=40"),
        ("other=14.0, dim=0", "other=12.0, dim=1"),
        ("other=14.0", "other=14.0"),
    ],
)
def test_calls_that_differ_otherwise_may_choose_or_order(before: str, after: str) -> None:
    found = _of_arguments(before, after)
    assert (found.real_numbers, found.numbers) == (False, ())


def _of_arguments(before: str, after: str) -> TraceFinding:
    one, other = (
        trace(call(0, "aten::div", (value("a"),), (value(made),), arguments=text))
        for text, made in ((before, "b"), (after, "c"))
    )
    return compared(one, other, drift=True)


def test_a_call_that_was_given_a_nan_is_not_the_first_to_give_one() -> None:
    bad = value("bad", 1, odd="nan")
    calls = (
        call(0, "aten::add", (value("a"),), (value("b", 0),)),
        call(1, "aten::log", (value("b", 0),), (bad,)),
        call(2, "aten::mul", (bad,), (value("worse", 2, odd="nan"),)),
    )
    found = first_not_finite_call((trace(*calls),), infinite=False)
    assert found.sentence == "aten::log at train.py:2 gives the first NaN"
    none = first_not_finite_call((trace(*calls),), infinite=True)
    assert none.sentence == "no traced call makes the first one"


def of_ranks(*pairs: tuple[RankTrace, RankTrace]) -> TraceFinding:
    """What the traces of several ranks say, each rank in both runs."""
    sides = [
        tuple(pair[side].model_copy(update={"rank": rank}) for rank, pair in enumerate(pairs))
        for side in (0, 1)
    ]
    return compare_traces(sides[0], sides[1], drift=False)


def receiver(content: str, given: str = "a") -> RankTrace:
    """A rank that gives a collective something, and uses what comes out."""
    sent = call(0, "c10d::allreduce_", (value(given),), (value(""),))
    return trace(sent, call(1, "aten::div", (value(content, 0),), (value(content + "!"),)))


def test_a_collective_of_equal_values_whose_result_differs_is_named() -> None:
    found = of_ranks((receiver("b"), receiver("c")), (receiver("b"), receiver("c")))
    assert found.claim is Claim.COLLECTIVE
    assert found.operator == "c10d::allreduce_"
    assert found.sentence.startswith(
        "every rank gives c10d::allreduce_ at train.py:1 equal values, and its result differs"
    )
    assert found.notes == ("Rank 1 received a different value by c10d::allreduce_ at train.py:1.",)


@pytest.mark.parametrize("given", ["z", ""])
def test_a_collective_that_one_rank_may_have_given_something_else_is_not(given: str) -> None:
    other = (receiver("b"), receiver("c", given))
    found = of_ranks((receiver("b"), receiver("c")), other)
    assert found.claim is not Claim.COLLECTIVE


def test_the_rank_whose_value_differed_before_fewer_collectives_is_the_first() -> None:
    def traced(content: str, collectives: int) -> RankTrace:
        calls = [
            call(number, "c10d::allreduce_", (value("a"),), (value(""),))
            for number in range(collectives)
        ]
        # many calls of its own: a number of a call says nothing to another rank
        own = [call(collectives + number, "aten::relu", (), (value("a"),)) for number in range(9)]
        last = call(collectives + 9, "aten::mul", (value("a"),), (value(content),))
        return trace(*calls, *own, last)

    late, early = ((traced("b", 3), traced("c", 3)), (traced("b", 1), traced("c", 1)))
    assert of_ranks(late, early).rank == 1
    assert of_ranks(early, late).rank == 0


def test_a_message_that_has_not_come_is_not_memory_that_nobody_wrote() -> None:
    bare = call(0, "aten::empty", (), (value(""),))
    begun = call(1, "c10d::recv_", (value("", 0, unset_by=(0,)),), (value(""),))
    one, other = (
        trace(
            bare,
            begun,
            call(2, "aten::mul", (value(content, 1, unset_by=(0,)),), (value(content + "!"),)),
        )
        for content in "bc"
    )
    found = compared(one, other)
    assert (found.claim, found.operator) == (Claim.OUTSIDE_VALUE, "c10d::recv_")


BEGUN = Suspect(
    place="train.py:9",
    kind=SuspectKind.THREAD,
    call="torch.distributed.irecv",
    step=1,
    possible=True,
)


@pytest.mark.parametrize(
    ("operator", "claim", "proved"),
    [
        ("c10d::recv_", Claim.OUTSIDE_VALUE, True),
        ("c10d::recv_", Claim.UNPROVEN, False),
        ("aten::lift_fresh", Claim.OUTSIDE_VALUE, False),
    ],
)
def test_a_message_that_nobody_waited_for_is_named_where_it_brought_what_differs(
    operator: str,
    claim: Claim,
    proved: bool,  # noqa: FBT001 - a column of the table
) -> None:
    plain = Diagnosis(
        first_step=1, kind=EventKind.INPUT, subject="input", cause="", remedy="", suspects=(BEGUN,)
    )
    found = with_trace(
        plain, TraceFinding(claim=claim, sentence="it", operator=operator), drift=False
    )
    assert found is not None
    assert (found.cause_class is CauseClass.MESSAGE_RACE) is proved
    assert bool(found.likely) is proved
    assert ("Call wait() on what torch.distributed.irecv()" in found.remedy) is proved


@pytest.mark.parametrize("ranks", [(), (1,)])
def test_time_alone_does_not_prove_that_a_message_is_the_race(
    ranks: tuple[int, ...],
) -> None:
    plain = Diagnosis(
        first_step=1,
        kind=EventKind.INPUT,
        subject="input",
        cause="",
        remedy="",
        suspects=(BEGUN,),
        ranks=ranks,
    )
    other = TraceFinding(claim=Claim.NOT_FOUND, sentence="it", reason=NoTrace.OTHER_RESULT)
    beside = TraceFinding(claim=Claim.BELOW_DISPATCHER, sentence="it", rank=1, operator="aten::div")
    for finding in (other, beside):
        found = with_trace(plain, finding, drift=False)
        assert found is not None
        assert found.cause_class is not CauseClass.MESSAGE_RACE
        assert found.suspects == (BEGUN,)
        assert not found.likely


def test_a_call_that_the_base_alone_makes_is_missing_where_it_would_have_been() -> None:
    made = call(0, "aten::mul", (value("a"),), (value("b"),))
    # the base doubles what was made before it is used; far behind that, both go on alike
    rest = [call(number, "aten::sin", (), (value(str(number)),)) for number in range(1, 9)]
    use = call(9, "aten::exp", (value("b", 0),), (value("d"),))
    head = trace(made, *rest, use)
    kept = [one.model_copy(update={"number": one.number + 1}) for one in rest]
    doubled = call(1, "aten::mul_", (value("b", 0),), (value("c"),), line=77)
    base = trace(
        made, doubled, *kept, call(10, "aten::exp", (value("c", 1),), (value("e"),), line=10)
    )
    found = compared(base, head, drift=True)
    assert found.sentence == "aten::mul_ at train.py:77 is called in the base commit only"
    # lines that ran behind this call ran too late, though what differs is used further on
    assert found.call == 1


def test_a_value_that_was_there_before_says_nothing_of_the_line_that_uses_it() -> None:
    def used(operator: str, content: str, arguments: str = "") -> RankTrace:
        return trace(
            call(0, operator, (value(content),), (value(f"{content}!"),), arguments=arguments)
        )

    assert compared(used("aten::mm", "a"), used("aten::mm", "b"), drift=True).only_uses
    # here the line itself may have made the number
    taken = compared(used("aten::lift_fresh", "a"), used("aten::lift_fresh", "b"), drift=True)
    assert not taken.only_uses
    passed = compared(used("aten::mul", "a", "other=1"), used("aten::mul", "a", "other=2"))
    assert not passed.only_uses


def test_a_view_of_what_is_equal_hides_no_difference_in_the_rest_of_its_memory() -> None:
    def run(content: str, *, view: bool = True) -> RankTrace:
        row, update = f"{content} 0", {"phase": Phase.OPTIMIZER}
        return trace(
            call(0, "aten::mul", (value("a"),), (value(content),)),
            call(1, "aten::select", (value(content, 0),), (value(row),), view=view),
            # the other row is equal, and by now both lie in what this call has looked at last
            call(2, "aten::select", (value(content, 1),), (value("row"),), view=view),
            call(3, "aten::add_", (value(row, 2),), (value(f"{content}!"),), **update),
        )

    found = compared(run("b"), run("c"))
    assert (found.claim, found.operator) == (Claim.NONDETERMINISTIC_OPERATOR, "aten::mul")
    # what is no view has written all of what differs later
    written = compared(run("b", view=False), run("c", view=False))
    assert written.claim is Claim.BELOW_DISPATCHER
