"""Times that a run reports: whatever they are, they end in evidence or in one fault by name."""

from __future__ import annotations

import tempfile
from pathlib import Path

from evidence_cases import record_of, settings_of
from harness_folder import HarnessFolder, step_line
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.cost import determinism_cost
from gate.evidence.run_evidence import RunEvidence
from gate.pipelines.confined_reader import answer_question
from gate.pipelines.reader_questions import ReadingFault, RunAnswer, RunQuestion

# what a clock tells, the ends of what is allowed, and anything else that JSON holds
TIMES = st.one_of(
    st.floats(0, 1e3), st.sampled_from((0.0, 5e-324, 1e-9, 1e9)), st.floats(allow_nan=False)
).filter(lambda seconds: abs(seconds) != float("inf"))


def read(seconds: list[float], observing: float, first_step: float) -> RunAnswer | ReadingFault:
    """What the reading process answers about a run with two optimizers that reports these times."""
    with tempfile.TemporaryDirectory() as folder:
        harness = HarnessFolder(path=Path(folder))
        harness.whole(steps=len(seconds), observe_seconds=observing, first_step_seconds=first_step)
        harness.steps(
            *(
                step_line(step, optimizer=optimizer, seconds=each, observe_seconds=observing)
                for step, each in enumerate(seconds, start=1)
                for optimizer in (0, 1)
            )
        )
        output = Path(folder) / "output.txt"
        output.touch()
        asked = RunQuestion(
            out=Path(folder),
            tree=Path(folder),
            output=output,
            taken={},
            run=record_of(),
            train=settings_of().train,
        )
        result = answer_question(asked).result
        return result if isinstance(result, ReadingFault) else result.answer


@given(st.lists(TIMES, min_size=1, max_size=6), TIMES, TIMES)
def test_any_finite_times_end_in_evidence_or_in_a_fault_that_names_the_field(
    seconds: list[float], observing: float, first_step: float
) -> None:
    answer = read(seconds, observing, first_step)
    if isinstance(answer, RunAnswer):
        assert RunEvidence.model_validate_json(answer.evidence.model_dump_json()) == answer.evidence
    else:
        assert "seconds" in f"{answer.message} {answer.details}"


@given(st.lists(TIMES, min_size=2, max_size=6), st.lists(TIMES, min_size=2, max_size=6))
def test_no_times_that_are_accepted_give_a_price_that_json_cannot_hold(
    one: list[float], other: list[float]
) -> None:
    answers = [read(seconds, 0.0, 1.0) for seconds in (one, other)]
    found = tuple(answer.evidence for answer in answers if isinstance(answer, RunAnswer))
    settings = settings_of(cost={"warmup_steps": 0, "min_steps": 2}).cost
    cost = determinism_cost(found, found, settings)
    assert type(cost).model_validate_json(cost.model_dump_json()) == cost


def test_a_time_beyond_thirty_years_is_refused_by_name() -> None:
    fault = read([0.1, 1.7e308], 0.0, 1.0)
    assert isinstance(fault, ReadingFault)
    assert "steps-r0-11.jsonl: line 3" in fault.message
    assert fault.details == ("seconds: must be less than or equal to 1000000000",)
