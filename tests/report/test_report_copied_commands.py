"""Each command that a terminal shows can be copied whole, at any width and from a pipe."""

from __future__ import annotations

import io
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_outcomes import CASES, NO_BASELINE
from rich.console import Console, RenderableType

from gate.commands.doctor import doctor_view
from gate.commands.init import init_text
from gate.errors import RunError
from gate.pipelines.doctor.health import CheckResult, DoctorReport, Examined
from gate.pipelines.scaffold import Plan, Training, Written
from gate.report.assembly import ReportLinks, report_of
from gate.report.terminal import TERMINAL_LIMITS, next_text, verdict_view
from gate.report.terminal_lines import Sentence
from gate.text.untrusted_text import visible
from gate.verdict.next_step import ReaderPlace, after_fault, next_steps
from gate.verdict.verdict import NextStep, Outcome

WIDTHS = (40, 80, 110)
SPAN = re.compile(r"`[^`]+`")
# what a path may hold and a person can see: an invisible sign or a blank that is none is not shown
LETTERS = st.characters(categories=("L", "N", "P", "S", "Zs")).filter(
    lambda sign: visible(sign) == sign
)
NAMES = st.text(LETTERS, min_size=1, max_size=120)
PLACES = st.builds(
    ReaderPlace,
    config=NAMES,
    out=NAMES,
    baseline=NAMES,
    base_commit=st.sampled_from(("", "0123456789abcdef" * 2)),
    on_runner=st.booleans(),
)


def printed(view: RenderableType, width: int) -> str:
    """As the commands print it: a text unwrapped, a view uncut."""
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    console.print(view, soft_wrap=isinstance(view, str), crop=False)
    return file.getvalue()


def copied(text: str) -> list[list[str]]:
    """The words of each command that a person copies: lines that a backslash joins are one."""
    lines = text.replace(" \\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("  ") and _is_command(line)]


def _is_command(line: str) -> bool:
    return line.split(maxsplit=1)[0] in {"repro-gate", "git", "cd"}


@pytest.mark.parametrize("outcome", Outcome)
@given(place=PLACES, over_budget=st.booleans(), width=st.sampled_from(WIDTHS))
def test_each_next_command_of_a_verdict(
    outcome: Outcome, place: ReaderPlace, width: int, *, over_budget: bool
) -> None:
    steps = next_steps(outcome, place, passes=False, over_budget=over_budget)
    steps = (*steps, *after_fault(RunError("x", hint="Run `repro-gate doctor`."), place))
    verdict = NO_BASELINE.model_copy(update={"next_steps": steps})
    wanted = [shlex.split(step.command) for step in steps if step.command]
    assert copied(printed(next_text(verdict, ReportLinks()), width)) == wanted


@pytest.mark.parametrize("width", WIDTHS)
@given(package=NAMES, keys=NAMES)
def test_the_verify_command_of_a_pass(width: int, package: str, keys: str) -> None:
    words = ["repro-gate", "verify", package, "--trusted-keys", keys, "--commit", "0" * 40]
    links = ReportLinks(verify_command=shlex.join(words), package_path="x")
    assert copied(printed(next_text(CASES["reproduced"], links), width)) == [words]


@pytest.mark.parametrize("width", WIDTHS)
@given(add=st.lists(NAMES, max_size=4), folder=st.one_of(st.just(""), NAMES), first=st.booleans())
def test_each_next_command_of_init(width: int, add: list[str], folder: str, *, first: bool) -> None:
    plan = Plan(training=Training(command="python t.py"), new={"a": ""}, kept=(), ignore=("b/",))
    done = Written(
        plan=plan,
        max_steps=20,
        has_commit=not first,
        has_baseline=False,
        add=tuple(add),
        uncommitted=("x",),
        folder=folder,
    )
    commands = copied(printed(init_text(done), width))
    assert (["cd", folder] in commands) == bool(folder)
    assert (["git", "add", *add] in commands) == (bool(add) and not first)
    assert (["git", "add", "."] in commands) == (first or add == ["."])
    accept = ["repro-gate", "baseline", "accept", "--reason", "first baseline"]
    tail = [accept, ["git", "add", ".repro-gate"], ["git", "commit", "-m", "Baseline"]]
    assert commands[-4:] == [*tail, ["repro-gate", "gate"]]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_command_within_a_sentence_of_a_verdict(width: int) -> None:
    for name, verdict in CASES.items():
        report = report_of(verdict, ReportLinks(), TERMINAL_LIMITS)
        brief = (report.brief.happened, report.brief.this_change)
        sentences = (*brief, *(one.text for one in report.alerts))
        text = printed(verdict_view(verdict, ReportLinks()), width)
        for span in SPAN.findall(" ".join(sentences)):
            assert span in text, name


@pytest.mark.parametrize("width", WIDTHS)
@given(st.lists(st.tuples(NAMES, NAMES), max_size=6), NAMES)
def test_no_command_within_any_sentence(
    width: int, parts: list[tuple[str, str]], lead: str
) -> None:
    plain = [(word.replace("`", "'"), span.replace("`", "'")) for word, span in parts]
    text = " ".join(f"{word} `{span}`" for word, span in plain)
    shown = printed(Sentence(text, lead=lead, indent=2), width)
    for _, span in plain:
        assert f"`{span}`" in shown


@pytest.mark.parametrize("width", WIDTHS)
def test_no_command_of_the_doctor(width: int) -> None:
    command = (
        "repro-gate baseline record --config a/long/folder/repro-gate.yml --reason 'it is new'"
    )
    row = Examined(
        name="baseline",
        health=CheckResult.FAIL,
        found="no baseline is committed for this kind of machine, which is what was looked for",
        fix=f"Run `{command}` on this kind of machine, and commit the file.",
    )
    text = printed(doctor_view(DoctorReport(version="1", examined=(row,))), width)
    assert f"`{command}`" in text
    assert text.startswith("  fail  baseline  no baseline is committed ")


def test_what_is_no_command_is_filled_to_the_width() -> None:
    step = NextStep(text="word " * 60)
    verdict = NO_BASELINE.model_copy(update={"next_steps": (step,)})
    assert all(len(line) <= 80 for line in next_text(verdict, ReportLinks()).splitlines())
    assert all(len(line) <= 80 for line in printed(Sentence("word " * 60), 80).splitlines())
