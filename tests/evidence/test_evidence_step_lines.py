"""Lines as columns: a pattern gives what the model gives, and the model alone refuses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from calls_made import calls_of
from hypothesis import example, given
from hypothesis import strategies as st

from gate.errors import GateError
from gate.evidence.harness_files import BLOCK_LINES, StepLine, read_harness_lines
from gate.evidence.metric_series import file_metrics
from gate.evidence.step_lines import StepLines, read_step_lines, whole_nanoseconds
from gate.system.files.files import LocalFiles

NAME = "steps-r0-11.jsonl"
# as the harness writes it
PLAIN = (
    '{"step": 5, "optimizer": 0, "backwards": 1, "samples": 0, "rows": null, "unobserved": '
    '["random", "tensors"], "threads": 1, "device_bytes": 0, "loss": {"dtype": "float32", "hex": '
    '"0x1.ffef180000000p+1"}, "losses": [{"dtype": "float32", "hex": "0x1.ffef180000000p+1"}], '
    '"parameters": null, "fingerprints": {}, "skipped": null, "seconds": 6.815200322307646e-05, '
    '"harness_seconds": 2.2442996851168573e-05, "observe_seconds": 0, "memory_bytes": 318660608}'
)
WITHOUT_LOSS = PLAIN.replace(PLAIN[PLAIN.index('"loss"') : PLAIN.index('"para')], "").replace(
    '"parameters"', '"loss": null, "losses": [], "parameters"'
)
LOSS, SECONDS = "0x1.ffef180000000p+1", "6.815200322307646e-05"
OBSERVED = PLAIN.replace('"parameters": null', '"parameters": "sha256:ab"')
HEXES = (
    "nan",
    "-nan",
    "inf",
    "-inf",
    "0x0.0p+0",
    "-0x0.0p+0",
    "0x1p9999",
    "0x1.0000000000000p+9999",
    "0x1.ffffffffffffep+1",
    "0x1.8p+1",
    "0x0.8000000000000p+1",
    "0x1.0000000000000p-1050",
    "one",
)
NUMBERS = ("null", "0", "1", "-1", "1e9", "1000000000.1", "1e999", "1e-999", "0.1e", "01", "NaN")
KINDS = ("float64", "float16", "bfloat16", "float8")


def changed(line: str, change: tuple[str, str]) -> str:
    old, new = change
    return line.replace(old, new)


CHANGES = st.one_of(
    st.sampled_from(HEXES).map(lambda new: (LOSS, new)),
    st.sampled_from(NUMBERS).map(lambda new: (SECONDS, new)),
    st.sampled_from(KINDS).map(lambda new: ("float32", new)),
    st.floats(0, 2e9).map(lambda new: (SECONDS, repr(new))),
    st.floats().map(lambda new: (LOSS, new.hex())),
    st.integers(-2, 2**64).map(lambda new: ('"step": 5', f'"step": {new}')),
    st.integers(0, 2**64).map(lambda new: ("318660608", f"{new}")),
    st.sampled_from(("null", "7", "4294967297", "00", "1.0")).map(
        lambda new: ('"samples": 0', f'"samples": {new}')
    ),
    st.sampled_from(
        (
            ('"threads"', '"optimizer": 1, "threads"'),
            ('"threads"', '"thread"'),
            (', "memory_bytes": 318660608', ""),
            ('"random"', '"loss"'),
            ("[{", "[{}, {"),
            (": ", ":"),
            ("}", "} "),
            ("}", "}\r"),
            ("{", "["),
            ("{", " {"),
            ('"skipped": null', '"skipped": false'),
            ('"parameters": null', '"parameters": ["a"]'),
        )
    ),
)
LINES = st.lists(
    st.builds(
        lambda line, changes: changed(line, changes) if changes else line,
        st.sampled_from((PLAIN, PLAIN, WITHOUT_LOSS, OBSERVED, "", " ")),
        st.none() | CHANGES,
    ),
    max_size=6,
)


def told(read: object) -> object:
    """What a reader gives, or its refusal in words."""
    try:
        found = read()  # type: ignore[operator] # a function
    except GateError as error:
        return type(error), error.message, error.hint, error.details
    # a NaN is no other NaN, but its text is the same
    return [repr(one) for one in found]


@given(LINES)
def test_any_lines_are_read_or_refused_as_the_model_does_it(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("steps")
    (folder / NAME).write_text("\n".join(lines), newline="")
    files = LocalFiles()
    read = told(lambda: read_step_lines(files, folder, NAME))
    assert read == told(lambda: read_harness_lines(files, folder, NAME, StepLine))


def test_lines_of_records_are_those_records() -> None:
    records = [StepLine.model_validate_json(line) for line in (PLAIN, OBSERVED, WITHOUT_LOSS)]
    assert list(map(repr, StepLines.of(records))) == list(map(repr, records))


def test_a_fault_behind_many_plain_lines_names_its_line(tmp_path: Path) -> None:
    lines = [PLAIN] * BLOCK_LINES + [PLAIN, "{", PLAIN.replace(LOSS, "0x1p9999")]
    (tmp_path / NAME).write_text("\n".join(lines))
    with pytest.raises(GateError) as caught:
        read_step_lines(LocalFiles(), tmp_path, NAME)
    assert f"line {BLOCK_LINES + 2}:" in caught.value.message


def test_a_line_too_long_is_named_after_the_faults_before_it(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("\n".join((PLAIN, "{", "x" * 100_000)))
    with pytest.raises(GateError, match="line 2: not valid JSON"):
        read_step_lines(LocalFiles(), tmp_path, NAME)
    (tmp_path / NAME).write_text("\n".join((PLAIN, "x" * 100_000)))
    with pytest.raises(GateError, match="line 2: longer than"):
        read_step_lines(LocalFiles(), tmp_path, NAME)


def test_plain_lines_take_no_record_each(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("\n".join([PLAIN] * 50 + [OBSERVED] + [WITHOUT_LOSS] * 50))
    lines = read_step_lines(LocalFiles(), tmp_path, NAME)
    assert (len(lines), list(lines.records), lines.observed) == (101, [50], [50])
    assert lines[0].loss == lines[0].losses[0]
    assert lines[-1].losses == ()


def test_a_line_of_numbers_asks_for_a_fifth_of_the_calls_of_the_model(tmp_path: Path) -> None:
    files = LocalFiles()
    (tmp_path / NAME).write_text(f"{PLAIN}\n" * 2_000)
    fast = calls_of(lambda: read_step_lines(files, tmp_path, NAME))
    strict = calls_of(lambda: read_harness_lines(files, tmp_path, NAME, StepLine))
    assert fast < strict / 5


HALVES = st.builds(lambda whole: (whole + 0.5) / 1e9, st.integers(0, 2**53))


@given(
    st.lists(st.floats() | HALVES | HALVES.map(lambda half: math.nextafter(half, 0)), max_size=9)
)
@example([0.0, -0.0, 5e-10, -3e-10, 2.5e-9, 1e-323, 1e9, 1.7e308, math.inf, -math.inf, math.nan])
def test_many_durations_are_rounded_as_each_of_them_is(seconds: list[float]) -> None:
    rounded = [round(number, 9) for number in seconds]
    assert whole_nanoseconds(np.array(seconds, np.float64)).tobytes() == np.array(rounded).tobytes()


NUMBER_TEXTS = st.one_of(
    st.sampled_from(("0", "-0", "-0.0", "1e5", "1E-5", "1.5e999", "NaN", "-Infinity", "01", "1.")),
    st.sampled_from(("true", "null", '"x"', "[1]", '{"a": 1}', "9007199254740993", "-")),
    st.integers(-(2**60), 2**60).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
FORMS = st.sampled_from(
    ('{{"step": {0}, "a": {1}, "b": {2}}}', '{{"a":{1},"step":{0}}}', '{{"a": {1}, "a": {2}}}', "")
)
METRIC_LINES = st.builds(
    lambda form, first, rows: "\n".join(
        form.format(first + place + odd, *numbers) for place, (odd, *numbers) in enumerate(rows)
    ),
    FORMS,
    st.integers(0, 3) | st.just(2**53 - 1),
    st.lists(
        st.tuples(
            st.sampled_from((0, 0, 0, 0, -1, 0.5)),
            NUMBER_TEXTS | st.floats(0, 1).map(repr),
            st.floats(0, 1).map(repr),
        ),
        max_size=4,
    ),
)


@given(METRIC_LINES)
def test_metrics_are_read_or_refused_by_columns_as_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, lines: str
) -> None:
    # of lines of which the first has a text, each is read by itself
    path, alone = (tmp_path_factory.mktemp("metrics") / name for name in ("fast", "slow"))
    path.write_text(f"\n{lines}")
    alone.write_text(f'{{"step": 0, "a": "text"}}\n{lines}')
    files = LocalFiles()
    read = told(lambda: file_metrics(files, path, "metrics.jsonl").series)
    assert read == told(lambda: file_metrics(files, alone, "metrics.jsonl").series)


def test_numbers_of_a_long_file_are_taken_many_at_a_time(tmp_path: Path) -> None:
    lines = [f'{{"step": {step}, "a": {step / 7!r}, "b": {step}}}' for step in range(5000)]
    (tmp_path / "m").write_text("\n".join(lines))
    first, second = file_metrics(LocalFiles(), tmp_path / "m", "m").series
    assert (first.name, second.name) == ("file.a", "file.b")
    assert list(first.points.values) == [step / 7 for step in range(5000)]
    assert list(second.points.pairs()) == [(step, float(step)) for step in range(5000)]
