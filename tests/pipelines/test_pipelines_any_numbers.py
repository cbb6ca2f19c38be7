"""Whatever finite numbers a training gives: a verdict that can be written, shown and read back."""

from __future__ import annotations

from dataclasses import replace

from evidence_cases import evidence_of
from hypothesis import given
from hypothesis import strategies as st
from report_cases import LINKS
from report_outcomes import REQUEST, TOLERANT, entry, judged

from gate.evidence.run_evidence import RunEvidence
from gate.report.comment import comment_text
from gate.report.page.page import page_html
from gate.report.terminal import next_text
from gate.settings.load import training_settings
from gate.text.documents import read_document, write_document
from gate.verdict.verdict import Outcome, Verdict

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.lists(FINITE, min_size=1, max_size=4).map(tuple)
EXTREME = st.sampled_from((1.7e308, -1.7e308, 5e-324, -5e-324, 0.0, -0.0, 1.0))


def _ran(label: str, values: tuple[float, ...], seconds: float) -> RunEvidence:
    return evidence_of(label, values=values, step_seconds=(seconds,) * 20)


@given(
    VALUES | st.lists(EXTREME, min_size=1, max_size=4).map(tuple),
    VALUES,
    st.booleans(),
    st.floats(0, 1e9),
)
def test_any_two_lists_of_finite_numbers_give_a_verdict(
    values: tuple[float, ...],
    before: tuple[float, ...],
    tolerant: bool,  # noqa: FBT001 - drawn by hypothesis
    seconds: float,
) -> None:
    request = replace(REQUEST, settings=TOLERANT) if tolerant else REQUEST
    baseline = entry(_ran("strict-1", before, 0.1), under=request.settings)
    head = (_ran("strict-1", values, seconds), _ran("strict-2", values, 0.1))
    verdict = judged(head, against=baseline, request=request)
    assert read_document(Verdict, write_document(verdict), "verdict.json") == verdict
    assert verdict.outcome is not Outcome.ERROR
    assert verdict.passes <= (values == before or tolerant)
    assert comment_text(verdict, LINKS)
    assert page_html(verdict, LINKS)
    assert verdict.passes or next_text(verdict, LINKS)
    assert training_settings(request.settings) == baseline.training
