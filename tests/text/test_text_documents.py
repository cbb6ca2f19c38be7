from __future__ import annotations

import pytest
from each_row import each_row
from evidence_cases import evidence_of

from gate.baseline.entry import Baseline
from gate.errors import DocumentError
from gate.evidence.columns import Point
from gate.evidence.run_evidence import RunEvidence
from gate.text.documents import read_document, write_document
from gate.text.json_text import canonical_json


def test_a_document_reads_back_equal() -> None:
    evidence = evidence_of()
    assert read_document(RunEvidence, write_document(evidence), "x") == evidence


def test_all_faults_are_told_at_once_with_their_key_paths() -> None:
    data = canonical_json({"schema_version": "repro-gate.baseline/1", "entries": [{"commit": 3}]})
    with pytest.raises(DocumentError) as caught:
        read_document(Baseline, data, "baseline.json")
    assert caught.value.message == "baseline.json: 7 errors"
    assert "entries[0].commit: must be a valid string" in caught.value.details
    assert "entries[0].recorded_at: is required" in caught.value.details


def test_many_faults_are_counted_not_listed() -> None:
    data = canonical_json({"schema_version": "repro-gate.baseline/1", "entries": [{}] * 50})
    with pytest.raises(DocumentError) as caught:
        read_document(Baseline, data, "x")
    assert caught.value.details[-1] == "and 310 more"


def test_another_schema_version_is_told_apart_from_a_broken_file() -> None:
    data = canonical_json({"schema_version": "repro-gate.baseline/9", "entries": []})
    with pytest.raises(DocumentError) as caught:
        read_document(Baseline, data, "baseline.json")
    assert caught.value.message == (
        "baseline.json: schema version 'repro-gate.baseline/9', this repro-gate reads "
        "'repro-gate.baseline/1'"
    )


def test_a_document_must_be_an_object() -> None:
    with pytest.raises(DocumentError, match="1 error"):
        read_document(Baseline, b"[]", "x")


def test_a_point_whose_two_forms_disagree_is_refused() -> None:
    with pytest.raises(ValueError, match="is not the number"):
        Point(step=1, decimal="1.5", hex="0x1.0p+0")


@each_row("value", [0.1, -0.0, 5e-324, float("nan"), float("inf")])
def test_a_point_keeps_every_bit_of_its_value(value: float) -> None:
    point = Point.of(1, value)
    assert point.value.hex() == value.hex()
