"""A changed file that the training read, alone or beside lines that ran or may have run."""

from __future__ import annotations

from dataclasses import replace

from change_cases import (
    ADAM,
    AT_MODEL,
    CONF,
    DATA,
    MODEL,
    PLACE,
    PLAIN,
    RATE,
    README,
    TAKEN,
    found,
    hunk,
)
from each_row import each_row
from evidence_cases import evidence_of
from harness_folder import source_line
from trace_cases import chain

from gate.comparison.differences import EventKind
from gate.diagnosis.diagnosis import CauseClass
from gate.diagnosis.other_processes import OtherProcesses, other_processes
from gate.diagnosis.touched_lines import (
    by_its_files,
    data_files,
    shown_change,
    with_changed_lines,
)
from gate.diagnosis.trace_words import not_found
from gate.evidence.observations import Source
from gate.evidence.trace import (
    Claim,
    ExecutedLine,
    HowKnown,
    NoTrace,
    ShownChange,
    TraceFinding,
)
from gate.report.diagnosis_sections import change_words
from gate.system.git.changes import Change, ChangedLines
from gate.system.machine import RankFacts
from gate.verdict.next_step import next_steps
from gate.verdict.verdict import Outcome


def test_a_file_that_the_training_read_is_shown() -> None:
    other = hunk("unread.csv", 1)
    shown = shown_change(Change(hunks=(DATA, other)), PLAIN, ("data.csv",), ".", drift=True)
    assert shown == ShownChange(how=HowKnown.READ, hunks=(DATA,))


def read_without_a_call(*hunks: ChangedLines, **fields: object) -> ShownChange | None:
    agree = TraceFinding(claim=Claim.NOT_FOUND, sentence="they agree")
    trace = agree.model_copy(update=fields)
    opened = [one.file for one in hunks if one.file in {"data.csv", "conf.yaml"}]
    diagnosis = PLAIN.model_copy(update={"trace": trace} if fields else {})
    return shown_change(Change(hunks=hunks), diagnosis, opened, ".", drift=True)


KERNEL = hunk("kernel.cu", 3)


@each_row(
    ("hunks", "fields", "expected"),
    [
        ((DATA, MODEL), {}, (HowKnown.EITHER_OF_ALL, (MODEL, DATA))),
        ((DATA, hunk("data.csv", 9), MODEL), {}, (HowKnown.EITHER_OF_ALL, (MODEL, DATA))),
        ((DATA, MODEL, README), {}, (HowKnown.EITHER_OF_ALL, (MODEL, DATA))),
        ((DATA, KERNEL), {}, (HowKnown.EITHER_OF_ALL, (DATA, KERNEL))),
        # a file that nobody saw opened may have been read all the same
        ((DATA, MODEL, hunk("other.csv", 1)), {}, (HowKnown.EITHER, (MODEL, DATA))),
        ((DATA, MODEL, RATE), {}, (HowKnown.READ_AMONG, (DATA,))),
        # a trace that names no call rules out what ran too late, and nothing else
        ((DATA, MODEL, RATE), {"changed": (MODEL, RATE)}, (HowKnown.READ_AMONG, (DATA,))),
        ((DATA, MODEL), {"changed_later": (MODEL,)}, (HowKnown.READ, (DATA,))),
        ((DATA, MODEL, RATE), {"changed_later": (MODEL,)}, (HowKnown.EITHER, (RATE, DATA))),
    ],
)
def test_a_file_that_was_read_is_the_cause_alone_only_where_no_code_may_be(
    hunks: tuple[ChangedLines, ...],
    fields: dict[str, object],
    expected: tuple[HowKnown, tuple[ChangedLines, ...]],
) -> None:
    shown = read_without_a_call(*hunks, **fields)
    assert shown is not None
    assert (shown.how, set(shown.hunks)) == (expected[0], set(expected[1]))


def test_of_a_change_that_is_not_wholly_known_a_file_that_was_read_is_one_of_several() -> None:
    cut = Change(hunks=(DATA,), complete=False)
    shown = shown_change(cut, PLAIN, ("data.csv",), ".", drift=True)
    assert shown == ShownChange(how=HowKnown.READ_AMONG, hunks=(DATA,))
    # so neither is the class of the cause
    assert by_its_files(CauseClass.CODE, shown, cut) is None


def test_words_of_a_pair_tell_whether_a_third_is_ruled_out() -> None:
    captions, steps = set(), set()
    for how in (HowKnown.EITHER, HowKnown.EITHER_OF_ALL, HowKnown.READ_AMONG):
        hunks = (DATA,) if how is HowKnown.READ_AMONG else (MODEL, DATA)
        change = ShownChange(how=how, hunks=hunks)
        words = change_words(change)
        assert words is not None
        (step, *_) = next_steps(Outcome.CODE_DRIFT, replace(PLACE, change=change), passes=False)
        open_ = how is not HowKnown.EITHER_OF_ALL
        assert ("not ruled out" in words.caption) == open_ == ("not ruled out" in step.text)
        # a candidate is looked at, and only the cause undone
        assert step.text.startswith(f"If unintended: look at {change.places} first.")
        captions.add(words.caption)
        steps.add(step.text)
    assert len(captions) == len(steps) == 3


def test_a_file_is_read_only_where_a_run_says_so() -> None:
    change = Change(hunks=(DATA, README))
    only = shown_change(change, PLAIN, (), ".", drift=True)
    assert only == ShownChange(how=HowKnown.ONLY, hunks=(DATA,))
    read = shown_change(change, PLAIN, ("data.csv",), ".", drift=True)
    assert read == ShownChange(how=HowKnown.READ, hunks=(DATA,))
    # what no code explains is the file's, by its kind
    assert by_its_files(CauseClass.CODE, only, change) is None
    assert by_its_files(CauseClass.CODE, read, change) is CauseClass.DATA
    assert by_its_files(CauseClass.SEED, read, change) is CauseClass.SEED
    both = Change(hunks=(DATA, MODEL))
    either = shown_change(both, PLAIN, ("data.csv",), ".", drift=True)
    assert by_its_files(CauseClass.CODE, either, both) is None
    settings = Change(hunks=(hunk("conf/model.yaml", 3),))
    shown = shown_change(settings, PLAIN, ("conf/model.yaml",), ".", drift=True)
    assert by_its_files(CauseClass.CODE, shown, settings) is CauseClass.RUN_SETTINGS


@each_row(
    ("file", "parsed", "expected"),
    [
        ("labels.json", False, None),
        ("labels.json", True, CauseClass.RUN_SETTINGS),
        ("rows.jsonl", False, CauseClass.DATA),
        ("conf.toml", False, CauseClass.RUN_SETTINGS),
    ],
)
def test_a_file_that_is_data_as_often_as_settings_is_called_neither(
    file: str, expected: CauseClass | None, *, parsed: bool
) -> None:
    change = Change(hunks=(hunk(file, 1, "1", "2"),))
    shown = shown_change(change, PLAIN, (file,), ".", drift=True)
    assert by_its_files(CauseClass.CODE, shown, change, parsed=parsed) is expected
    # nor beside a file that is data for certain
    both = Change(hunks=(*change.hunks, DATA))
    shown = shown_change(both, PLAIN, (file, "data.csv"), ".", drift=True)
    among = CauseClass.DATA if expected is CauseClass.DATA else None
    assert by_its_files(CauseClass.CODE, shown, both, parsed=parsed) is among


def test_a_file_that_changed_what_was_parsed_is_settings_whatever_it_is_called() -> None:
    arguments = hunk("args.txt", 1, "--scale=1.0", "--scale=1.5")
    change = Change(hunks=(arguments,))
    shown = shown_change(change, PLAIN, ("args.txt",), ".", drift=True)
    assert by_its_files(CauseClass.CODE, shown, change, parsed=True) is CauseClass.RUN_SETTINGS
    assert by_its_files(CauseClass.CODE, shown, change) is CauseClass.DATA
    # of two files either may hold it
    both = Change(hunks=(arguments, DATA))
    shown = shown_change(both, PLAIN, ("args.txt", "data.csv"), ".", drift=True)
    assert by_its_files(CauseClass.CODE, shown, both, parsed=True) is None
    # nor of a file and code, unless the code ran too late
    shown = read_without_a_call(DATA, MODEL, changed_later=(MODEL,))
    assert by_its_files(CauseClass.CODE, shown, Change(hunks=(DATA, MODEL))) is CauseClass.DATA
    shown = read_without_a_call(DATA, MODEL)
    assert by_its_files(CauseClass.CODE, shown, Change(hunks=(DATA, MODEL))) is None
    assert by_its_files(CauseClass.SEED, shown, Change(hunks=(DATA, MODEL))) is CauseClass.SEED
    mixed = Change(hunks=(CONF, DATA))
    shown = shown_change(mixed, PLAIN, ("conf.yaml", "data.csv"), ".", drift=True)
    assert by_its_files(CauseClass.CODE, shown, mixed) is None


def test_a_run_watches_the_files_of_the_change_that_are_no_code() -> None:
    odd = (hunk("a:b.csv", 1), hunk("line\nend.csv", 1), hunk(f"{'x' * 250}.csv", 1))
    many = tuple(hunk(f"data/{number}.csv", 1) for number in range(100))
    watched = data_files(Change(hunks=(MODEL, README, DATA, DATA, *odd, *many)))
    assert watched[:2] == ("data.csv", "data/0.csv")
    assert len(watched) == 40
    assert data_files(None) == ()


def test_the_line_at_which_two_traces_part_goes_before_the_nearest_that_ran() -> None:
    trace = TraceFinding(
        claim=Claim.CODE_PATH, sentence="", file="model.py", line=40, changed=(RATE,)
    )
    assert found(RATE, MODEL, trace=trace) == ShownChange(how=HowKnown.NAMED, hunks=(MODEL,))
    elsewhere = trace.model_copy(update={"line": 41})
    assert found(RATE, MODEL, trace=elsewhere) == ShownChange(how=HowKnown.RAN, hunks=(RATE,))


AT_A_CALL = TraceFinding(
    claim=Claim.CODE_PATH, sentence="", file="model.py", line=41, changed=(MODEL,)
)


def read_beside(*hunks: ChangedLines, **fields: object) -> ShownChange | None:
    diagnosis = PLAIN.model_copy(update={"trace": AT_A_CALL, **fields})
    opened = [one.file for one in hunks if not one.file.endswith(".py")]
    return shown_change(Change(hunks=hunks), diagnosis, opened, ".", drift=True)


def test_of_three_candidates_those_of_a_worker_are_shown_for_what_a_worker_made() -> None:
    other = hunk("corpus.py", 37, "zip(*items)", "zip(*items, strict=True)")
    by_worker = TAKEN.model_copy(update={"changed": (RATE,), "changed_later": (MODEL, other)})
    both = ShownChange(how=HowKnown.EITHER, hunks=(MODEL, other))
    assert read_beside(RATE, MODEL, other, trace=by_worker) == both
    alone = by_worker.model_copy(update={"changed_later": (other,)})
    file = ShownChange(how=HowKnown.READ_AMONG, hunks=(DATA,))
    assert read_beside(RATE, other, DATA, trace=alone) == file


def test_a_file_that_was_read_is_not_hidden_by_a_nearer_line_that_ran() -> None:
    both = ShownChange(how=HowKnown.EITHER_OF_ALL, hunks=(MODEL, CONF))
    assert read_beside(MODEL, CONF, README) == both
    assert read_beside(MODEL, CONF, hunk("conf.yaml", 9)) == both
    # of a file that nobody opened nothing is known
    assert shown_change(
        Change(hunks=(MODEL, CONF)),
        PLAIN.model_copy(update={"trace": AT_A_CALL}),
        (),
        ".",
        drift=True,
    ) == ShownChange(how=HowKnown.RAN, hunks=(MODEL,))
    # nor by the line of the call, which may do what the file says; one that is known does not
    at_it = AT_A_CALL.model_copy(update={"line": 40})
    assert read_beside(MODEL, CONF, trace=at_it) == both
    assert read_beside(MODEL, CONF, suspects=(AT_MODEL,)) == ShownChange(
        how=HowKnown.NAMED, hunks=(MODEL,)
    )
    # of more than two none is the first
    assert read_beside(MODEL, CONF, DATA) is None
    words = change_words(both)
    assert words is not None
    assert words.caption == "All that this pull request changes; either may be the cause:"
    assert [line for line in words.lines if line.startswith("@@")] == [
        "@@ model.py:40 @@",
        "@@ conf.yaml:1 @@",
    ]


def test_a_line_of_a_worker_that_nobody_saw_run_is_not_hidden_by_one_that_ran() -> None:
    taken = TAKEN.model_copy(update={"changed_later": (MODEL,)})
    both = ShownChange(how=HowKnown.EITHER_OF_ALL, hunks=(RATE, MODEL))
    assert found(RATE, MODEL, trace=taken) == both
    # what ran earlier than the nearest line may be it as well
    three = found(RATE, MODEL, DATA, trace=taken)
    assert three == both.model_copy(update={"how": HowKnown.EITHER})
    here = taken.model_copy(update={"elsewhere": False})
    assert found(RATE, MODEL, trace=here) == ShownChange(how=HowKnown.RAN, hunks=(RATE,))
    more = taken.model_copy(update={"changed": (RATE, ADAM)})
    assert found(RATE, MODEL, ADAM, trace=more) is None
    alone = taken.model_copy(update={"changed": ()})
    assert found(MODEL, trace=alone) == ShownChange(how=HowKnown.ONLY, hunks=(MODEL,))


@each_row(
    ("given", "others", "line", "elsewhere"),
    [
        (True, OtherProcesses.WORKERS, 7, True),
        (True, OtherProcesses.STARTED, 7, True),
        # a changed line says its own number
        (True, OtherProcesses.WORKERS, 11, False),
        (True, OtherProcesses.NONE, 7, False),
        (False, OtherProcesses.WORKERS, 7, False),
        (False, OtherProcesses.STARTED, 7, False),
    ],
)
def test_a_number_that_another_process_may_have_made_is_not_laid_to_the_nearest_line_that_ran(
    line: int, others: OtherProcesses, *, given: bool, elsewhere: bool
) -> None:
    trace = chain("ab").model_copy(
        update={"lines": (ExecutedLine(file="train.py", line=11, call=0),)}
    )
    finding = TraceFinding(
        claim=Claim.CODE_PATH,
        sentence="it",
        remedy="Look.",
        given=given,
        file="train.py",
        line=line,
    )
    told = with_changed_lines(finding, (RATE, MODEL), trace, ".", others=others)
    assert (told.changed, told.changed_later) == ((RATE,), (MODEL,))
    assert told.elsewhere is elsewhere
    which = "worker of a DataLoader" if others is OtherProcesses.WORKERS else "another process"
    assert (which in told.remedy) is elsewhere
    shown = found(RATE, MODEL, trace=told)
    assert shown is not None
    assert (shown.how is HowKnown.EITHER_OF_ALL) is elsewhere


@each_row("others", OtherProcesses)
def test_where_all_calls_agree_a_program_that_the_training_starts_may_have_made_the_metric(
    others: OtherProcesses,
) -> None:
    trace = chain("ab").model_copy(
        update={"lines": (ExecutedLine(file="train.py", line=11, call=0),)}
    )
    agree = not_found("the traces agree", NoTrace.AGREE)
    told = with_changed_lines(agree, (RATE, MODEL), trace, ".", others=others)
    shown = found(RATE, MODEL, trace=told)
    assert shown is not None
    started = others is OtherProcesses.STARTED
    assert shown.hunks == ((RATE, MODEL) if started else (RATE,))
    assert shown.how is (HowKnown.EITHER_OF_ALL if started else HowKnown.RAN)


@each_row(
    ("facts", "call", "others"),
    [
        ({}, "", OtherProcesses.NONE),
        ({"loader_workers": "2", "forks": "2"}, "", OtherProcesses.WORKERS),
        ({"forks": "3"}, "", OtherProcesses.STARTED),
        ({}, "subprocess.Popen", OtherProcesses.STARTED),
        ({}, "mmap.__new__", OtherProcesses.NONE),
    ],
)
def test_processes_beside_the_training_are_known_by_what_it_reports(
    facts: dict[str, str], call: str, others: OtherProcesses
) -> None:
    line = source_line(kind="unseen", call=call) | {"rank": 0}
    sources = (Source.model_validate(line, strict=False),) if call else ()
    run = evidence_of().model_copy(
        update={"rank_facts": (RankFacts(rank=0, facts=facts),), "sources": sources}
    )
    assert other_processes((evidence_of(), run)) is others


def test_parameters_that_an_optimizer_is_given_are_no_call_and_both_parts_that_ran_are_shown() -> (
    None
):
    kind = EventKind.STRUCTURE
    agree = not_found("the traces agree", NoTrace.AGREE).model_copy(
        update={"changed": (RATE, MODEL)}
    )
    both = ShownChange(how=HowKnown.EITHER_OF_ALL, hunks=(RATE, MODEL))
    assert found(RATE, MODEL, kind=kind, trace=agree) == both
    assert found(RATE, MODEL, ADAM, kind=kind, trace=agree) is None
    assert found(RATE, MODEL, kind=kind, trace=agree, complete=False) is None
