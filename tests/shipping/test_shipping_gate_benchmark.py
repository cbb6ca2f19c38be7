"""What the benchmark of whole gate calls counts, and what the pairs that were side by side are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gate_calls import Called, CalledRun, covered_seconds, peak_bytes
from gate_time import Point, bytes_each, growth_rows, is_linear, ratio_row
from gate_workloads import METRICS, Workload, make_repository
from hypothesis import given
from hypothesis import strategies as st
from side_by_side_pairs import counted, page, pairs_of, read_lines

from gate.settings.load import parse_settings

SECONDS = st.integers(0, 1000)
SPANS = st.lists(st.tuples(SECONDS, SECONDS).map(lambda two: (min(two), max(two))), max_size=8)


def run(label: str, begun: float, ended: float) -> CalledRun:
    return CalledRun(label=label, begun_seconds=begun, ended_seconds=ended)


def called(*runs: CalledRun, seconds: float = 10.0, own_bytes: int = 0) -> Called:
    return Called(
        seconds=seconds,
        runs=runs,
        own_bytes=own_bytes,
        reader_bytes=0,
        outcome="reproduced",
        root="ab",
    )


@given(SPANS)
def test_covered_seconds_are_those_that_some_span_holds(spans: list[tuple[int, int]]) -> None:
    held = {second for begun, ended in spans for second in range(begun, ended)}
    assert covered_seconds(spans) == len(held)


def test_own_seconds_count_what_runs_beside_each_other_share_once() -> None:
    runs = run("default-1", 1, 3), run("strict-1", 4, 7), run("strict-2", 5, 8)
    assert called(*runs).own_seconds == pytest.approx(4)


@given(st.floats(0, 100), st.floats(0.001, 1))
def test_a_straight_line_is_linear_whatever_its_start_and_slope(start: float, slope: float) -> None:
    assert is_linear([(size, start + slope * size) for size in (1, 100, 1000, 4000)])


@pytest.mark.parametrize("seconds", [(1, 1.1, 2, 60), (1, 2, 11, 400)])
def test_a_square_is_not_linear(seconds: tuple[float, ...]) -> None:
    assert not is_linear(list(zip((1, 10, 100, 1000), seconds, strict=True)))


def test_a_ratio_is_of_the_fastest_of_each_side_and_is_held_against_its_aim() -> None:
    calls = [called(seconds=seconds) for seconds in (9.0, 6.0)]
    row = ratio_row("a call", [12.0, 10.0], calls, 0.75)
    assert row.line == (
        "| a call | 0.60 times (6.0 s of which own 6.0, over 10.0 s) | ≤ 0.75 times | met |"
    )
    assert ratio_row("a call", [6.0], calls, 0.75).met is False
    assert ratio_row("a call", [6.0], calls, 0.75, can=False).met is None


def test_a_size_that_came_to_no_verdict_misses_both_aims_of_growth() -> None:
    points = [Point(size=1, called=called(own_bytes=7))]
    rows = list(growth_rows("steps", "step", points, "100: error: too much"))
    assert [row.met for row in rows] == [False, False]
    assert rows[0].measured == "100: error: too much"


def test_growing_memory_misses_its_aim() -> None:
    points = [Point(size=size, called=called(own_bytes=size * 1000)) for size in (1, 2, 3)]
    rows = list(growth_rows("steps", "step", points, ""))
    assert [row.met for row in rows] == [True, False]
    assert rows[1].measured == "0 MB to 0 MB, 1,000 bytes for each step"


@given(st.permutations([1, 10, 100, 1000]))
def test_sizes_count_in_their_own_order(sizes: list[int]) -> None:
    assert is_linear([(size, 1 + size) for size in sizes])
    assert not is_linear([(size, size * size) for size in sizes])
    points = [Point(size=size, called=called(own_bytes=100 + 3 * size)) for size in sizes]
    assert bytes_each(points) == 3


def test_the_memory_of_a_process_is_its_high_water_mark() -> None:
    mine = peak_bytes(os.getpid())
    assert mine > 10_000_000
    assert peak_bytes(2**22 + 1) == 0


def test_a_workload_becomes_a_repository_whose_settings_the_gate_reads(tmp_path: Path) -> None:
    workload = Workload(script=METRICS, words=("1000", "10"), steps=1000, own_metrics=True)
    top = make_repository(tmp_path / "made", workload)
    settings = parse_settings((top / "repro-gate.yml").read_bytes(), "repro-gate.yml")
    assert settings.train.command == ("python", "train.py", "1000", "10")
    assert settings.train.max_steps == workload.steps
    assert (top / ".git").is_dir()


def test_a_pair_shares_half_of_the_shorter_run_and_is_strict() -> None:
    runs = (
        run("strict-1", 0, 10),
        run("strict-2", 5, 15),
        run("strict-3", 14, 24),
        run("strict-4", 30, 40),
        run("default-1", 0, 10),
    )
    assert pairs_of(runs) == 1


def test_lines_of_this_machine_count_and_half_a_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "counts.jsonl"
    line = {"machine": "here", "pairs": 5}
    texts = [json.dumps(line), json.dumps(line | {"machine": "there"}), json.dumps(line)[:12]]
    path.write_text("\n".join(texts), "utf-8")
    assert counted(read_lines(path, "here")) == 5
    assert read_lines(tmp_path / "none", "here") == []


def test_the_page_names_each_false_alarm() -> None:
    line = {
        "machine": "here",
        "commit": "c" * 40,
        "callers": 3,
        "workers": 2,
        "serial": False,
        "at": "2026-01-02",
        "pairs": 5,
        "unequal": False,
        "outcome": "reproduced",
        "root": "ab",
    }
    alarm = line | {"unequal": True, "outcome": "nondeterministic", "root": "cd"}
    text = "\n".join(page([line, alarm]))
    assert "| pairs side by side | 10 |" in text
    assert "| calls whose runs differed | **1** |" in text
    assert text.endswith("- 2026-01-02: nondeterministic")
