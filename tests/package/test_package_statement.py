"""The statement: its shape, its inverse, and what is refused although it is signed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from attestation_cases import COMMIT, facts_in, verdict_of
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import AttestationError
from gate.evidence.run_evidence import StateName, StateRoots
from gate.isolation.modes import IsolationMode, RunIsolation, Separation, WriteGuard
from gate.package.statement import (
    Property,
    StatementFacts,
    read_statement,
    utc_time,
    write_statement,
)
from gate.settings.levels import ReachedLevel
from gate.verdict.verdict import Outcome, RecordedRuns

SHA256 = st.text("0123456789abcdef", min_size=64, max_size=64)
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
ROOTS = st.builds(
    StateRoots,
    name=st.sampled_from(StateName),
    member=TEXT,
    algorithm=TEXT,
    root=SHA256,
    parts=st.dictionaries(TEXT, SHA256, max_size=4),
)
FACTS = st.builds(
    StatementFacts,
    package_name=TEXT,
    package_sha256=SHA256,
    package_size_bytes=st.integers(0, 2**53),
    commit=st.sampled_from(["a" * 40, "f" * 64]),
    checkpoint_algorithm=TEXT,
    checkpoint_root=SHA256,
    states=st.tuples(ROOTS) | st.tuples(ROOTS, ROOTS),
    outcome=st.sampled_from(Outcome),
    properties=st.lists(st.sampled_from(Property)).map(lambda all_: (Property.GATE_PASSED, *all_)),
    level=st.sampled_from(ReachedLevel),
    strict_runs=st.integers(2, 10),
    settings_digest=SHA256,
    baseline_digest=SHA256 | st.just(""),
    snapshot_digest=SHA256,
    isolation=st.builds(
        RunIsolation,
        mode=st.sampled_from([mode for mode in IsolationMode if mode is not IsolationMode.AUTO]),
        guard=st.none() | st.sampled_from(WriteGuard),
        network=st.booleans(),
        device_groups=st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple),
        own=st.lists(st.sampled_from(Separation), unique=True).map(tuple),
    ),
    imported_evidence=st.booleans(),
    base_branch=TEXT,
    base_commit=st.sampled_from(["", "b" * 40, "e" * 64]),
    created_at=st.sampled_from(["2026-01-31T12:00:00Z", "1999-12-31T23:59:59Z"]),
    repository=TEXT,
    run_id=TEXT,
    gate_version=TEXT,
)


@pytest.fixture
def facts(tmp_path: Path) -> StatementFacts:
    return facts_in(tmp_path)


def _with_one_run(facts: StatementFacts, recorded: RecordedRuns | None) -> StatementFacts:
    return facts if recorded is None else replace(facts, strict_runs=1, one_run=recorded)


RECORDED = st.builds(
    RecordedRuns, runs=st.integers(2, 10), recorded_at=st.just("2026-11-20T08:00:00+00:00")
)
FACTS = st.builds(_with_one_run, FACTS, st.none() | RECORDED)


@given(FACTS)
def test_reading_is_the_inverse_of_writing(facts: StatementFacts) -> None:
    assert read_statement(write_statement(facts)) == facts


def test_statement_is_an_in_toto_verification_result(facts: StatementFacts) -> None:
    value = json.loads(write_statement(facts))
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"] == "https://in-toto.io/attestation/svr/v0.2"
    assert value["subject"] == [
        {"name": "facts.tar", "digest": {"sha256": facts.package_sha256}},
        {"name": "commit", "digest": {"gitCommit": COMMIT}},
    ]
    assert value["predicate"]["timeCreated"] == "2026-01-31T12:00:00Z"
    assert value["predicate"]["properties"][0] == "REPRO_GATE_PASS"
    assert value["predicate"]["verifier"]["policies"] == [
        {"name": "settings", "digest": {"sha256": verdict_of().settings_digest}},
        {"name": "baseline", "digest": {"sha256": "b" * 64}},
    ]


def test_what_each_run_had_of_its_own_is_sealed(facts: StatementFacts) -> None:
    own = replace(facts, isolation=RunIsolation(mode=IsolationMode.UID, own=tuple(Separation)))
    sealed = read_statement(write_statement(own)).isolation
    assert sealed.described == "uid (own processes, network, terminals, files, cache)"


def test_a_single_run_is_sealed_with_the_recorded_runs_that_it_equals(
    facts: StatementFacts,
) -> None:
    recorded = RecordedRuns(runs=2, recorded_at="2026-11-20T08:00:00+00:00")
    claims = json.loads(write_statement(replace(facts, strict_runs=1, one_run=recorded)))
    assert claims["predicate"]["reproGate"]["oneRun"] == {
        "runs": 2,
        "recordedAt": "2026-11-20T08:00:00+00:00",
    }
    assert "oneRun" not in json.loads(write_statement(facts))["predicate"]["reproGate"]


@pytest.mark.parametrize("runs", [1, 2])
def test_one_run_without_recorded_ones_or_two_with_them_are_refused(
    facts: StatementFacts, runs: int
) -> None:
    recorded = RecordedRuns(runs=2, recorded_at="2026-11-20T08:00:00+00:00")
    wrong = replace(facts, strict_runs=runs, one_run=recorded if runs > 1 else None)
    with pytest.raises(AttestationError, match="these facts cannot be sealed"):
        write_statement(wrong)


def test_time_is_written_in_utc() -> None:
    assert utc_time("2026-01-31T14:30:00+02:30") == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("checkpoint_root", "", "checkpoint_root: String should match"),
        ("commit", "abc", "git_commit: String should match"),
        ("run_id", "x" * 501, "run_id: String should have at most 500"),
    ],
)
def test_facts_that_cannot_be_said_are_refused(
    facts: StatementFacts, name: str, value: str, fault: str
) -> None:
    with pytest.raises(AttestationError, match="these facts cannot be sealed") as caught:
        write_statement(StatementFacts(**(asdict(facts) | {name: value})))
    assert fault in caught.value.details[0]


Change = Callable[[dict[str, Any]], object]
REFUSED: dict[str, tuple[Change, str]] = {
    "another verifier": (
        lambda value: value["predicate"]["verifier"].update(id="urn:evil"),
        "names the verifier 'urn:evil', only 'urn:repro-gate:verifier:v1' is accepted",
    ),
    "v0.1 statement": (
        lambda value: value.update(_type="https://in-toto.io/Statement/v0.1"),
        "has _type 'https://in-toto.io/Statement/v0.1', only 'https://in-toto.io/Statement/v1'",
    ),
    "no type": (lambda value: value.pop("_type"), "has _type 'None'"),
    "other predicate": (
        lambda value: value.update(predicateType="https://slsa.dev/provenance/v1"),
        "has predicateType 'https://slsa.dev/provenance/v1'",
    ),
    "third subject": (
        lambda value: value["subject"].append(value["subject"][0]),
        "subject",
    ),
    "subjects swapped": (lambda value: value["subject"].reverse(), "subject[0].digest.sha256"),
    "two digests": (
        lambda value: value["subject"][0]["digest"].update(sha512="0" * 128),
        "subject[0].digest.sha512: is not a known key",
    ),
    "unknown claim": (
        lambda value: value["predicate"]["reproGate"].update(more=1),
        "predicate.reproGate.more: is not a known key",
    ),
    "other claims version": (
        lambda value: value["predicate"]["reproGate"].update(schemaVersion="repro-gate.claims/2"),
        "schemaVersion: must be 'repro-gate.claims/1'",
    ),
    "nothing passed": (
        lambda value: value["predicate"].update(properties=[]),
        "properties: does not hold REPRO_GATE_PASS",
    ),
    "no settings": (
        lambda value: value["predicate"]["verifier"]["policies"].pop(0),
        "policies: must be settings, then baseline if there was one",
    ),
    "float size": (
        lambda value: value["predicate"]["reproGate"].update(packageSizeBytes=1.0),
        "packageSizeBytes: must be a valid integer",
    ),
    "impossible date": (
        lambda value: value["predicate"].update(timeCreated="2026-02-31T12:00:00Z"),
        "timeCreated: ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_statement_is_refused(facts: StatementFacts, name: str) -> None:
    change, message = REFUSED[name]
    value = json.loads(write_statement(facts))
    change(value)
    with pytest.raises(AttestationError) as caught:
        read_statement(json.dumps(value).encode())
    assert message in str(caught.value)
    assert caught.value.hint == "Verify it with the tool or the repro-gate version that made it."


def test_duplicate_key_is_refused(facts: StatementFacts) -> None:
    payload = write_statement(facts)
    doubled = payload.replace(b'"isolation":', b'"isolation":null,"isolation":')
    with pytest.raises(AttestationError, match="key 'isolation' is given twice"):
        read_statement(doubled)
