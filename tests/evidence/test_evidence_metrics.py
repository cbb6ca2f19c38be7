from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import evidence_of
from harness_folder import exact, step_line
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import EvidenceError, OutputError
from gate.evidence import metric_series
from gate.evidence import metric_series as series
from gate.evidence.harness_files import MetricLine, StepLine
from gate.evidence.metric_series import (
    file_metrics,
    harness_series,
    output_metrics,
    printed_numbers,
)
from gate.evidence.run_evidence import (
    MAX_PASSED_OVER,
    MetricSeries,
    MetricSource,
    PassedOver,
    RunEvidence,
    WhyPassedOver,
)
from gate.system.files.files import LocalFiles


def steps_of(*lines: dict[str, object]) -> list[StepLine]:
    return [StepLine.model_validate(line) for line in lines]


def values(found: MetricSeries) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in found.points]


def from_file(files: LocalFiles, folder: Path, text: str) -> tuple[MetricSeries, ...]:
    (folder / "m.jsonl").write_text(text)
    return file_metrics(files, folder / "m.jsonl", "m.jsonl").series


def test_losses_of_each_optimizer_are_a_series_of_their_own() -> None:
    lines = steps_of(
        step_line(1), step_line(1, optimizer=1, loss=exact(3.0, "float64")), step_line(2, loss=None)
    )
    first, second = harness_series(lines, ())
    assert (first.name, first.dtype, first.source) == ("loss", "float32", MetricSource.HARNESS)
    assert values(first) == [(1, 0.5)]
    assert (second.name, second.dtype) == ("loss.1", "float64")


def test_what_the_script_logs_is_kept_exactly() -> None:
    logged = MetricLine(name="accuracy", step=3, dtype="float64", hex=(0.1).hex())
    (found,) = harness_series((), [logged])
    assert (found.name, values(found)) == ("logged.accuracy", [(3, 0.1)])


def test_a_metric_that_changes_its_type_is_refused() -> None:
    lines = steps_of(step_line(1), step_line(2, loss=exact(0.5, "float64")))
    with pytest.raises(EvidenceError, match=r"'loss' is float32, but float64 at step 2"):
        harness_series(lines, ())


def test_numbers_of_a_metrics_file_become_series(files: LocalFiles, tmp_path: Path) -> None:
    text = '{"step": 1, "loss": 0.1, "note": "x", "eval_loss": null}\n\n{"step": 2, "n": 7}'
    loss, count = from_file(files, tmp_path, text)
    assert (loss.name, loss.source, values(loss)) == ("file.loss", MetricSource.FILE, [(1, 0.1)])
    assert (count.name, values(count)) == ("file.n", [(2, 7.0)])


def test_objects_and_lists_of_a_metrics_file_become_series_and_a_boolean_is_0_or_1(
    files: LocalFiles, tmp_path: Path
) -> None:
    text = '{"step": 5, "eval": {"loss": 0.5, "top": [1, 2]}, "per_class": [0.25], "ok": true}'
    found = {one.name: values(one) for one in from_file(files, tmp_path, text)}
    assert found == {
        "file.eval.loss": [(5, 0.5)],
        "file.eval.top.0": [(5, 1.0)],
        "file.eval.top.1": [(5, 2.0)],
        "file.ok": [(5, 1.0)],
        "file.per_class.0": [(5, 0.25)],
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"train"', "a is text"),
        ('"0.93"', "a is a number in quotes"),
        ('"9007199254740993"', "a is text"),
        (str([0] * 101), "a has too many values"),
        ("[" * 9 + "1" + "]" * 9, "a.0.0.0.0.0.0.0.0 is nested too deep"),
        ('{"b\\u001b": 1}', "a.b\\x1b has a name that is too long or not printable"),
        (str([[0] * 100] * 6), "a.5.0 is one nested value too many"),
    ],
)
def test_what_is_no_metric_is_named_with_the_reason(
    files: LocalFiles, tmp_path: Path, value: str, said: str
) -> None:
    (tmp_path / "m.jsonl").write_text(f'{{"step": 1, "loss": 1, "a": {value}}}\n')
    passed = file_metrics(files, tmp_path / "m.jsonl", "m.jsonl").passed_over
    assert f"{passed[0].name} {passed[0].why}" == said


LEAVES = st.none() | st.booleans() | st.floats(width=32) | st.text(max_size=5)
LINES = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
        ),
        max_leaves=12,
    ),
)


def leaves(value: object) -> int:
    if isinstance(value, dict | list):
        return sum(map(leaves, value.values() if isinstance(value, dict) else value))
    return value is not None


@given(LINES)
def test_each_value_of_a_line_is_compared_or_named(
    tmp_path_factory: pytest.TempPathFactory, line: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "m.jsonl"
    path.write_text(json.dumps({"step": 1, **line}))
    read = file_metrics(LocalFiles(), path, "m.jsonl")
    assert len(read.series) + len(read.passed_over) == leaves(line)


def test_nan_and_infinity_of_a_metrics_file_are_kept(files: LocalFiles, tmp_path: Path) -> None:
    (loss,) = from_file(files, tmp_path, '{"step": 1, "loss": NaN}\n{"step": 2, "loss": -Infinity}')
    assert math.isnan(loss.points[0].value)
    assert loss.points[1].value == float("-inf")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"loss": 1.0}', "m.jsonl: line 1: has no integer `step`"),
        ('{"step": true, "loss": 1.0}', "m.jsonl: line 1: has no integer `step`"),
        ('{"step": 1.0, "loss": 1.0}', "m.jsonl: line 1: has no integer `step`"),
        ('{"step": 1}\n[1]', "m.jsonl: line 2: is not a JSON object"),
        ('{"step": 1', "m.jsonl: line 1: not valid JSON"),
        ('{"step": -1, "a": 1}', "line 1: metric 'file.a' has a step below 0"),
        ('{"step": 1, "a": 1}\n{"step": 1, "a": 2}', "'file.a' is given for step 1 twice"),
        ('{"step": 2, "a": 1}\n{"step": 1, "a": 2}', "'file.a' is given for step 1 after step 2"),
        ('{"step": 1, "a": 9007199254740993}', "'a' is an integer that float64 cannot hold"),
        ('{"step": 1, "a": 1' + "0" * 400 + "}", "'a' is an integer that float64 cannot hold"),
        ('{"step": 1, "a\\u001b": 1}', r"metric name 'file.a\x1b' is longer than 200"),
        ('{"step": 1, "' + "a" * 196 + '": 1}', "is longer than 200 characters"),
    ],
)
def test_a_broken_metrics_file_is_named_with_its_line(
    files: LocalFiles, tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(EvidenceError) as caught:
        from_file(files, tmp_path, text)
    assert told in caught.value.message


@pytest.mark.parametrize("text", ["step,loss\n1,0.5\n", "1\t0.5\n", '{"loss": 0.5}', "[1]"])
def test_a_log_of_another_format_says_which_one_is_read(
    files: LocalFiles, tmp_path: Path, text: str
) -> None:
    with pytest.raises(OutputError) as caught:
        from_file(files, tmp_path, text)
    assert caught.value.hint == (
        'train.metrics.file names a file of JSON Lines, such as {"step": 1, "loss": 0.5}. Of any '
        "other format, such as CSV, print the numbers and set train.metrics.stdout_pattern."
    )


def test_a_missing_metrics_file_is_an_error(files: LocalFiles, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"m.jsonl: the script wrote no metrics file there"):
        file_metrics(files, tmp_path / "m.jsonl", "m.jsonl")


@pytest.mark.parametrize(
    ("limit", "told", "hint"),
    [
        ("MAX_POINTS", "2 numbers in one run", "log them at fewer steps, or lower train.max_steps"),
        ("MAX_SERIES", "2 metrics", "Log fewer metrics."),
    ],
)
def test_too_many_numbers_are_refused(
    files: LocalFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    told: str,
    hint: str,
) -> None:
    monkeypatch.setattr(series, limit, 2)
    with pytest.raises(EvidenceError) as caught:
        from_file(files, tmp_path, '{"step": 1, "a": 1, "b": 2, "c": 3}')
    assert caught.value.message == f"m.jsonl: line 1: more than {told}"
    assert hint in caught.value.hint


def test_reading_ends_at_the_first_number_that_is_too_many(
    files: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "MAX_POINTS", 1000)
    lines = (f'{{"step": {step}, "a": 1, "b": 2}}' for step in range(100_000))
    with pytest.raises(EvidenceError, match=r"line 501: more than 1,000 numbers"):
        from_file(files, tmp_path, "\n".join(lines))


def test_printed_numbers_become_series() -> None:
    output = b"start\nstep 1 loss 0.5\r\nstep 2 loss nan\n"
    (found,) = output_metrics(r"step (?P<step>\d+) loss (?P<loss>\S+)", output).series
    assert (found.name, found.source) == ("stdout.loss", MetricSource.STDOUT)
    assert found.points[0].value == 0.5
    assert math.isnan(found.points[1].value)


def test_matches_are_counted_when_the_pattern_has_no_step() -> None:
    (found,) = output_metrics(r"loss (?P<loss>\S+)", b"loss 2\nother\nloss 1\n").series
    assert values(found) == [(1, 2.0), (2, 1.0)]


def test_a_group_that_took_no_part_is_no_metric() -> None:
    found = output_metrics(r"a=(?P<a>\d+)(?: b=(?P<b>\d+))?", b"a=1\na=2 b=5\n").series
    assert [(item.name, values(item)) for item in found] == [
        ("stdout.a", [(1, 1.0), (2, 2.0)]),
        ("stdout.b", [(2, 5.0)]),
    ]


def test_long_lines_are_passed_over_and_named() -> None:
    line = b"loss 1 " + b"x" * 1000
    read = output_metrics(r"loss (?P<loss>\S+)", line + b"\nloss 2\n")
    assert values(read.series[0]) == [(1, 2.0)]
    assert [(one.name, one.why.value) for one in read.passed_over] == [
        ("line 1", "is too long to search")
    ]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (b"loss high\n", "the script's output: line 1: 'loss high' matches, but a group is not"),
        (b"nothing\n\xff\n", "no line of the script's output matches"),
    ],
)
def test_output_without_numbers_is_an_error(output: bytes, told: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        output_metrics(r"loss (?P<loss>\S+)", output)
    assert told in caught.value.message


def test_too_many_lines_of_output_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_series, "MAX_OUTPUT_LINES", 2)
    with pytest.raises(EvidenceError, match="the script printed more than 2 lines"):
        output_metrics(r"(?P<loss>\d)", b"1\n2\n3\n")


@given(st.lists(st.floats(), min_size=1, max_size=8))
def test_every_float_comes_through_a_series_bit_for_bit(numbers: list[float]) -> None:
    collector = series.SeriesCollector(MetricSource.FILE, "m")
    for step, number in enumerate(numbers):
        collector.add("a", step, number)
    assert [point.value.hex() for point in collector.series()[0].points] == [
        number.hex() for number in numbers
    ]


@each_row(
    ("line", "names"),
    [
        ("step=3 loss=0.125 val_acc=0.75", ["val_acc"]),
        ("epoch 2: test/accuracy: 91.25 % time: 3.25 s", ["test/accuracy"]),
        ("F1 = -1.5e-3, auc=0.5, auc=0.25", ["F1", "auc"]),
        ("torch: 2.13.0, train_loss=1.5, base_lr=0.1, step_ms=1.5, count=3", []),
        ("a=1.0 b=1.0 c=1.0 d=1.0 e=1.0 f=1.0", ["a", "b", "c", "d", "e"]),
        (f"acc=1.0{' ' * 1000}", []),
        ("\x1b[1macc\x1b[0m=0.5", []),
    ],
)
def test_numbers_that_a_script_prints_are_known_by_their_names(line: str, names: list[str]) -> None:
    passed = printed_numbers(f"\xe9\n{line}\n".encode("latin-1"))
    assert [value.name for value in passed] == names


def test_a_run_holds_what_every_source_of_metrics_passed_over() -> None:
    passed = tuple(
        PassedOver(source=source, name=f"key {number}", why=WhyPassedOver.TEXT)
        for source in MetricSource
        for number in range(MAX_PASSED_OVER)
    )
    run = RunEvidence.model_validate(dict(evidence_of()) | {"passed_over": passed})
    assert run.passed_over == passed
