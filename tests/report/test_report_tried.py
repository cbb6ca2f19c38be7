"""Which setting would have helped, as a reader sees it: sentences in the answer, and a table."""

from __future__ import annotations

from each_row import each_row
from report_cases import diagnosed

from gate.diagnosis.diagnosis import Suspect, SuspectKind
from gate.evidence.trace import TriedSetting, TriedSettings
from gate.report.assembly import ReportLinks
from gate.report.brief import brief_of
from gate.report.comment import comment_text
from gate.report.diagnosis_sections import tried_sections, tried_words
from gate.report.layout import Limits
from gate.settings.variations import Setting
from gate.verdict.verdict import Outcome, Verdict

LIMITS = Limits(deltas=10, rows=20)
THREAD = TriedSetting(
    setting=Setting.ONE_THREAD, written="determinism.threads: 1", runs=4, agree=True, slower=1.83
)
FILL = TriedSetting(
    setting=Setting.HEAP_FILL,
    written="a fill of the C heap",
    runs=4,
    agree=True,
    follows=True,
    slower=1.02,
)
RESTORE = TriedSetting(
    setting=Setting.RESTORE, written="determinism.on_override: restore", runs=2, agree=False
)


def of(*tried: TriedSetting, untried: tuple[str, ...] = (), differing: int = 3) -> TriedSettings:
    return TriedSettings(tried=tried, untried=untried, pairs=3, differing=differing)


def told(tried: TriedSettings) -> Verdict:
    return diagnosed(Outcome.NONDETERMINISTIC, tried=tried)


HELPED = "With one thread (determinism.threads: 1) the runs agree (4 runs of 4); a run takes "
CASES = {
    "one thread": (
        of(RESTORE, THREAD),
        f"{HELPED}1.8 times as long. The script is reproducible only with one thread.",
    ),
    "a fill that shows": (
        of(FILL),
        (
            "With new memory filled with a constant the runs agree (4 runs of 4), at no measurable "
            "cost. The result changes with the fill: memory is read before it is written."
        ),
    ),
    "a fill in two runs": (
        of(FILL.model_copy(update={"follows": None, "runs": 2, "slower": None})),
        "With a fill of the C heap the runs agree, but so few may agree by chance.",
    ),
    "runs that agree without it": (
        of(THREAD, differing=1),
        "With determinism.threads: 1 the runs agree, but so few may agree by chance.",
    ),
    "one worker": (
        of(THREAD.model_copy(update={"setting": Setting.ONE_WORKER, "written": "max_workers=1"})),
        (
            "With one worker in each pool the runs agree (4 runs of 4); a run takes 1.8 times as "
            "long. It is the order in which workers finish."
        ),
    ),
    "a knob": (
        of(THREAD.model_copy(update={"setting": Setting.KNOB, "written": "a.knob: on"})),
        "With a.knob: on the runs agree (4 runs of 4); a run takes 1.8 times as long.",
    ),
    "one that does not help": (
        of(RESTORE),
        "With determinism.on_override: restore the runs still differ.",
    ),
    "none that helps": (
        of(RESTORE, FILL.model_copy(update={"agree": False, "follows": None})),
        "None of the 2 settings tried makes the runs agree.",
    ),
    "one that fails": (
        of(RESTORE.model_copy(update={"agree": None, "problem": "it failed"})),
        "No setting could be tried.",
    ),
    "no time": (
        of(untried=("a", "b")),
        "No setting was tried, for lack of time (diagnosis.budget_seconds).",
    ),
}


@each_row(("tried", "said"), CASES.values(), ids=CASES)
def test_the_answer_names_the_setting_and_its_price(tried: TriedSettings, said: str) -> None:
    assert tried_words(tried) == said
    assert brief_of(told(tried)).happened.endswith(said)


def test_a_known_line_is_answer_enough_where_no_setting_helps() -> None:
    line = Suspect(place="train.py:4", kind=SuspectKind.ENTROPY, call="os.urandom", step=1)
    known = told(of(RESTORE))
    assert known.diagnosis is not None
    diagnosis = known.diagnosis.model_copy(update={"suspects": (line,)})
    known = known.model_copy(update={"diagnosis": diagnosis})
    assert "Moving" not in brief_of(known).happened


def test_each_setting_has_a_row() -> None:
    failed = RESTORE.model_copy(update={"agree": None, "runs": 0, "problem": "it failed"})
    (section,) = tried_sections(told(of(failed, FILL, untried=("num_workers=0",))), LIMITS)
    assert [[cell.text for cell in row] for row in section.table.rows] == [
        ["determinism.on_override: restore", "", "not known", "", "it failed"],
        ["a fill of the C heap", "4", "yes", "1.02 times", "the result follows the fill"],
        ["num_workers=0", "", "not tried", "", "no time left of diagnosis.budget_seconds"],
    ]


def test_where_nothing_was_tried_there_is_no_section() -> None:
    nothing = told(of()).model_copy(update={"diagnosis": None})
    assert tried_sections(nothing, LIMITS) == ()


def test_text_of_a_run_is_shown_as_text() -> None:
    hostile = RESTORE.model_copy(update={"problem": "<img src=x> [a](https://b) @team"})
    body = comment_text(told(of(hostile, THREAD)), ReportLinks())
    assert "<img" not in body
    assert "[a](https://b)" not in body
