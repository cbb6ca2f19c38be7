"""Runs of trackio, written here by hand so that each line can be wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from collected_metrics import collected_names
from each_row import each_row
from harness_folder import HarnessFolder

from gate.errors import EvidenceError, GateError, MissingOutputError
from gate.evidence.logged_values import ReadMetrics
from gate.evidence.run_evidence import MetricSource
from gate.evidence.trackio_runs import trackio_metrics
from gate.settings.train_sections import MetricsSettings
from gate.system.files.files import LocalFiles

MADE = {"timestamp": "2026-11-27T22:13:55+00:00", "config": None, "log_id": "ce45"}
RUN = {"v": 1, "kind": "metric", "project": "trial", "run": "dainty-sunset-0", "run_id": "b2bf"}


def line(step: object, metrics: object, **fields: object) -> bytes:
    return json.dumps(RUN | {"metrics": metrics, "step": step} | MADE | fields).encode() + b"\n"


def write(folder: Path, *fragments: bytes, writer: str = "d0dc") -> Path:
    place = folder / "trackio" / "inbox" / writer
    place.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(fragments):
        (place / f"{number:08d}.jsonl").write_bytes(data)
    return folder / "trackio"


def read(folder: Path, *keys: str) -> ReadMetrics:
    return trackio_metrics(LocalFiles(), folder / "trackio", "trackio", keys or ("*",))


def values(found: ReadMetrics) -> dict[str, list[tuple[int, float]]]:
    assert {series.source for series in found.series} <= {MetricSource.TRACKIO}
    return {series.name: list(series.points.pairs()) for series in found.series}


def test_numbers_of_all_fragments_are_read_in_the_order_of_their_writing(tmp_path: Path) -> None:
    machine = line(0, {"gpu/0/power": 80.5}, kind="system_metric")
    first = line(0, {"loss": 0.1, "eval": {"acc": 1}}) + machine
    write(tmp_path, first, line(1, {"loss": 1 / 3, "flag": True}), line(12, {"rows": [2.5]}))
    assert values(read(tmp_path)) == {
        "trackio.eval.acc": [(0, 1.0)],
        "trackio.flag": [(1, 1.0)],
        "trackio.loss": [(0, 0.1), (1, 1 / 3)],
        "trackio.rows.0": [(12, 2.5)],
    }
    assert list(values(read(tmp_path, "lo*"))) == ["trackio.loss"]


def test_what_is_not_finite_is_a_number_and_never_passed_over_as_text(tmp_path: Path) -> None:
    """The client writes it as text: as such it would be in no comparison."""
    write(tmp_path, line(0, {"loss": "NaN", "eval": {"top": ["Infinity", "-Infinity"]}}))
    found = read(tmp_path)
    assert not found.passed_over
    read_values = {name: points[0][1] for name, points in values(found).items()}
    assert math.isnan(read_values.pop("trackio.loss"))
    assert read_values == {"trackio.eval.top.0": math.inf, "trackio.eval.top.1": -math.inf}


def test_what_is_no_number_is_passed_over_by_name(tmp_path: Path) -> None:
    media = {"_type": "trackio.histogram", "bins": [1.0, 2.0], "values": [1]}
    write(tmp_path, line(0, {"loss": 0.5, "acc": "0.93", "phase": "train", "weights": media}))
    assert {(one.name, one.why.value) for one in read(tmp_path).passed_over} == {
        ("acc", "is a number in quotes"),
        ("phase", "is text"),
        ("weights", "is media or a table"),
    }


@each_row(
    ("data", "words"),
    [
        (b"[1]\n", "trackio/inbox/d0dc/00000000.jsonl: line 1 is not a record of trackio"),
        (line(0, {"loss": 1}, v=2), "line 1 is not a record of trackio, version 1"),
        (line(0, {"loss": 1}) + b"{\n", "line 2"),
        (line(None, {"loss": 1}), "line 1 has no run, no integer step or no metrics"),
        (line(True, {"loss": 1}), "line 1 has no run, no integer step or no metrics"),
        (line(0, [1]), "line 1 has no run, no integer step or no metrics"),
        (line(0, {"loss": 1}, run_id=7), "line 1 has no run, no integer step or no metrics"),
        (line(0, {"loss": 1}) * 2, "loss"),
        (line(1, {"loss": 1}) + line(0, {"loss": 1}), "loss"),
        (line(0, {"tokens": 2**53 + 1}), "'tokens' is an integer that float64 cannot hold"),
        (line(0, {"loss": 1}) + line(1, {"loss": 1}, run_id="c"), "contains several runs"),
    ],
)
def test_a_damaged_run_is_refused_by_file_and_line(tmp_path: Path, data: bytes, words: str) -> None:
    write(tmp_path, data)
    with pytest.raises(GateError) as refused:
        read(tmp_path)
    assert words in str(refused.value)


def test_a_folder_without_lines_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "trackio").mkdir()
    (tmp_path / "trackio" / "trial.db").write_bytes(b"SQLite format 3\0")
    with pytest.raises(MissingOutputError, match="no run of trackio in lines") as refused:
        read(tmp_path)
    assert "TRACKIO_STORAGE_MODE: jsonl" in refused.value.hint


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    write(tmp_path, line(0, {"loss": 1}))
    with pytest.raises(EvidenceError, match=r"no logged number matches train\.metrics\.trackio_k"):
        read(tmp_path, "eval/*")


def test_a_link_in_place_of_a_folder_or_a_file_leads_nowhere(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", line(0, {"loss": 1}))
    here = tmp_path / "trackio" / "inbox"
    here.mkdir(parents=True)
    (here / "d0dc").symlink_to(elsewhere / "inbox" / "d0dc")
    with pytest.raises(EvidenceError, match="trackio/inbox/d0dc: cannot be read"):
        read(tmp_path)
    (here / "d0dc").unlink()
    write(tmp_path, writer="own")
    (here / "own" / "00000000.jsonl").symlink_to(elsewhere / "inbox" / "d0dc" / "00000000.jsonl")
    with pytest.raises(GateError):
        read(tmp_path)


def test_a_name_of_a_writer_is_never_shown_raw(tmp_path: Path) -> None:
    """Whoever writes there chooses it, and it stands in the message."""
    (write(tmp_path, line(0, {"loss": 1})) / "inbox" / "\x1b[2K\n::x").write_text("")
    with pytest.raises(EvidenceError) as refused:
        read(tmp_path)
    assert refused.value.message.isprintable()


def test_folder_and_keys_are_those_of_the_settings(harness: HarnessFolder) -> None:
    harness.whole()
    write(harness.path.parent, line(0, {"loss": 0.5, "seconds": 3.0}))
    metrics = MetricsSettings(trackio="trackio", trackio_keys=("lo*",))
    assert collected_names(harness, metrics) == ["loss", "trackio.loss"]
