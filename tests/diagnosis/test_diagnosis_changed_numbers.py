"""Which numbers of two calls a changed line may have set: bounded, whatever a training reports."""

from __future__ import annotations

from trace_cases import call, trace, value

from gate.diagnosis.traces import compare_traces
from gate.evidence.trace import ChangedNumber, RankTrace, TraceFinding


def compared(one: RankTrace, other: RankTrace) -> TraceFinding:
    return compare_traces((one,), (other,), drift=True)


def test_the_one_size_by_which_two_shapes_differ_is_a_number_that_the_change_may_set() -> None:
    def run(*forms: str) -> RankTrace:
        taken = tuple(value(form, form=form, name=str(n)) for n, form in enumerate(forms))
        return trace(call(0, "aten::lift_fresh", taken, (value(str(forms)),)))

    four, five = run("int64 (12, 4)", "int64 (4,)"), run("int64 (12, 5)", "int64 (5,)")
    found = compared(four, five)
    assert found.numbers == (ChangedNumber(before="4", after="5"),)
    both = compared(four, run("int64 (16, 5)", "int64 (5,)"))
    assert both.numbers == ()


def test_a_training_that_reports_a_number_of_endless_length_gives_none() -> None:
    def shaped(size: str) -> RankTrace:
        taken = (value(size, form=f"int64 ({size},)"),)
        return trace(call(0, "aten::lift_fresh", taken, (value(size),)))

    def cast(kind: str) -> RankTrace:
        words = {"arguments": f"dtype=torch.{kind}"}
        return trace(call(0, "aten::_to_copy", (value("in"),), (value(kind),), **words))

    for made, usual in ((shaped, "4"), (cast, "float16")):
        assert compared(made(usual), made("5" * 100)).numbers == ()
