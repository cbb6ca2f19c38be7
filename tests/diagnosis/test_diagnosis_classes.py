"""A class of cause is named where it is proved, and nowhere else."""

from __future__ import annotations

from each_row import each_row

from gate.comparison.differences import EventKind
from gate.diagnosis.diagnosis import CauseClass, Diagnosis
from gate.diagnosis.trace_window import with_trace
from gate.evidence.trace import Claim, Phase, TraceFinding
from gate.verdict.reasons import concluded_class
from gate.verdict.verdict import Outcome

PROVED = {
    (Claim.NONDETERMINISTIC_OPERATOR, "aten::index_put_"): CauseClass.OPERATOR,
    (Claim.NONDETERMINISTIC_OPERATOR, "mylib::scatter"): CauseClass.KERNEL,
    (Claim.UNINITIALISED, "aten::empty"): CauseClass.UNINITIALISED_MEMORY,
    (Claim.RANDOM_STATE, "aten::bernoulli_"): CauseClass.RANDOM_STATE,
    (Claim.ARRIVAL, "c10d::recv_any_source_"): CauseClass.MESSAGE_RACE,
}


def concluded(
    trace: TraceFinding | None,
    recorded: CauseClass | None = None,
    outcome: Outcome = Outcome.NONDETERMINISTIC,
    kind: EventKind = EventKind.LOSS,
) -> CauseClass | None:
    found = Diagnosis(
        first_step=1,
        kind=kind,
        subject="loss",
        cause="the loss differs",
        remedy="look",
        cause_class=recorded,
        trace=trace,
    )
    return concluded_class(found, outcome)


@each_row(("claim", "operator"), PROVED)
def test_a_trace_proves_a_class_that_fingerprints_leave_open(claim: Claim, operator: str) -> None:
    found = TraceFinding(claim=claim, sentence="a call", operator=operator)
    assert concluded(found) is PROVED[claim, operator]
    assert concluded(found, CauseClass.SEED) is CauseClass.SEED
    assert concluded(found, outcome=Outcome.CODE_DRIFT) is None


@each_row(
    "claim",
    [
        Claim.UNPROVEN,
        Claim.SETTING,
        Claim.MEMORY_LAYOUT,
        Claim.CODE_PATH,
        Claim.OUTSIDE_VALUE,
        Claim.BELOW_DISPATCHER,
        Claim.NOT_FOUND,
    ],
)
def test_where_a_value_came_in_is_no_class(claim: Claim) -> None:
    assert concluded(TraceFinding(claim=claim, sentence="a call")) is None
    assert concluded(None) is None


def test_a_batch_made_with_another_real_number_is_other_data() -> None:
    found = TraceFinding(claim=Claim.CODE_PATH, sentence="a call", real_numbers=True)
    drift = Outcome.CODE_DRIFT
    assert concluded(found, outcome=drift, kind=EventKind.BATCH) is CauseClass.DATA
    order = found.model_copy(update={"real_numbers": False})
    assert concluded(order, outcome=drift, kind=EventKind.BATCH) is None


def test_other_tensors_in_a_batch_are_another_order() -> None:
    found = TraceFinding(claim=Claim.OTHER_TENSORS, sentence="a call")
    for outcome in (Outcome.CODE_DRIFT, Outcome.NONDETERMINISTIC):
        assert concluded(found, outcome=outcome, kind=EventKind.INPUT) is CauseClass.DATA_ORDER
        assert concluded(found, outcome=outcome, kind=EventKind.LOSS) is None


def test_the_code_is_the_cause_only_where_nothing_else_moved() -> None:
    known = {Outcome.CODE_DRIFT, Outcome.NONDETERMINISTIC, Outcome.DATA_DRIFT}
    for outcome in set(Outcome) - known:
        assert concluded(None, CauseClass.CODE, outcome) is None
        assert concluded(None, CauseClass.OPTIMIZER, outcome) is CauseClass.OPTIMIZER
    assert concluded(None, CauseClass.CODE, Outcome.CODE_DRIFT) is CauseClass.CODE
    # the digests say so, whatever shows first
    assert concluded(None, CauseClass.OPTIMIZER, Outcome.DATA_DRIFT) is CauseClass.DATA


SAMPLED = Diagnosis(
    first_step=5,
    unrecorded_from=3,
    kind=EventKind.LOSS,
    subject="loss",
    cause="the loss of step 5 differs, and the last fingerprints before it are those of step 2",
    remedy="look",
)


@each_row(
    ("claim", "facts", "found"),
    [
        (Claim.CODE_PATH, {"phase": Phase.OPTIMIZER}, CauseClass.OPTIMIZER),
        (Claim.CODE_PATH, {"phase": Phase.FORWARD}, CauseClass.CODE),
        (Claim.CODE_PATH, {"phase": Phase.FORWARD, "draws": True}, CauseClass.RANDOM_STATE),
        (Claim.RANDOM_STATE, {}, CauseClass.RANDOM_STATE),
        (Claim.OUTSIDE_VALUE, {}, None),
        (Claim.MEMORY_LAYOUT, {}, None),
    ],
)
def test_a_trace_gives_the_class_of_a_step_without_fingerprints(
    claim: Claim, facts: dict[str, object], found: CauseClass | None
) -> None:
    trace = TraceFinding.model_validate({"claim": claim, "sentence": "a call", "step": 4, **facts})
    told = with_trace(SAMPLED, trace, drift=True)
    assert told is not None
    assert told.first_step == 4
    assert told.cause == (
        "the loss of step 5 differs, and the operator traces differ from step 4 on"
    )
    assert concluded_class(told, Outcome.CODE_DRIFT) is found
    assert concluded_class(told, Outcome.ENVIRONMENT_DRIFT) is None
    # two runs of one commit: another pair may part at another step
    assert with_trace(SAMPLED, trace, drift=False) == SAMPLED.model_copy(update={"trace": trace})
    for outside in (2, 6):
        moved = trace.model_copy(update={"step": outside})
        told = with_trace(SAMPLED, moved, drift=True)
        assert told is not None
        assert (told.first_step, concluded_class(told, Outcome.CODE_DRIFT)) == (5, None)


@each_row(("step",), [(4,), (5,)])
def test_traces_that_part_in_the_data_of_a_step_say_so_and_leave_the_class_open(step: int) -> None:
    trace = TraceFinding(
        claim=Claim.CODE_PATH, sentence="a call", step=step, phase=Phase.DATA, call=3
    )
    told = with_trace(SAMPLED, trace, drift=True)
    assert told is not None
    assert told.cause == (
        f"the loss of step 5 differs, and the operator traces part in the data of step {step}"
    )
    assert (told.kind, told.first_step) == (EventKind.BATCH, step)
    assert concluded_class(told, Outcome.CODE_DRIFT) is None


DRAWN = Diagnosis(
    first_step=3,
    kind=EventKind.RANDOM,
    subject="random.torch",
    cause="torch's generator is not in the baseline's state: it is drawn from differently",
    guess="it is drawn from differently",
    remedy="look",
)
SHAPES = TraceFinding(
    claim=Claim.CODE_PATH, sentence="aten::view has other sizes", step=3, phase=Phase.FORWARD
)


def test_where_a_worker_made_another_batch_the_draws_that_follow_are_no_cause() -> None:
    update = {"claim": Claim.OUTSIDE_VALUE, "phase": Phase.DATA, "elsewhere": True}
    led = with_trace(DRAWN, SHAPES.model_copy(update=update), drift=True)
    assert led is not None
    assert (led.kind, led.cause_class) == (EventKind.BATCH, None)
    assert led.cause == (
        "weights and random states equal the baseline's, but the data loader returns a different "
        "batch"
    )


def test_other_code_that_draws_as_often_is_the_cause_and_the_generator_follows() -> None:
    led = with_trace(DRAWN, SHAPES, drift=True)
    assert led is not None
    assert led.cause == "aten::view has other sizes"
    assert (led.traced, concluded_class(led, Outcome.CODE_DRIFT)) == (True, CauseClass.CODE)


@each_row(
    "update",
    [
        {"draws": True},
        {"claim": Claim.RANDOM_STATE},
        {"phase": Phase.DATA},
        {"step": 4},
        {"sentence": "aten::view has " + "many " * 20},
    ],
)
def test_a_draw_and_what_comes_later_leave_the_generator_first(update: dict[str, object]) -> None:
    kept = with_trace(DRAWN, SHAPES.model_copy(update=update), drift=True)
    assert kept is not None
    assert (kept.cause, kept.traced) == (DRAWN.cause, False)


def test_another_type_of_number_is_precision_where_nothing_else_moved() -> None:
    found = TraceFinding(
        claim=Claim.CODE_PATH, sentence="a call", precision="bfloat16 instead of float32"
    )
    assert concluded(found, CauseClass.CODE, Outcome.CODE_DRIFT) is CauseClass.PRECISION
    assert concluded(found, CauseClass.CODE, Outcome.ENVIRONMENT_DRIFT) is None
    assert concluded(found, CauseClass.SEED, Outcome.CODE_DRIFT) is CauseClass.SEED
