"""Metrics as text: the library's own parser reads them, a Pushgateway's double takes them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from each_row import each_row
from history_table import FIRST, NOW, UNLIKE, keep, line, report, rollback, verdicts
from web_double import Fault, Handler, WebDouble, cut, endless, status

from gate.errors import PublishError
from gate.fleet import metric_names as names
from gate.fleet.exposition import (
    MetricSample,
    push,
    samples_of_report,
    samples_of_verdict,
    text_of,
)
from gate.fleet.stores import FolderStore
from gate.system.files.files import LocalFiles
from gate.system.http import MAX_ANSWER_BYTES
from gate.verdict.verdict import Outcome

DAY = 86400.0
Read = dict[str, dict[tuple[tuple[str, str], ...], float]]


class Gateway(WebDouble):
    """Takes what is put to it, as a Pushgateway does."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[str] = []

    def serve(self, handler: Handler) -> None:
        self.bodies.append(handler.body().decode())
        handler.answer(200)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "history", LocalFiles())


def parsed(text: str) -> Read:
    """By the OpenMetrics parser of prometheus_client, which refuses what is none."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    return {
        family.name: {
            tuple(sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in parser.text_string_to_metric_families(text)
    }


def plain(text: str) -> Read:
    """By the parser of Prometheus's own text format, which a Pushgateway reads."""
    parser = pytest.importorskip("prometheus_client.parser")
    return {
        family.name: {
            tuple(sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in parser.text_string_to_metric_families(text)
    }


def test_both_parsers_read_the_same_values(folder: FolderStore) -> None:
    keep(folder, *verdicts(), *(rollback(number, succeeded=number > 0) for number in range(10)))
    text = text_of(samples_of_report(report(folder), 28 * DAY))
    found = parsed(text)
    assert found == plain(text)
    # nothing was priced, no line was left out, and the last verdict has neither data nor an audit
    assert {one.name for one in names.METRICS} - set(found) == {
        "repro_gate_last_determinism_cost_ratio",
        "repro_gate_history_unreadable_lines",
    }
    gate = (("gate_id", "default"), ("indicator", "M1"), ("repository", "o/n"))
    assert found["repro_gate_sli_good_events"][gate] == 430
    assert found["repro_gate_sli_valid_events"][gate] == 460
    assert found["repro_gate_slo_target_ratio"][gate] == 0.95
    assert found["repro_gate_slo_budget_left_ratio"][gate] == pytest.approx(-7 / 23)
    window = (("gate_id", "default"), ("repository", "o/n"))
    assert found["repro_gate_slo_window_seconds"][window] == 28 * DAY
    assert found["repro_gate_silent"][window] == 0
    assert found["repro_gate_history_read_timestamp_seconds"][()] == NOW.timestamp()


def test_each_metric_of_the_table_has_its_labels() -> None:
    every = [MetricSample(one, tuple("v" for _ in one.labels), 1.0) for one in names.METRICS]
    found = parsed(text_of(every))
    assert [*found] == [one.name for one in names.METRICS]
    for one in names.METRICS:
        assert {name for name, _ in next(iter(found[one.name]))} == set(one.labels)


def test_run_and_commit_are_labels_of_one_metric_alone() -> None:
    for word in ("run_id", "commit", "author", "runner", "environment"):
        assert [one.name for one in names.METRICS if word in one.labels] == [
            "repro_gate_last_verdict_info"
        ]


@each_row(
    "author",
    ["two\nlines", 'a "quote"', "back\\slash", "\\n", "line\r\nend", "# EOF\n", "é\N{ROCKET}", "}"],
)
def test_a_label_with_anything_in_it_stays_one_label(author: str) -> None:
    text = text_of(samples_of_verdict(line(NOW, 1, author=author)))
    (labels,) = parsed(text)["repro_gate_last_verdict_info"]
    assert dict(labels)["author"] == author.replace("\r", " ")
    assert parsed(text) == plain(text)


def test_a_verdict_says_nothing_of_what_was_not_measured() -> None:
    found = parsed(text_of(samples_of_verdict(line(FIRST, 1, outcome=Outcome.ERROR, passes=False))))
    assert set(found) == {
        "repro_gate_last_verdict_info",
        "repro_gate_last_verdict_timestamp_seconds",
        "repro_gate_last_verdict_passes",
        "repro_gate_last_verdict_sealed",
    }


def test_lines_that_are_left_out_are_counted(folder: FolderStore) -> None:
    folder.write("2026-11-06/x.jsonl", b"torn\ntorn too\n")
    found = parsed(text_of(samples_of_report(report(folder), DAY)))
    assert found["repro_gate_history_unreadable_lines"] == {(("reason", "broken"),): 2.0}


def test_a_push_replaces_the_group_of_its_gate(gateway: Gateway) -> None:
    push(f"http://{gateway.address}/", line(NOW, 1, gate_id="nightly"))
    (asked,) = gateway.asked
    assert asked.method == "PUT"
    found = re.fullmatch(
        r"/metrics/job/repro-gate/repository@base64/([^/]+)/gate_id/nightly", asked.path
    )
    assert found is not None
    assert base64.urlsafe_b64decode(unquote(found[1])) == b"o/n"
    assert "repro_gate_last_verdict_passes" in plain(gateway.bodies[0])


def test_a_push_without_a_repository_names_an_empty_group(gateway: Gateway) -> None:
    push(f"http://{gateway.address}", line(NOW - timedelta(days=1), 1, repository="", **UNLIKE))
    assert gateway.asked[0].path.startswith("/metrics/job/repro-gate/repository@base64/=/gate_id/")


def test_a_gateway_that_is_down_or_refuses_is_one_error(gateway: Gateway) -> None:
    with pytest.raises(PublishError, match="the Pushgateway cannot be reached"):
        push("http://127.0.0.1:9", line(NOW, 1))
    gateway.serve = lambda handler: handler.answer(400)  # type: ignore[method-assign] # a double
    with pytest.raises(PublishError, match="the Pushgateway answered 400"):
        push(f"http://{gateway.address}", line(NOW, 1))
    for address in ("pushgateway:9091", "ftp://pushgateway", "http://me:secret@pushgateway"):
        with pytest.raises(PublishError, match="must be an address without a login") as fault:
            push(address, line(NOW, 1))
        assert "secret" not in f"{fault.value}"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (endless, f"sent more than {MAX_ANSWER_BYTES:,} bytes"),
        (cut, "closed the connection too early"),
        (status(302, Location="http://elsewhere.invalid/"), "answered 302"),
        (status(503), "answered 503"),
    ],
)
def test_no_answer_of_a_gateway_is_followed_repeated_or_taken_without_end(
    gateway: Gateway, act: Callable[[Handler], None], words: str
) -> None:
    gateway.faults.append(Fault("PUT", "/metrics", act))
    with pytest.raises(PublishError, match=words):
        push(f"http://{gateway.address}", line(NOW, 1))
    assert [one.method for one in gateway.asked] == ["PUT"]


def test_a_push_shows_no_login_of_netrc(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    push(f"http://{gateway.address}", line(NOW, 1))
    assert [one.authorization for one in gateway.asked] == [""]
