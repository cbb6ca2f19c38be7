"""Offline runs of Weights & Biases, written here by hand so that each byte can be wrong."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
from collected_metrics import collected_names
from each_row import each_row
from event_files import FIRST, FULL, HEAD, LAST, MIDDLE, history, log, piece
from growth import grows_too_fast
from harness_folder import HarnessFolder
from hypothesis import given
from hypothesis import strategies as st
from protobuf_bytes import text

from gate.errors import EvidenceError, MissingOutputError
from gate.evidence.logged_values import ReadMetrics
from gate.evidence.run_evidence import MetricSource
from gate.evidence.wandb_runs import BLOCK_BYTES, wandb_metrics
from gate.settings.train_sections import MetricsSettings
from gate.system.files.files import LocalFiles

RUN = "offline-run-20261126_154251-82alu6jm"


def read(folder: Path, data: bytes, *keys: str) -> dict[str, list[tuple[int, float]]]:
    found = metrics(folder, data, *keys).series
    assert {series.source for series in found} <= {MetricSource.WANDB}
    return {series.name: list(series.points.pairs()) for series in found}


def metrics(folder: Path, data: bytes, *keys: str) -> ReadMetrics:
    place = folder / "wandb" / RUN
    place.mkdir(parents=True, exist_ok=True)
    (place / "run-82alu6jm.wandb").write_bytes(data)
    return wandb_metrics(LocalFiles(), folder / "wandb", "wandb", keys or ("*",))


def test_numbers_are_read_step_by_step_and_nothing_else(tmp_path: Path) -> None:
    first = history(0, loss=0.1, text="x", media={"_type": "histogram", "bins": [1]}, flag=True)
    second = history(1, loss=1 / 3, **{"eval/acc": 1}, deep={"a": {"b": 2.5}, "c": "x"}, rows=[1])
    other = text(3, b"\x08\x01")
    assert read(tmp_path, log(first, other, second)) == {
        "wandb.deep.a.b": [(1, 2.5)],
        "wandb.eval/acc": [(1, 1.0)],
        "wandb.flag": [(0, 1.0)],
        "wandb.loss": [(0, 0.1), (1, 1 / 3)],
        "wandb.rows.0": [(1, 1.0)],
    }


def test_what_is_no_number_is_passed_over_by_name(tmp_path: Path) -> None:
    record = history(
        0,
        loss=0.5,
        acc="0.93",
        phase="train",
        image={"_type": "image-file"},
        table=list(range(101)),
        **{"n" * 250: {"a": 1}},
    )
    long = history(1, loss=0.25, text="x" * 300_000)
    settings = text(5, b"c" * 600_000)
    found = metrics(tmp_path, log(record, settings, long))
    assert {(one.name, one.why.value) for one in found.passed_over} == {
        ("acc", "is a number in quotes"),
        ("phase", "is text"),
        ("image", "is media or a table"),
        ("table", "has too many values"),
        ("n" * 200, "has a name that is too long or not printable"),
        (f"the record at byte {len(log(record, settings))}", "is too long to read"),
    }
    some = metrics(tmp_path / "some", log(record), "loss", "ph*")
    assert [one.name for one in some.passed_over] == ["phase"]


@each_row(
    ("pattern", "names"),
    [
        ("*loss", ["eval", "image"]),
        ("eval.*", ["eval"]),
        ("eval.deep.loss", ["eval"]),
        ("ev*", ["eval"]),
        ("eva", []),
        ("train/*", []),
    ],
)
def test_what_can_hold_a_chosen_name_is_never_passed_over_in_silence(
    tmp_path: Path, pattern: str, names: list[str]
) -> None:
    wide = {str(place): place for place in range(101)}
    record = history(0, kept=0.5, eval=wide, image={"_type": "image-file"}, phase="x")
    long = history(1, kept=0.25, text="x" * 300_000)
    found = metrics(tmp_path, log(record, long), "kept", pattern)
    place = f"the record at byte {len(log(record))}"
    assert [one.name for one in found.passed_over] == [*names, place]


def test_an_integer_that_float64_would_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="'tokens' is an integer that float64 cannot hold"):
        read(tmp_path, log(history(0, tokens=2**53 + 1)))


def test_nan_stays_nan_for_the_verdict_to_refuse(tmp_path: Path) -> None:
    (points,) = read(tmp_path, log(history(0, loss=math.nan))).values()
    assert math.isnan(points[0][1])


def test_records_go_over_blocks_and_long_ones_are_passed_over(tmp_path: Path) -> None:
    fillers = [history(step, loss=step / 7, note="x" * 20_000) for step in range(8)]
    huge = text(5, b"c" * 600_000)
    found = read(tmp_path, log(*fillers[:4], huge, *fillers[4:]))
    assert found == {"wandb.loss": [(step, step / 7) for step in range(8)]}


def test_a_block_ends_with_zeros_where_no_header_fits(tmp_path: Path) -> None:
    for gap in range(9):
        start = history(0, loss=0.5, note="")
        room = BLOCK_BYTES - len(HEAD) - 7 - gap
        padded = history(0, loss=0.5, note="x" * (room - len(start) - 6))
        while len(padded) < room:
            padded = history(0, loss=0.5, note="x" * (room - len(start) - 6 + room - len(padded)))
        folder = tmp_path / str(gap)
        found = read(folder, log(padded, history(1, loss=0.25)))
        assert found == {"wandb.loss": [(0, 0.5), (1, 0.25)]}, gap


def test_folder_and_keys_are_those_of_the_settings(harness: HarnessFolder) -> None:
    harness.whole()
    place = harness.path.parent / "logs" / RUN
    place.mkdir(parents=True)
    (place / "run-1.wandb").write_bytes(log(history(0, loss=0.5, seconds=3.0)))
    metrics = MetricsSettings(wandb="logs", wandb_keys=("lo*",))
    assert collected_names(harness, metrics) == ["loss", "wandb.loss"]


@each_row(
    ("data", "message"),
    [
        (b"", "is not an offline run of Weights & Biases"),
        (b":W&B\0\0\0", "is not an offline run of Weights & Biases"),
        (log(history(0, loss=1.0))[:-3], "the record at byte 7 is truncated"),
        (log(history(0, loss=1.0)) + b"\1\2", "is truncated"),
        (HEAD + piece(FIRST, b"x"), "the record at byte 7 is truncated"),
        (HEAD + piece(LAST, b"x"), "the piece at byte 7 is out of order"),
        (HEAD + piece(FIRST, b"x") + piece(FULL, b"x"), "is out of order"),
        (HEAD + piece(9, b"x"), "the record at byte 7 is truncated"),
        (log(text(2, text(1, b"\xff\xff"))), "is not a record of the client"),
        (log(text(2, text(1, text(1, b"a") + text(16, b"1e")))), "is not a record of the"),
        (log(text(2, text(1, text(1, b"\xff") + text(16, b"1")))), "is not a record of the"),
        (log(text(2, text(1, text(1, b"a") + text(16, b"[" * 99_999)))), "is not a record"),
        (
            log(text(2, text(1, text(1, b"a") + text(16, b"9" * 999)))),
            "an integer that float64 cannot hold",
        ),
        (log(history(1, loss=1.0), history(1, loss=2.0)), "step 1"),
        (log(history(2, loss=1.0), history(1, loss=2.0)), "step 1"),
    ],
)
def test_damage_is_an_error_that_names_the_place(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(EvidenceError) as raised:
        read(tmp_path, data)
    assert message in str(raised.value)
    assert "82alu6jm.wandb" in str(raised.value) or "wandb: " in str(raised.value)


def test_a_flipped_bit_is_a_wrong_checksum(tmp_path: Path) -> None:
    data = bytearray(log(history(0, loss=0.5)))
    data[-5] ^= 1
    with pytest.raises(EvidenceError, match="wrong checksum"):
        read(tmp_path, bytes(data))


def test_no_run_and_several_runs_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingOutputError) as missing:
        wandb_metrics(LocalFiles(), tmp_path / "wandb", "wandb", ("*",))
    assert "train.env: {WANDB_MODE: offline}" in missing.value.hint
    with pytest.raises(MissingOutputError, match="no logged number matches"):
        read(tmp_path, log(history(0, loss=1.0)), "other*")
    second = tmp_path / "wandb" / "offline-run-2"
    second.mkdir()
    (second / "run-2.wandb").write_bytes(log())
    with pytest.raises(EvidenceError, match="contains 2 runs of the client") as several:
        read(tmp_path, log(history(0, loss=1.0)))
    assert "rank 0" in several.value.hint


def test_a_link_to_a_run_is_none(tmp_path: Path) -> None:
    read(tmp_path, log(history(0, loss=1.0)))
    (tmp_path / "wandb" / "run-latest").symlink_to(RUN)
    assert read(tmp_path, log(history(0, loss=1.0))) == {"wandb.loss": [(0, 1.0)]}


def test_pieces_without_data_are_read_in_a_time_that_grows_as_their_number(tmp_path: Path) -> None:
    def many(pieces: int) -> None:
        out = bytearray(HEAD + piece(FIRST, b""))
        for _ in range(pieces):
            room = BLOCK_BYTES - len(out) % BLOCK_BYTES
            out += b"\0" * room * (room < 7) + piece(MIDDLE, b"")
        with pytest.raises(EvidenceError, match="the record at byte 7 is truncated"):
            read(tmp_path, bytes(out))

    assert not grows_too_fast(many, 50_000)


@given(st.binary(max_size=300), st.integers(0, 200))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    sound = log(history(0, loss=0.5), history(1, loss=0.25))
    for data in (HEAD + piece(FULL, noise), sound[:place] + noise + sound[place:]):
        with suppress(EvidenceError):
            read(folder, data)
