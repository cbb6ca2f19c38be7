"""`baseline.quarantine`: bounded in time whenever it is read, and never without a reason."""

from __future__ import annotations

import pytest
from each_row import each_row

from gate.baseline.select import KEY
from gate.errors import SettingsError
from gate.harness.lifecycle.environment_survey import _READERS
from gate.settings.levels import ENVIRONMENT_PARTS, Quarantine
from gate.settings.load import parse_settings

FILE = """\
version: 1
train: {command: python train.py, max_steps: 3}
baseline:
  quarantine:
    - reason: a flaky node
"""


def _parsed(*lines: str) -> Quarantine:
    text = FILE + "".join(f"      {line}\n" for line in lines)
    (rule,) = parse_settings(text.encode(), "repro-gate.yml").baseline.quarantine
    return rule


def _refused(*lines: str) -> str:
    with pytest.raises(SettingsError) as caught:
        _parsed(*lines)
    return str(caught.value)


def test_a_day_has_to_be_quoted() -> None:
    assert _refused("since: 2026-01-01") == (
        "repro-gate.yml: line 6: unsupported value of type date\nhint: Put the value in quotes."
    )
    rule = _parsed("since: '2026-01-01'", "until: '2026-01-31'")
    assert (rule.since, rule.until) == ("2026-01-01", "2026-01-31")


def test_thirty_days_are_the_most() -> None:
    told = _refused("since: '2026-01-01'", "until: '2026-02-01'")
    assert "lasts 31 days, the limit is 30" in told
    assert "renew it in a pull request when it ends" in told


@pytest.mark.parametrize("until", ["9999-12-31", "2099-01-01"])
def test_a_quarantine_for_ever_is_refused(until: str) -> None:
    assert "the limit is 30" in _refused("since: '2026-01-01'", f"until: '{until}'")


@each_row("until", ["never", "for ever", "2026-02-30", "26-01-01", "20260131", "2026-W05-1", ""])
def test_what_is_no_day_is_refused(until: str) -> None:
    assert "must be a day such as 2026-01-31" in _refused(
        "since: '2026-01-01'", f"until: '{until}'"
    )


@pytest.mark.parametrize(
    ("line", "missing"), [("since: '2026-01-01'", "until"), ("until: '2026-01-01'", "since")]
)
def test_both_days_are_needed(line: str, missing: str) -> None:
    assert f"baseline.quarantine[0].{missing}" in _refused(line)


def test_a_chain_of_rules_is_refused() -> None:
    text = FILE + "      since: '2026-01-01'\n      until: '2026-01-31'\n"
    for since, until in (("2026-01-31", "2026-03-02"), ("2026-03-02", "2026-03-31")):
        parse_settings(text.encode(), "repro-gate.yml")
        text += f"    - reason: again\n      since: '{since}'\n      until: '{until}'\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "repro-gate.yml")
    told = str(caught.value)
    assert "baseline.quarantine: last 89 days together, the limit is 60" in told
    assert "remove those that have expired, and those that have not begun" in told


def test_an_end_before_the_beginning_is_refused() -> None:
    told = _refused("since: '2026-02-01'", "until: '2026-01-31'")
    assert "ends on 2026-01-31, before it begins on 2026-02-01" in told


def test_a_reason_is_needed() -> None:
    text = FILE.replace("reason: a flaky node", "reason: ''")
    text += "      since: '2026-01-01'\n      until: '2026-01-02'\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "repro-gate.yml")
    assert "baseline.quarantine[0].reason" in str(caught.value)


@each_row(
    ("lines", "place"),
    [
        ("compare: {comparable_environment: [gpu]}", "line 3: compare.comparable_environment: "),
        (
            "baseline: {quarantine: [{reason: a, since: x, until: y, environment: {gpu: x}}]}",
            "line 3: baseline.quarantine[0].environment: ",
        ),
    ],
)
def test_a_part_that_no_environment_has_is_refused(lines: str, place: str) -> None:
    text = f"version: 1\ntrain: {{command: python train.py, max_steps: 3}}\n{lines}\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "repro-gate.yml")
    told = "'gpu' is no part of the environment; name one of cpu, cpu_capability, cublas, cuda, "
    assert any(line.startswith(f"{place}{told}") for line in caught.value.details)


def test_the_parts_that_settings_name_are_those_that_entries_are_chosen_by() -> None:
    assert sorted(ENVIRONMENT_PARTS) == sorted(KEY)
    assert set(_READERS) < set(ENVIRONMENT_PARTS)


def test_metrics_and_parts_are_patterns() -> None:
    rule = _parsed(
        "since: '2026-01-01'", "until: '2026-01-02'", "metrics: ['*.accuracy']",
        "environment: {cpu: AMD EPYC*}",
    )  # fmt: skip
    assert rule.covers_metric("file.accuracy")
    assert not rule.covers_metric("loss")
    assert rule.covers({"cpu": "AMD EPYC 7763"})
    assert not rule.covers({"cpu": "Intel"})
