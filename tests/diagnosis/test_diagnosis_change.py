"""Which part of a change is shown beside a difference, and why that one."""

from __future__ import annotations

import pytest
from change_cases import (
    ADAM,
    AT_MODEL,
    DATA,
    HERE,
    LOSS,
    MODEL,
    PLAIN,
    RATE,
    README,
    TAKEN,
    found,
    hunk,
    setting,
)
from each_row import each_row
from trace_cases import chain

from gate.comparison.differences import EventKind, OptimizerSettingChange
from gate.diagnosis.diagnosis import CauseClass, CodePlace
from gate.diagnosis.fitting_lines import with_typed_numbers
from gate.diagnosis.touched_lines import (
    all_that_matters,
    by_its_files,
    named_by_change,
    ran_before_nan,
    shortened,
    shown_change,
    unchanged,
    where_raised,
    with_changed_lines,
)
from gate.diagnosis.trace_window import what_explains
from gate.evidence.trace import (
    ChangedNumber,
    Claim,
    ExecutedLine,
    HowKnown,
    NoTrace,
    RankTrace,
    ShownChange,
    TraceFinding,
)
from gate.report.diagnosis_sections import change_words
from gate.system.git.changes import MAX_HUNKS, Change, ChangedLines


@pytest.mark.parametrize(
    ("before", "after"), [("0.001", "0.002"), ("0.00097", "0.00194"), ("0.0005", "0.001")]
)
def test_the_hunk_whose_numbers_fit_a_setting_is_shown(before: str, after: str) -> None:
    shown = found(MODEL, RATE, README, optimizer_settings=setting(before, after))
    assert shown == ShownChange(how=HowKnown.FITS, hunks=(RATE,))


def test_two_hunks_that_fit_are_no_proof() -> None:
    other = hunk("other.py", 3, "scale = 1", "scale = 2")
    either = ShownChange(how=HowKnown.EITHER_OF_ALL, hunks=(other, RATE))
    assert found(other, RATE, optimizer_settings=setting("0.001", "0.004")) == either
    assert found(other, RATE, optimizer_settings=setting("0.0007", "0.0014")) == either
    assert found(other, RATE, MODEL, optimizer_settings=setting("0.0007", "0.0014")) is None


def test_the_very_numbers_of_a_setting_say_more_than_two_of_their_ratio() -> None:
    clip = hunk("train.py", 17, "clip(100.0)", "clip(200.0)")
    rate = hunk("conf.yaml", 1, "lr: 0.01", "lr: 0.02")
    found_ = found(clip, rate, optimizer_settings=setting("0.01", "0.02"))
    assert found_ == ShownChange(how=HowKnown.FITS, hunks=(rate,))


def test_the_only_change_that_a_training_can_read_is_shown() -> None:
    assert found(README, MODEL) == ShownChange(how=HowKnown.ONLY, hunks=(MODEL,))
    assert found(README, DATA, hunk("data.csv", 9)) == ShownChange(
        how=HowKnown.ONLY, hunks=(DATA, hunk("data.csv", 9))
    )


def moved(line: str, out_of: int, into: int, indent: str = "") -> tuple[ChangedLines, ...]:
    return (
        ChangedLines(
            file="train.py", first=out_of, last=out_of, gone=1, before=(line,), removed=True
        ),
        ChangedLines(file="train.py", first=into, last=into, after=(f"{indent}{line}",)),
    )


def test_a_line_that_moved_is_one_change_and_never_shown_as_a_new_one() -> None:
    out, into = moved("optimizer.step()", 44, 45, indent="    ")
    assert found(README, out, into) == ShownChange(how=HowKnown.ONLY, hunks=(out, into))
    at = AT_MODEL.model_copy(update={"code_place": CodePlace(file="train.py", line=45)})
    shown = found(MODEL, out, into, suspects=(at,))
    assert shown == ShownChange(how=HowKnown.NAMED, hunks=(out, into))
    # another line in its place is no move, and neither is one that is put in twice
    _, other = moved("scheduler.step()", 44, 45)
    again = into.model_copy(update={"first": 60, "last": 60})
    assert found(out, other) == ShownChange(how=HowKnown.EITHER_OF_ALL, hunks=(out, other))
    assert found(out, into, again, suspects=(at,)) == ShownChange(
        how=HowKnown.NAMED, hunks=(out, into)
    )
    line = at.model_copy(update={"code_place": CodePlace(file="train.py", line=44)})
    assert found(out, into, again, suspects=(line,)) is None


def test_of_a_change_that_is_not_wholly_known_nothing_is_the_only_part() -> None:
    assert found(MODEL, complete=False) is None
    assert found(MODEL, DATA, complete=False) is None


@pytest.mark.parametrize("reason", [None, *NoTrace])
def test_of_two_changes_that_no_trace_could_tell_apart_either_may_be_the_cause(
    reason: NoTrace | None,
) -> None:
    trace = TraceFinding(claim=Claim.NOT_FOUND, sentence="", reason=reason) if reason else None
    answered = reason in {NoTrace.AGREE, NoTrace.EXPLAINED}
    shown = found(MODEL, README, LOSS, trace=trace)
    both = ShownChange(how=HowKnown.EITHER_OF_ALL, hunks=(MODEL, LOSS))
    assert shown == (None if answered else both)
    assert found(MODEL, LOSS, RATE, trace=trace) is None
    assert found(MODEL, LOSS, drift=False, trace=trace) is None


BESIDE = (
    OptimizerSettingChange(optimizer=0, name="lr", before="0.01", after="0.02"),
    OptimizerSettingChange(optimizer=0, name="betas/1", before="0.999", after="0.98"),
    OptimizerSettingChange(optimizer=1, name="class", before="SparseAdam", after="Adam"),
)


def ran(*hunks: ChangedLines) -> ShownChange | None:
    trace = TraceFinding(
        claim=Claim.CODE_PATH, sentence="", file="train.py", line=99, changed=hunks
    )
    return found(*hunks, RATE, trace=trace, settings_beside=BESIDE)


def test_a_line_that_sets_what_is_no_cause_is_never_the_nearest() -> None:
    assert ran(ADAM, MODEL) == ShownChange(how=HowKnown.RAN, hunks=(MODEL,))
    assert ran(ADAM) is None
    other = "o = SparseAdam(list(e.parameters()))"
    kind = hunk("train.py", 13, other, "o = Adam(e.parameters())")
    assert ran(kind, MODEL) == ShownChange(how=HowKnown.RAN, hunks=(MODEL,))
    wider = hunk("train.py", 12, "o = Adam(N(64), lr=0.01)", "o = Adam(N(128), lr=0.02)")
    assert ran(wider, MODEL) == ShownChange(how=HowKnown.RAN, hunks=(wider, MODEL))
    assert ran(wider, MODEL, DATA) == ShownChange(how=HowKnown.RAN, hunks=(wider,))


def test_several_changed_lines_that_are_left_are_all_candidates() -> None:
    other = hunk("corpus.py", 3, "text", "text.lower()")
    shown = ran(ADAM, MODEL, other)
    assert shown is not None
    words = change_words(shown)
    assert words is not None
    assert words.caption == "Changed lines that ran before the difference:"
    assert shown.places == "model.py:40 and corpus.py:3"
    assert ran(ADAM, MODEL, other, hunk("loss.py", 5, "a", "b")) is None


def test_a_line_that_is_gone_and_another_that_changed_are_two_candidates() -> None:
    gone = ChangedLines(
        file="train.py", first=31, last=31, removed=True, gone=1, before=("s.set_epoch(e)",)
    )
    call = TraceFinding(claim=Claim.CODE_PATH, sentence="", changed=(LOSS, gone))
    words = change_words(found(LOSS, gone, trace=call))
    assert words is not None
    assert words.caption == "Changed lines that ran before the difference:"


def test_without_a_named_call_only_the_one_part_that_ran_is_near() -> None:
    agree = TraceFinding(claim=Claim.NOT_FOUND, sentence="they agree", changed=(RATE,))
    one = found(RATE, MODEL, trace=agree)
    assert one == ShownChange(how=HowKnown.RAN, hunks=(RATE,))
    # of several the last one may be a print at the script's end
    both = agree.model_copy(update={"changed": (RATE, MODEL)})
    assert found(RATE, MODEL, trace=both) is None
    change = Change(hunks=(RATE, MODEL))
    assert ran_before_nan(change, both, ".") is None
    near = both.model_copy(update={"claim": Claim.NOT_FINITE})
    assert ran_before_nan(change, near, ".") == ShownChange(
        how=HowKnown.RAN_BEFORE_NAN, hunks=(RATE,)
    )


def test_runs_that_differ_are_explained_by_a_named_line_alone() -> None:
    assert found(MODEL, drift=False) is None
    shown = found(RATE, MODEL, drift=False, suspects=(AT_MODEL,))
    assert shown == ShownChange(how=HowKnown.NAMED, hunks=(MODEL,))


def test_a_line_counts_from_the_folder_of_the_training() -> None:
    change = Change(hunks=(hunk("nlp/train.py", 49),))
    raised = CodePlace(file="train.py", line=49)
    assert where_raised(change, raised, "nlp") is not None
    assert where_raised(change, raised, ".") is None
    assert not unchanged(change, [raised], "nlp")
    assert unchanged(change, [raised], ".")
    assert not unchanged(change.model_copy(update={"complete": False}), [raised], ".")


def test_what_called_the_named_line_is_changed_too() -> None:
    change = Change(hunks=(MODEL,))
    frames = ("env.py:8 __init__", f"{MODEL.file}:{MODEL.first} main", "torch/a.py:x run")
    line = CodePlace(file="env.py", line=8)
    suspect = AT_MODEL.model_copy(update={"place": "env.py:8", "code_place": line, "stack": frames})
    assert not unchanged(change, suspect.code_places, ".")
    assert unchanged(change, [line], ".")
    shown = found(MODEL, drift=False, suspects=(suspect,))
    assert shown == ShownChange(how=HowKnown.NAMED, hunks=(MODEL,))


RATES = setting("0.001", "0.002")
RAN = TraceFinding(claim=Claim.CODE_PATH, sentence="a call", changed=(MODEL,))


@each_row(
    ("kind", "settings", "by"),
    [
        (EventKind.PARAMETERS, RATES, "settings of the run explain"),
        (EventKind.PARAMETERS, (), ""),
        (EventKind.GRADIENTS, RATES, ""),
        (EventKind.LOSS, RATES, ""),
        (EventKind.INITIAL, (), ""),
        (EventKind.STRUCTURE, (), "other parameters of the optimizer explain"),
        (EventKind.STEPS, (), "settings of the run explain"),
        (EventKind.SAMPLES, (), "settings of the run explain"),
        (EventKind.ROWS, (), "settings of the run explain"),
        (EventKind.PASSES, (), "settings of the run explain"),
        (EventKind.TURNS, (), "settings of the run explain"),
    ],
)
def test_settings_explain_what_first_differs_in_the_update_and_structure_what_it_updates(
    kind: EventKind, settings: tuple[OptimizerSettingChange, ...], by: str
) -> None:
    diagnosis = PLAIN.model_copy(update={"kind": kind, "optimizer_settings": settings})
    assert what_explains(diagnosis) == by
    assert not what_explains(None)


def test_no_trace_is_needed_where_the_diff_alone_shows_the_line() -> None:
    settings = PLAIN.model_copy(update={"optimizer_settings": RATES})
    assert named_by_change(Change(hunks=(MODEL, RATE)), settings, ".")
    assert named_by_change(Change(hunks=(MODEL, README)), PLAIN, ".")
    assert not named_by_change(Change(hunks=(MODEL, DATA)), settings, ".")
    assert not named_by_change(None, settings, ".")


def test_a_line_that_ran_behind_the_last_call_made_none_of_them() -> None:
    lines = (ExecutedLine(file="a.py", line=1, call=0), ExecutedLine(file="a.py", line=9, call=2))
    trace = chain("ab").model_copy(update={"lines": lines})
    early, late = hunk("a.py", 1), hunk("a.py", 9)
    nothing = TraceFinding(claim=Claim.NOT_FOUND, sentence="they agree")
    told = with_changed_lines(nothing, (early, late), trace, ".")
    assert (told.changed, told.changed_later) == ((early,), (late,))


def executed(*lines: tuple[str, int, int]) -> RankTrace:
    seen = tuple(ExecutedLine(file=file, line=line, call=call) for file, line, call in lines)
    return chain("ab").model_copy(update={"lines": seen})


def added(file: str, line: int, *text: str) -> ChangedLines:
    return ChangedLines(file=file, first=line, last=line + len(text) - 1, after=text)


def test_a_new_function_that_nobody_called_ran_in_no_way() -> None:
    part = TraceFinding(claim=Claim.CODE_PATH, sentence="", call=1)
    for header in ("def new():", "    async def new(self, rate=0.1) -> int:", "def new(a, *b):"):
        unused = added("utils.py", 7, "", header, "    return 1")
        told = with_changed_lines(part, (RATE, unused), executed(*HERE, ("utils.py", 8, 0)), ".")
        assert (told.changed, told.changed_later) == ((RATE,), (unused,))
        called = executed(*HERE, ("utils.py", 8, 0), ("utils.py", 9, 1))
        assert with_changed_lines(part, (RATE, unused), called, ".").changed == (unused, RATE)


def test_a_new_function_that_nothing_names_ran_in_no_worker() -> None:
    unused = added("utils.py", 7, "", "def new():", "    return 1")
    method = added("utils.py", 7, "    def __getitem__(self, i):", "        return i")
    both = TAKEN.model_copy(update={"changed_later": (unused,)})
    near = ShownChange(how=HowKnown.RAN, hunks=(RATE,))
    assert found(RATE, unused, LOSS, trace=both) == near
    # an override, a part that calls it, and one that may do so in a line that is not shown
    other = TAKEN.model_copy(update={"changed_later": (method,)})
    assert found(RATE, method, LOSS, trace=other) == ShownChange(
        how=HowKnown.EITHER, hunks=(RATE, method)
    )
    either = ShownChange(how=HowKnown.EITHER, hunks=(RATE, unused))
    assert found(RATE, unused, hunk("conf.yaml", 3, "f: old", "f: new"), trace=both) == either
    long = hunk("loss.py", 5, "a", "b").model_copy(update={"last": 30})
    assert found(RATE, unused, long, trace=both) == either


def test_a_new_line_that_does_more_than_begin_a_function_did_run() -> None:
    part = TraceFinding(claim=Claim.CODE_PATH, sentence="", call=1)
    for text in (
        "def new(noise=torch.rand(3)):",
        "def new(): return 1",
        "@register",
        "class New:",
        "torch.manual_seed(2)",
    ):
        line = added("utils.py", 7, text, "    return 1")
        told = with_changed_lines(part, (line,), executed(("utils.py", 7, 0)), ".")
        assert told.changed == (line,), text
    # what stood there before may have done anything
    other = added("utils.py", 7, "def new():", "    return 1").model_copy(update={"gone": 1})
    told = with_changed_lines(part, (other,), executed(("utils.py", 7, 0)), ".")
    assert told.changed == (other,)


def test_of_lines_before_one_call_the_later_one_is_nearer() -> None:
    part = TraceFinding(claim=Claim.CODE_PATH, sentence="", call=1)
    trace = executed(("train.py", 11, 0), ("model.py", 40, 0))
    for hunks in ((RATE, MODEL), (MODEL, RATE)):
        assert with_changed_lines(part, hunks, trace, ".").changed == (MODEL, RATE)


def test_the_line_of_the_call_is_the_nearest_unless_it_only_uses_what_another_made() -> None:
    part = TraceFinding(claim=Claim.CODE_PATH, sentence="", call=1, file="train.py", line=11)
    trace = executed(("train.py", 11, 0), ("model.py", 40, 0))
    assert with_changed_lines(part, (RATE, MODEL), trace, ".").changed == (RATE, MODEL)
    uses = part.model_copy(update={"only_uses": True})
    assert with_changed_lines(uses, (RATE, MODEL), trace, ".").changed == (MODEL, RATE)


NUMBERS = TraceFinding(
    claim=Claim.CODE_PATH,
    sentence="",
    file="model.py",
    line=40,
    numbers=(ChangedNumber(before="0.99", after="0.999"),),
)


def test_the_part_that_holds_the_numbers_of_a_call_fits_it() -> None:
    decay, utils = hunk("ema.py", 9, "m=0.99", "m=0.999"), hunk("utils.py", 3, "a", "b")
    trace = NUMBERS.model_copy(update={"changed": (utils, decay, RATE)})
    hunks = (utils, decay, RATE, MODEL)
    fits = ShownChange(how=HowKnown.FITS, hunks=(decay,))
    assert found(utils, decay, RATE, trace=trace) == fits
    # beside its own line either may be it; two that fit say less, and so do numbers that choose
    either = ShownChange(how=HowKnown.EITHER, hunks=(MODEL, decay))
    assert found(*hunks, trace=trace) == either
    own = hunk("model.py", 40, "x * 0.99", "x * 0.999")
    named = trace.model_copy(update={"changed": (own, utils, RATE)})
    assert found(own, utils, RATE, trace=named) == ShownChange(how=HowKnown.NAMED, hunks=(own,))
    again = hunk("ema.py", 20, "n=0.99", "n=0.999")
    both = trace.model_copy(update={"changed": (utils, decay, again)})
    assert found(utils, decay, again, trace=both) == ShownChange(how=HowKnown.RAN, hunks=(utils,))
    whole = trace.model_copy(update={"numbers": ()})
    assert found(utils, decay, RATE, trace=whole) == ShownChange(how=HowKnown.RAN, hunks=(utils,))


def test_where_a_schedule_moved_the_line_that_creates_it_is_shown() -> None:
    step = hunk("train.py", 38, "sched = StepLR(opt, step_size=1)", "sched = StepLR(opt, 2)")
    moved = setting("0.0035", "0.005")[0].model_copy(update={"scheduled": True})

    def shown(*schedules: CodePlace, scheduled: bool = True) -> ShownChange | None:
        change = Change(hunks=(MODEL, step, LOSS), complete=True)
        settings = (moved.model_copy(update={"scheduled": scheduled}),)
        diagnosis = PLAIN.model_copy(update={"optimizer_settings": settings})
        return shown_change(change, diagnosis, (), ".", drift=True, schedules=schedules)

    at_it = shown(CodePlace(file="train.py", line=38))
    assert at_it == ShownChange(how=HowKnown.SCHEDULE, hunks=(step,))
    words = change_words(at_it)
    assert words is not None
    assert words.caption == "This pull request changes the line that creates the schedule:"
    assert shown(CodePlace(file="train.py", line=37)) is None
    assert shown(CodePlace(file="train.py", line=38), scheduled=False) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [("RMSprop(p, lr=0.1)", "RMSprop(p, lr=0.1, eps=1e-6)"), ("x: 1", "x: 1\n  'eps': 1e-06")],
)
def test_a_setting_that_had_its_default_fits_the_line_that_names_it(
    before: str, after: str
) -> None:
    moved = OptimizerSettingChange(optimizer=0, name="eps", before="1e-08", after="1e-06")
    line = hunk("train.py", 31, before, after)
    fits = ShownChange(how=HowKnown.FITS, hunks=(line,))
    assert found(MODEL, line, LOSS, optimizer_settings=(moved,)) == fits
    back = moved.model_copy(update={"before": moved.after, "after": moved.before})
    other = hunk("train.py", 31, after, before)
    gone = found(MODEL, other, LOSS, optimizer_settings=(back,))
    assert gone == ShownChange(how=HowKnown.FITS, hunks=(other,))
    elsewhere = moved.model_copy(update={"after": "1e-05"})
    assert found(MODEL, line, LOSS, optimizer_settings=(elsewhere,)) is None


@pytest.mark.parametrize(
    ("moved", "before", "after"),
    [
        (("amsgrad", "true", "false"), "Adam(p, lr=1e-2, amsgrad=True)", "Adam(p, lr=1e-2)"),
        (("nesterov", "false", "true"), "nesterov: false", "nesterov: true"),
        (("class", "SparseAdam", "Adam"), "optim.SparseAdam(p, lr)", "optim.Adam(p, lr)"),
    ],
)
def test_a_setting_that_is_no_number_fits_the_line_that_names_it(
    moved: tuple[str, str, str], before: str, after: str
) -> None:
    name, old, new = moved
    line = hunk("train.py", 31, before, after)
    setting = OptimizerSettingChange(optimizer=0, name=name, before=old, after=new)
    fits = ShownChange(how=HowKnown.FITS, hunks=(line,))
    assert found(MODEL, line, LOSS, optimizer_settings=(setting,)) == fits
    back = setting.model_copy(update={"before": new, "after": old})
    assert found(MODEL, line, LOSS, optimizer_settings=(back,)) is None


def test_the_line_with_the_numbers_of_samples_fits_another_size_of_a_batch() -> None:
    batch = hunk("run.sh", 4, 'export BATCH="${BATCH:-8}"', 'export BATCH="${BATCH:-16}"')
    work = (ChangedNumber(before="8", after="16"),)
    assert found(RATE, batch, LOSS, work=work) == ShownChange(how=HowKnown.FITS, hunks=(batch,))
    # a call that comes earlier now is no cause of that
    call = TraceFinding(claim=Claim.CODE_PATH, sentence="", call=1, file="loss.py", line=5)
    trace, turns = call.model_copy(update={"changed": (LOSS, batch)}), EventKind.TURNS
    shown = found(LOSS, batch, RATE, work=work, kind=turns, trace=trace)
    assert shown == ShownChange(how=HowKnown.FITS, hunks=(batch,))
    shown = found(LOSS, batch, RATE, kind=turns, trace=trace)
    assert shown == ShownChange(how=HowKnown.RAN, hunks=(LOSS, batch))
    again = hunk("train.py", 20, "workers = 8", "workers = 16")
    assert found(RATE, batch, again, work=work) is None


def test_a_file_that_only_make_reads_is_a_candidate_beside_one_that_the_training_opened() -> None:
    started = hunk("Makefile", 2, "NEG ?= 4", "NEG ?= 5")
    title = hunk("config.toml", 1, 'title = "a"', 'title = "b"')
    either = ShownChange(how=HowKnown.EITHER_OF_ALL, hunks=(title, started))
    assert found(started, title, read=("config.toml",)) == either
    sizes = NUMBERS.model_copy(update={"numbers": (ChangedNumber(before="4", after="5"),)})
    fits = ShownChange(how=HowKnown.FITS, hunks=(started,))
    assert found(started, title, read=("config.toml",), trace=sizes) == fits
    pages = hunk("docs/Makefile", 2, "JOBS = 4", "JOBS = 5")
    assert found(pages, LOSS, trace=sizes) == found(LOSS, trace=sizes)
    cache = hunk("rec/__pycache__/model.cpython-311.pyc", 1, "a", "b")
    assert found(cache, title, read=(cache.file,)) == ShownChange(how=HowKnown.ONLY, hunks=(title,))


def test_one_of_two_equal_numbers_of_a_line_may_change() -> None:
    heat = hunk("loss.py", 8, "T, MIX, PATIENCE = 2.0, 0.7, 2", "T, MIX, PATIENCE = 2.5, 0.7, 2")
    numbers = (ChangedNumber(before="2.0", after="2.5"),)
    part = NUMBERS.model_copy(update={"numbers": numbers, "changed": (RATE, heat)})
    assert found(RATE, heat, trace=part) == ShownChange(how=HowKnown.FITS, hunks=(heat,))


def test_a_number_type_that_a_call_is_given_fits_the_line_that_replaces_it() -> None:
    cast = hunk("train.py", 51, 'autocast("cpu", torch.bfloat16)', 'autocast("cpu", torch.float16)')
    numbers = (ChangedNumber(before="bfloat16", after="float16"),)
    part = NUMBERS.model_copy(update={"numbers": numbers, "changed": (LOSS, cast)})
    assert found(LOSS, cast, trace=part) == ShownChange(how=HowKnown.FITS, hunks=(cast,))


def test_a_number_that_a_call_is_given_may_be_set_in_the_calls_own_file() -> None:
    scale = hunk("lora.py", 16, "self.scale = alpha / rank", "self.scale = alpha / sqrt(rank)")
    part = TraceFinding(
        claim=Claim.CODE_PATH,
        sentence="",
        forward_place="lora.py:19",
        given=True,
        changed=(MODEL, RATE, scale, LOSS),
    )
    shown = found(MODEL, RATE, scale, LOSS, trace=part)
    assert shown == ShownChange(how=HowKnown.RAN, hunks=(MODEL, scale))
    words = change_words(shown)
    assert words is not None
    assert words.caption == "Changed lines that ran before the difference:"
    own = part.model_copy(update={"changed": (scale, MODEL, RATE)})
    assert found(MODEL, RATE, scale, trace=own) == ShownChange(how=HowKnown.RAN, hunks=(scale,))


def test_a_file_that_was_opened_may_hold_the_numbers_of_a_call() -> None:
    file, other = hunk("conf.yaml", 3, "m: 0.99", "m: 0.999"), hunk("more.yaml", 1, "a: 1", "a: 2")
    trace = NUMBERS.model_copy(update={"changed": (RATE, ADAM)})
    diagnosis = PLAIN.model_copy(update={"trace": trace})
    change = Change(hunks=(file, other, RATE, ADAM))
    shown = shown_change(change, diagnosis, ["conf.yaml", "more.yaml"], ".", drift=True)
    assert shown == ShownChange(how=HowKnown.FITS, hunks=(file,))
    assert by_its_files(CauseClass.CODE, shown, Change(hunks=(file,))) is CauseClass.RUN_SETTINGS
    unread = shown_change(change, diagnosis, [], ".", drift=True)
    assert unread == ShownChange(how=HowKnown.RAN, hunks=(RATE, ADAM))


def test_the_line_that_only_uses_a_value_is_not_named_as_its_cause() -> None:
    use = TraceFinding(
        claim=Claim.OUTSIDE_VALUE,
        sentence="",
        file="model.py",
        line=40,
        only_uses=True,
        changed=(MODEL, RATE),
    )
    assert found(MODEL, RATE, trace=use) == ShownChange(how=HowKnown.RAN, hunks=(MODEL, RATE))
    takes = use.model_copy(update={"only_uses": False})
    assert found(MODEL, RATE, trace=takes) == ShownChange(how=HowKnown.NAMED, hunks=(MODEL,))


def test_where_a_setting_of_the_optimizer_is_known_no_line_of_the_trace_is_named_alone() -> None:
    at_model = TraceFinding(
        claim=Claim.CODE_PATH, sentence="", file="model.py", line=40, changed=(MODEL, LOSS)
    )
    known = setting("0.04969", "0.0497")
    shown = found(MODEL, LOSS, trace=at_model, optimizer_settings=known)
    assert shown == ShownChange(how=HowKnown.RAN, hunks=(MODEL, LOSS))
    three = at_model.model_copy(update={"changed": (MODEL, LOSS, RATE)})
    assert found(MODEL, LOSS, RATE, trace=three, optimizer_settings=known) is None


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (Change(hunks=(MODEL, RATE)), True),
        # the rate may follow from another number: no line has this one
        (Change(hunks=(MODEL,)), False),
        (None, False),
    ],
)
def test_only_a_number_that_the_change_took_out_is_to_be_set_back(
    change: Change | None, *, kept: bool
) -> None:
    settings = tuple(one.model_copy(update={"revert_to": one.before}) for one in RATES)
    diagnosis = PLAIN.model_copy(update={"optimizer_settings": settings})
    (setting_,) = with_typed_numbers(diagnosis, change).optimizer_settings
    assert setting_.revert_to == ("0.001" if kept else "")


def test_a_change_that_is_cut_is_not_called_whole() -> None:
    hunks = tuple(hunk("train.py", line) for line in range(1, MAX_HUNKS + 2))
    whole = Change(hunks=hunks[:-1], complete=True)
    assert shortened(whole) == whole
    cut = shortened(Change(hunks=hunks, complete=True))
    assert cut == Change(hunks=hunks[:-1], complete=False)
    # so nothing in it is called the only part of the change
    assert all_that_matters(cut) is None
    assert shortened(None) is None
