from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from each_row import each_row
from harness_folder import HarnessFolder, step_line

from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError
from gate.evidence import harness_files
from gate.evidence.harness_files import (
    Attestation,
    ExactNumber,
    HarnessFile,
    StepLine,
    Summary,
    find_processes,
    read_harness_document,
    representable,
)
from gate.evidence.run_evidence import FloatType
from gate.system.files.files import LocalFiles
from gate.text.untrusted_text import plain_text, short_text


def read_steps(files: LocalFiles, harness: HarnessFolder) -> tuple[StepLine, ...]:
    return harness_files.read_harness_lines(files, harness.path, "steps-r0-11.jsonl", StepLine)


def test_finds_processes_by_rank_and_passes_over_foreign_names(
    files: LocalFiles, harness: HarnessFolder
) -> None:
    harness.of(rank=1, pid=7).attest()
    harness.whole()
    for name in (
        "notes.txt",
        "steps-r00-1.jsonl",
        "steps-r0-1.json",
        "state-r0-1.safetensors.part",
    ):
        (harness.path / name).touch()
    found = find_processes(files, harness.path)
    assert [(process.rank, process.pid) for process in found] == [(0, 11), (1, 7)]
    absent = {
        HarnessFile.METRICS,
        HarnessFile.LEAVES,
        HarnessFile.OPERATOR_AUDIT,
        HarnessFile.OVERRIDES,
        HarnessFile.CHILDREN,
        HarnessFile.SOURCES,
        HarnessFile.TRACE,
        HarnessFile.UNTRAINED,
        HarnessFile.ENDED,
        HarnessFile.EXITS,
        HarnessFile.BOUNDARY,
        HarnessFile.KILL,
    }
    assert set(found[0].kinds) == set(HarnessFile) - absent


def test_no_folder_means_no_process(files: LocalFiles, tmp_path: Path) -> None:
    assert find_processes(files, tmp_path / "missing") == ()


def test_too_many_files_are_refused(
    files: LocalFiles, harness: HarnessFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness_files, "MAX_HARNESS_FILES", 3)
    harness.whole()
    with pytest.raises(EvidenceError, match="the run left more than 3 files of the harness"):
        find_processes(files, harness.path)


def test_a_folder_that_is_a_link_is_refused(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(EvidenceError, match="the run's output folder cannot be read"):
        find_processes(files, tmp_path / "link")


def test_step_lines_keep_every_bit(files: LocalFiles, harness: HarnessFolder) -> None:
    harness.steps(
        step_line(1, loss={"dtype": "float64", "hex": (0.1).hex()}), step_line(2, loss=None)
    )
    first, second = read_steps(files, harness)
    assert first.loss is not None
    assert first.loss.value == 0.1
    assert (second.loss, second.seconds) == (None, 0.25)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"step": 0}, "step: must be greater than or equal to 1"),
        ({"step": True}, "step: must be a valid integer"),
        ({"extra": 1}, "extra: is not a known key"),
        ({"parameters": "sha256"}, "parameters: String should match pattern"),
        ({"parameters": ""}, "parameters: String should match pattern"),
        ({"fingerprints": {"Batch": "a:0"}}, "fingerprints.Batch"),
        (
            {"fingerprints": {"batch": "\x1b[31m"}},
            "fingerprints.batch: String should match pattern",
        ),
        ({"fingerprints": {f"s{n}": "a:0" for n in range(33)}}, "at most 32 items"),
        ({"observe_seconds": -1.0}, "observe_seconds: must be greater than or equal to 0"),
        ({"seconds": -1.0}, "seconds: must be greater than or equal to 0"),
        ({"loss": {"dtype": "float8", "hex": "0x1p+0"}}, "loss.dtype: must be"),
        ({"loss": {"dtype": "float32", "hex": "one"}}, "loss: hex 'one' is not a number"),
        ({"loss": {"dtype": "float64", "hex": "0x1p+9999"}}, "is not a number"),
        ({"loss": {"dtype": "float16", "hex": "0x1p+40"}}, "loss: 0x1p+40 is not a float16"),
    ],
)
def test_a_broken_line_is_named_with_its_key(
    files: LocalFiles, harness: HarnessFolder, change: dict[str, object], told: str
) -> None:
    harness.steps(step_line(1), step_line(2, **change))
    with pytest.raises(EvidenceError) as caught:
        read_steps(files, harness)
    assert caught.value.message == "steps-r0-11.jsonl: line 2: 1 error"
    assert told in caught.value.details[0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"step": 1', "steps-r0-11.jsonl: line 1: not valid JSON"),
        (b'\n{"step": 1, "step": 2}\n', "line 2: not valid JSON: key 'step' is given twice"),
        (b"\xff\n", "line 1: not UTF-8 at byte 0"),
        (b"[" * 40, "line 1: nested deeper than 32 levels"),
        (b" " * (64 * 1024 + 1), "line 1: longer than 65,536 bytes"),
    ],
)
def test_broken_json_names_file_and_line(
    files: LocalFiles, harness: HarnessFolder, content: bytes, told: str
) -> None:
    harness.file("steps", ".jsonl").write_bytes(content)
    with pytest.raises(EvidenceError) as caught:
        read_steps(files, harness)
    assert told in caught.value.message


def test_too_many_lines_are_refused(
    files: LocalFiles, harness: HarnessFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness_files, "MAX_LINES", 2)
    harness.steps(step_line(1), step_line(2))
    assert len(read_steps(files, harness)) == 2
    harness.steps(step_line(1), step_line(2), step_line(3))
    with pytest.raises(EvidenceError, match=r"steps-r0-11.jsonl: more than 2 lines"):
        read_steps(files, harness)


def test_a_file_above_its_limit_is_refused(
    files: LocalFiles, harness: HarnessFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness_files, "MAX_LINES_BYTES", 10)
    harness.steps(step_line(1))
    with pytest.raises(EvidenceError, match=r"steps-r0-11.jsonl: cannot be read: .*10 bytes"):
        read_steps(files, harness)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text(json.dumps({"steps": 2}))
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "told"),
    [(make_fifo, "FIFO"), (make_link, "link"), (Path.mkdir, "folder")],
    ids=["pipe", "link", "folder"],
)
def test_only_regular_files_are_read(
    files: LocalFiles, harness: HarnessFolder, make: Callable[[Path], None], told: str
) -> None:
    make(harness.file("summary", ".json"))
    with pytest.raises(EvidenceError, match=f"summary-r0-11.json: cannot be read: .*{told}"):
        read_harness_document(files, harness.path, "summary-r0-11.json", Summary)


@pytest.mark.parametrize(
    "change", [{"pid": -1}, {"applied": {"seed": 42}}, {"problems": ["\ud800"]}]
)
def test_a_broken_attestation_is_refused(
    files: LocalFiles, harness: HarnessFolder, change: dict[str, object]
) -> None:
    harness.attest(**change)
    with pytest.raises(EvidenceError, match=r"process-r0-11.json: 1 error"):
        read_harness_document(files, harness.path, "process-r0-11.json", Attestation)


def test_a_terminal_never_sees_what_a_key_holds(files: LocalFiles, harness: HarnessFolder) -> None:
    harness.attest(**{"\x1b[31mred": 1})
    with pytest.raises(EvidenceError) as caught:
        read_harness_document(files, harness.path, "process-r0-11.json", Attestation)
    assert caught.value.details == ("\\x1b[31mred: is not a known key",)


@each_row(
    ("value", "dtype", "fits"),
    [
        (0.1, "float64", True),
        (0.1, "float32", False),
        (0.5, "float16", True),
        (1e-9, "float16", False),
        (1.0 + 2**-7, "bfloat16", True),
        (1.0 + 2**-8, "bfloat16", False),
        (1e300, "float32", False),
        (float("nan"), "float16", True),
        (float("inf"), "bfloat16", True),
    ],
)
def test_a_number_must_belong_to_its_type(value: float, dtype: FloatType, *, fits: bool) -> None:
    assert representable(value, dtype) is fits


def test_nan_and_infinity_are_numbers() -> None:
    assert ExactNumber(dtype="float32", hex="-inf").value == float("-inf")


def test_reading_behind_the_end_is_an_error(files: LocalFiles, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345678")
    with open_untrusted(files, tmp_path / "a", "a", max_bytes=100) as opened:
        for offset, length in ((0, 9), (-1, 2), (3, -1)):
            with pytest.raises(EvidenceError, match="a: is truncated or points past its own end"):
                opened.read_at(offset, length)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(
    files: LocalFiles, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"12345678")
    with open_untrusted(files, tmp_path / "a", "a", max_bytes=100) as opened:
        os.truncate(tmp_path / "a", 2)
        with pytest.raises(EvidenceError, match="a: became shorter while it was read"):
            opened.read_at(0, 8)


def test_hostile_text_is_escaped_and_cut() -> None:
    assert short_text("a\n" + "b" * 200) == "'a\\n" + "b" * 118 + "'..."
    assert plain_text("é\x1b\ud800" + "x" * 400) == "é\\x1b\\ud800" + "x" * 297
