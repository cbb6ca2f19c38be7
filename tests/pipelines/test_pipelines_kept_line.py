"""A line of every verdict goes to the history, and nothing about it changes a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from gate_bench import FILES, Bench

from gate.errors import CancelledError, EvidenceError, GateError, SettingsError
from gate.fleet.store import HistoryStore
from gate.package.secrets import InputSecrets
from gate.pipelines.delivery import DeliveredVerdict, run_and_deliver
from gate.verdict.history_lines import HistoryLine
from gate.verdict.verdict import Outcome


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history"


def raising(fault: GateError) -> Callable[..., NoReturn]:
    def pipeline(*_: object) -> NoReturn:
        raise fault

    return pipeline


def delivered(bench: Bench, history: Path, fault: GateError, **facts: object) -> DeliveredVerdict:
    """A call whose runs end with a fault."""
    bench.project.settings(f"publish: {{history: '{history}'}}\n")  # type: ignore[attr-defined] # a played one
    request = replace(bench.request(), repository="o/n", **facts)  # type: ignore[arg-type] # by name
    return run_and_deliver(request, bench.adapters(), InputSecrets({}, FILES), raising(fault))


def lines(history: Path) -> list[HistoryLine]:
    return [
        HistoryLine.model_validate_json(path.read_bytes())
        for path in sorted(history.glob("*/*.jsonl"))
    ]


def test_an_error_has_a_line(bench: Bench, history: Path) -> None:
    outcome = delivered(bench, history, EvidenceError("nothing was recorded"))
    (line,) = lines(history)
    assert (line.outcome, line.passes, line.cancelled) == (Outcome.ERROR, False, False)
    assert (line.repository, line.gate_id, line.digests_equal) == ("o/n", "default", None)
    assert outcome.kept == (f"A line was added to the history in {history}.",)


def test_a_cancelled_call_has_a_line_that_says_so(bench: Bench, history: Path) -> None:
    with pytest.raises(CancelledError):
        delivered(bench, history, CancelledError("cancelled by SIGTERM"))
    (line,) = lines(history)
    assert (line.outcome, line.cancelled) == (Outcome.ERROR, True)


def test_wrong_settings_are_no_verdict(bench: Bench, history: Path) -> None:
    with pytest.raises(SettingsError):
        delivered(bench, history, SettingsError("repeats is 1"))
    assert not history.exists()


@pytest.mark.parametrize(
    "facts", [{"from_fork": True}, {"pull_request": True, "settings_from": "head"}]
)
def test_who_decides_where_it_would_go_has_no_line(
    bench: Bench, history: Path, facts: dict[str, object]
) -> None:
    outcome = delivered(bench, history, EvidenceError("nothing was recorded"), **facts)
    assert outcome.kept == ("No line in the history: this pull request decides where it would go.",)
    assert not history.exists()


def test_whatever_the_store_raises_is_a_sentence(bench: Bench, history: Path) -> None:
    bench.project.settings(f"publish: {{history: '{history}'}}\n")  # type: ignore[attr-defined] # as above

    def broken(_: str) -> HistoryStore:
        raise ZeroDivisionError

    adapters = bench.adapters()
    adapters = replace(adapters, publishers=replace(adapters.publishers, history=broken))
    fault = EvidenceError("nothing was recorded")
    secrets = InputSecrets({}, FILES)
    outcome = run_and_deliver(bench.request(), adapters, secrets, raising(fault))
    assert outcome.verdict.cause == "nothing was recorded"
    assert outcome.kept[0].startswith(f"No line was added to the history in {history}: ")


def test_what_a_service_says_is_in_the_sentence_too(bench: Bench, history: Path) -> None:
    bench.project.settings(f"publish: {{history: '{history}'}}\n")  # type: ignore[attr-defined] # as above

    def refusing(_: str) -> HistoryStore:
        raise EvidenceError("the store answered 403", hint="Log in.", details=("no such bucket",))

    adapters = bench.adapters()
    adapters = replace(adapters, publishers=replace(adapters.publishers, history=refusing))
    fault = EvidenceError("nothing was recorded")
    secrets = InputSecrets({}, FILES)
    outcome = run_and_deliver(bench.request(), adapters, secrets, raising(fault))
    (kept,) = outcome.kept
    assert kept.endswith(f"{history}: the store answered 403: no such bucket. Log in.")


def test_a_lines_facts_are_plain_json(bench: Bench, history: Path) -> None:
    delivered(bench, history, EvidenceError("x"))
    (path,) = history.glob("*/*.jsonl")
    assert path.read_bytes().endswith(b"}\n")
    assert json.loads(path.read_text())["schema_version"] == "repro-gate.history/2"
