"""TensorBoard event files, written here by hand so that each byte can be wrong."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from collected_metrics import collected_names
from each_row import each_row
from event_files import event, plain, record
from harness_folder import HarnessFolder
from hypothesis import given
from hypothesis import strategies as st
from protobuf_bytes import number, text, varint

from gate.errors import EvidenceError
from gate.evidence import tensorboard
from gate.evidence.run_evidence import MetricSeries, MetricSource
from gate.evidence.tensorboard import (
    MalformedEventError,
    crc32c,
    scalars,
    tensorboard_series,
)
from gate.settings.train_sections import MetricsSettings
from gate.system.files.files import LocalFiles


def losses(*values: float) -> bytes:
    version = record(text(3, b"brain.Event:2"))
    return version + b"".join(
        record(event(step, b"loss", plain(value))) for step, value in enumerate(values)
    )


def read(
    tmp_path: Path, contents: dict[str, bytes], *tags: str
) -> dict[str, list[tuple[int, float]]]:
    return {
        series.name: [(point.step, point.value) for point in series.points]
        for series in read_series(tmp_path, contents, *tags)
    }


def read_series(tmp_path: Path, contents: dict[str, bytes], *tags: str) -> tuple[MetricSeries, ...]:
    for name, content in contents.items():
        path = tmp_path / "runs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tensorboard_series(LocalFiles(), tmp_path / "runs", "runs", tags or ("*",))


def test_the_checksum_is_the_one_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_plain_scalars_are_float32_at_full_precision(tmp_path: Path) -> None:
    (series,) = read_series(tmp_path, {"events.out.tfevents.1.host": losses(0.1, 0.2)})
    assert (series.name, series.dtype) == ("tensorboard.loss", "float32")
    assert series.source is MetricSource.TENSORBOARD
    assert series.points[0].value == struct.unpack("<f", struct.pack("<f", 0.1))[0]


@pytest.mark.parametrize(
    ("tensor", "value", "dtype"),
    [
        (number(1, 1) + text(5, struct.pack("<f", 0.5)), 0.5, "float32"),
        (number(1, 2) + text(6, struct.pack("<d", 0.1)), 0.1, "float64"),
        (number(1, 2) + text(2, b"") + text(4, struct.pack("<d", 0.1)), 0.1, "float64"),
        (number(1, 1) + varint(5 << 3 | 5) + struct.pack("<f", 2.0), 2.0, "float32"),
    ],
    ids=["float", "double", "raw", "unpacked"],
)
def test_scalars_may_be_tensors(tensor: bytes, value: float, dtype: str) -> None:
    (found,) = scalars(event(3, b"a", text(8, tensor)))
    assert (found.tag, found.step, found.value, found.dtype) == ("a", 3, value, dtype)


@each_row(
    "value",
    [
        text(5, b"a histogram"),
        text(8, number(1, 7) + text(8, b"some text")),
        text(8, number(1, 1) + text(2, text(2, number(1, 1))) + text(5, struct.pack("<f", 1.0))),
        text(8, number(1, 1) + text(5, struct.pack("<2f", 1.0, 2.0))),
        text(8, b""),
    ],
    ids=["histogram", "text", "vector of one", "two numbers", "no type"],
)
def test_what_is_no_scalar_is_passed_over(value: bytes) -> None:
    assert scalars(event(1, b"a", value)) == ()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_infinity_and_nan_stay_what_they_are(tmp_path: Path, value: float) -> None:
    found = read(tmp_path, {"x.tfevents.1": losses(value)})["tensorboard.loss"]
    assert str(found) == str([(0, value)])


def test_folders_between_name_and_events_do_not_matter(tmp_path: Path) -> None:
    found = read(tmp_path, {"Nov21_12-00_host/x.tfevents.1": losses(1.0)})
    assert list(found) == ["tensorboard.loss"]


def test_folders_below_the_common_one_are_part_of_the_name(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {"a/x.tfevents.1": losses(1.0), "a/b/x.tfevents.2": losses(2.0), "a/note.txt": b"x"},
    )
    assert found == {"tensorboard.loss": [(0, 1.0)], "tensorboard.b/loss": [(0, 2.0)]}


def test_folders_beside_each_other_share_their_parent(tmp_path: Path) -> None:
    found = read(tmp_path, {"a/x.tfevents.1": losses(1.0), "b/x.tfevents.2": losses(2.0)})
    assert list(found) == ["tensorboard.a/loss", "tensorboard.b/loss"]


def test_folder_and_tags_are_those_of_the_settings(harness: HarnessFolder) -> None:
    harness.whole()
    folder = harness.path.parent / "events"
    folder.mkdir()
    other = record(event(1, b"seconds", plain(9.0)))
    (folder / "events.out.tfevents.1").write_bytes(losses(0.5, 0.25) + other)
    metrics = MetricsSettings(tensorboard="events", tensorboard_tags=("lo*",))
    assert collected_names(harness, metrics) == ["loss", "tensorboard.loss"]


def test_only_matching_tags_count(tmp_path: Path) -> None:
    both = losses(1.0) + record(event(0, b"time/step", plain(0.3)))
    assert list(read(tmp_path, {"x.tfevents.1": both}, "lo*")) == ["tensorboard.loss"]


def test_without_a_matching_tag_nothing_is_compared(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"runs: no scalar there matches"):
        read(tmp_path, {"x.tfevents.1": losses(1.0)}, "other")


def test_an_image_is_passed_over_and_a_scalar_beside_it_is_not(tmp_path: Path) -> None:
    image = text(1, text(1, b"image") + text(4, bytes(tensorboard.MAX_CHECKED_BYTES)))
    merged = record(text(5, image) + event(1, b"loss", plain(2.0)))
    alone = record(text(5, image))
    assert read(tmp_path, {"x.tfevents.1": losses(1.0) + merged + alone}) == {
        "tensorboard.loss": [(0, 1.0), (1, 2.0)]
    }


def test_a_record_of_no_event_s_size_is_passed_over(tmp_path: Path) -> None:
    # masked_crc is too slow for it, and nobody looks at its checksum
    huge = bytes(tensorboard.MAX_EVENT_BYTES + 1)
    size = struct.pack("<Q", len(huge))
    huge = size + struct.pack("<I", tensorboard.masked_crc(size)) + huge + bytes(4)
    assert read(tmp_path, {"x.tfevents.1": huge + losses(1.0)}) == {"tensorboard.loss": [(0, 1.0)]}


@each_row(
    ("content", "message"),
    [
        (losses(1.0)[:-1], "is truncated"),
        (losses(1.0) + b"abc", "is truncated"),
        (b"\x01" + losses(1.0)[1:], "the record at byte 0 has a wrong length checksum"),
        (losses(1.0)[:-5] + b"\0" + losses(1.0)[-4:], "has a wrong checksum"),
        (record(b"\x0b"), "is not an event: wire type 3 is not in use"),
        (record(b"\x80"), "is not an event: an integer is not terminated"),
        (record(b"\x80" * 11), "is not an event: an integer is not terminated"),
        (record(b"\x2a\x05x"), "is not an event: a field ends beyond its message"),
        (record(event(1, b"\xff", plain(1.0))), "is not an event: a tag is not UTF-8"),
        (record(event(-1, b"a", plain(1.0))), "has a step below 0"),
        (record(event(1, b"a\x1b", plain(1.0))), "not printable"),
        (losses(1.0) + losses(2.0), "is given for step 0 twice"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        read(tmp_path, {"x.tfevents.1": content})
    assert message in caught.value.message
    assert caught.value.message.startswith("runs")


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="runs: the script wrote no TensorBoard event file"):
        read(tmp_path, {})


def test_a_file_instead_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("x")
    with pytest.raises(EvidenceError, match="runs: cannot be read"):
        read(tmp_path, {})


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "x.tfevents.1").write_bytes(losses(1.0))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "linked").symlink_to(secret)
    with pytest.raises(EvidenceError, match="runs: linked is a link that leads out of it"):
        read(tmp_path, {})
    (tmp_path / "runs" / "linked").unlink()
    (tmp_path / "runs" / "x.tfevents.1").symlink_to(secret / "x.tfevents.1")
    with pytest.raises(EvidenceError, match="cannot be read"):
        read(tmp_path, {})


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MAX_FILES", 1)
    with pytest.raises(EvidenceError, match="more than 1 event files"):
        read(tmp_path, {"x.tfevents.1": b"", "x.tfevents.2": b""})


def test_too_many_records_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MAX_RECORDS", 2)
    with pytest.raises(EvidenceError, match="more than 2 records"):
        read(tmp_path, {"x.tfevents.1": losses(1.0, 2.0, 3.0)})


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_parse_or_be_refused(data: bytes) -> None:
    with suppress(MalformedEventError):
        assert all(len(scalar.tag) <= len(data) for scalar in scalars(data))


@given(st.integers(0, 2**53), st.floats(width=32, allow_nan=False), st.text(min_size=1))
def test_what_is_written_is_read(step: int, value: float, tag: str) -> None:
    (found,) = scalars(event(step, tag.encode("utf-8", "replace"), plain(value)))
    assert (found.step, found.value) == (step, value)
