from __future__ import annotations

import io

from report_cases import LINKS, verdict
from rich.console import Console

from gate.commands.operators import operators_view
from gate.evidence.operator_records import FlagReach, OperatorReport, OperatorRow
from gate.report.assembly import NOTHING_FOUND, operators_sections
from gate.report.comment import comment_text, summary_text
from gate.report.layout import Limits
from gate.verdict.verdict import Outcome

LIMITS = Limits(deltas=5, rows=5)
ROW = OperatorRow(
    operator="put_",
    reach=FlagReach.NO_FORM,
    calls_per_step="1 to 2",
    steps="1-3",
    where="train.py:7",
    remedy="Use scatter.",
)
FOUND = OperatorReport(rows=(ROW,), complete=True)


def terminal_text(operator_audit: OperatorReport) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(operators_view(operator_audit, LIMITS))
    return file.getvalue()


def test_comment_and_summary_show_operators_with_count_place_and_remedy() -> None:
    told = verdict(Outcome.REPRODUCED, passes=True, operator_audit=FOUND)
    for text in (comment_text(told, LINKS), summary_text(told, LINKS)):
        assert "Operators (1; counted in a separate run)" in text
        assert "`put_`" in text
        assert "`train.py:7, steps 1-3`" in text
        assert "no deterministic form. Use scatter." in text


def test_what_the_own_table_says_names_its_source() -> None:
    row = ROW.model_copy(
        update={"reach": FlagReach.NOT_KNOWN, "why": "why", "source": "torch.sort"}
    )
    text = terminal_text(OperatorReport(rows=(row,)))
    assert "flag not known to apply: why. Use scatter. (Source: torch.sort)" in text
    assert "Source" not in terminal_text(FOUND)


def test_what_was_not_counted_says_so() -> None:
    (section,) = operators_sections(
        FOUND.model_copy(update={"complete": False, "dropped": 4}), LIMITS
    )
    assert (
        section.title == "Operators (1; not counted: no operator audit; 4 more calls not recorded)"
    )


def test_what_cuda_would_add_stands_by_itself_with_its_place() -> None:
    on_cuda = OperatorRow(
        operator="index_add",
        reach=FlagReach.REPLACED_ON_CUDA,
        where="train.py:27",
        steps="1-3",
        calls_per_step="1",
    )
    report = OperatorReport(rows=(ROW, on_cuda), complete=True)
    told = verdict(Outcome.REPRODUCED, passes=True, operator_audit=report)
    for text in (comment_text(told, LINKS), summary_text(told, LINKS), terminal_text(report)):
        assert "Operators (1; counted in a separate run)" in text
        assert "On CUDA these would be nondeterministic under torch's defaults (1)" in text
        assert "train.py:27, steps 1-3" in text
        assert "deterministic in strict mode" in text
        assert "on CUDA: " not in text


def test_without_anything_to_tell_there_is_no_section() -> None:
    assert operators_sections(None, LIMITS) == ()
    assert operators_sections(OperatorReport(failure="it failed"), LIMITS) == ()


def test_an_empty_operator_audit_says_that_nothing_was_found() -> None:
    text = terminal_text(OperatorReport(complete=True))
    assert "Operators (0; counted in a separate run)" in text
    assert NOTHING_FOUND in text


def test_a_report_without_rows_or_operator_audit_is_one_line_in_the_terminal() -> None:
    assert terminal_text(OperatorReport()).strip() == NOTHING_FOUND


def test_hostile_names_are_defused_in_the_terminal() -> None:
    hostile = ROW.model_copy(update={"operator": "\x1b[31mput_", "where": "\x1b]0;x\x07:1"})
    text = terminal_text(OperatorReport(rows=(hostile,)))
    assert "\x1b" not in text
    assert "put_" in text
