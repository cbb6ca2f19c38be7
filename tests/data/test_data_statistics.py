"""Simple statistics of data: right for sound files, none for broken ones, never a fault."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from real_reader import real_reader

from gate.data.data_sets import MAX_STATISTICS, DataStatistics
from gate.data.statistics import data_statistics
from gate.data.tables import Moments, ReadingBudget, ReadingLimits
from gate.pipelines.reader_questions import DataStatisticsQuestion
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
RANDOM = np.random.default_rng(0)


def _of(source: Path, *, seconds: float = 0.0, **limits: int) -> tuple[DataStatistics, ...]:
    budget = ReadingBudget(ReadingLimits(**limits), lambda: seconds)
    return data_statistics(FILES, source, source.name, budget)


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _one(path: Path, data: bytes | str) -> DataStatistics:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    (found,) = _of(path)
    return found


# arrays


@each_row("dtype", ["float32", ">f8", "float16", "int64", "uint8", "bool"])
def test_an_array_of_any_real_type(tmp_path: Path, dtype: str) -> None:
    array = (RANDOM.random((40, 3)) * 9).astype(dtype)
    found = _one(tmp_path / "x.npy", _npy(array))
    assert (found.format, found.rows, found.rows_read, found.nan_share) == ("npy", 40, 40, 0)
    assert found.mean == pytest.approx(array.astype(float).mean(), rel=1e-12)
    assert found.deviation == pytest.approx(array.astype(float).std(), rel=1e-12)


def test_an_array_of_several_blocks_is_gathered_as_one(tmp_path: Path) -> None:
    # a mean far above the deviation: the naive sum of squares has no digit left there
    array = 1e9 + RANDOM.random(1_500_000)
    found = _one(tmp_path / "x.npy", _npy(array))
    assert found.mean == pytest.approx(array.mean(), rel=1e-14)
    assert found.deviation == pytest.approx((array - 1e9).std(), rel=1e-6)


def test_nan_are_counted_and_infinite_numbers_left_out(tmp_path: Path) -> None:
    found = _one(tmp_path / "x.npy", _npy(np.array([1.0, np.nan, 3.0, np.inf])))
    assert (found.mean, found.deviation, found.nan_share) == (2.0, 1.0, 0.25)


@pytest.mark.parametrize("array", [np.zeros((0, 4)), np.array([np.nan])])
def test_where_there_is_no_number_there_is_no_mean(tmp_path: Path, array: np.ndarray) -> None:
    found = _one(tmp_path / "x.npy", _npy(array))
    assert (found.rows, found.mean, found.deviation) == (len(array), None, None)


def test_numbers_that_overflow_have_no_deviation(tmp_path: Path) -> None:
    found = _one(tmp_path / "x.npy", _npy(np.array([1e308, -1e308])))
    assert (found.mean, found.deviation) == (0.0, None)


def test_labels_are_counted(tmp_path: Path) -> None:
    found = _one(tmp_path / "y.npy", _npy(np.array([3, 3, 7, 3, 7])))
    assert found.classes == {"3": 3, "7": 2}
    assert _one(tmp_path / "y.npy", _npy(np.arange(500))).classes == {}


def test_the_arrays_of_an_archive_have_their_names(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "mini.npz", x=np.ones((4, 2)), y=np.array([1, 1, 0, 0]))
    x, y = _of(tmp_path / "mini.npz")
    assert (x.format, x.name, x.rows, x.mean, x.classes) == ("npz", "x", 4, 1.0, {})
    assert (y.name, y.rows, y.mean, y.classes) == ("y", 4, 0.5, {"0": 2, "1": 2})


def test_an_array_of_texts_has_rows_alone(tmp_path: Path) -> None:
    found = _one(tmp_path / "x.npy", _npy(np.array(["a", "b"])))
    assert (found.rows, found.mean, found.nan_share, found.classes) == (2, None, None, {})


def test_objects_are_left_out_and_no_pickle_is_read(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "mini.npz", objects=objects, x=np.ones(2), allow_pickle=True)
    assert [each.name for each in _of(tmp_path / "mini.npz")] == ["x"]
    np.save(tmp_path / "o.npy", objects, allow_pickle=True)
    assert _of(tmp_path / "o.npy") == ()


def test_a_limit_ends_the_reading(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2**20, 2)))
    (found,) = _of(tmp_path / "x.npy", array_bytes=2**23)
    assert (found.rows, found.rows_read, found.mean) == (2**20, 2**19, 1.0)


# tables


def test_a_table_with_a_header(tmp_path: Path) -> None:
    text = "\ufeffx,label,note\r\n1.5,cat,a\r\n2.5,dog,b\r\n,cat,c\r\nnan,cat,d\r\n"
    (tmp_path / "t.csv").write_text(text, newline="")
    x, label, note = _of(tmp_path / "t.csv")
    assert (x.name, x.rows, x.mean, x.nan_share, x.classes) == ("x", 4, 2.0, 0.5, {})
    assert (label.name, label.mean, label.classes) == ("label", None, {"cat": 3, "dog": 1})
    assert (note.name, note.rows, note.classes) == ("note", 4, {})


def test_a_table_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1;0\n2;1\n3;1\n4;1\n")
    first, second = _of(tmp_path / "t.csv")
    assert (first.name, first.rows, first.mean) == ("column 1", 4, 2.5)
    assert (second.name, second.classes) == ("column 2", {"0": 1, "1": 3})


def test_quoted_line_ends_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text('text\tx\n"a\nb"\t1\n"c\td"\t2\n')
    text, x = _of(tmp_path / "t.tsv")
    assert (text.name, x.rows, x.mean) == ("text", 2, 1.5)


def test_columns_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,x,\n1,2,3\n")
    assert [each.name for each in _of(tmp_path / "t.csv")] == ["x", "x (2)", "column 3"]


def test_rows_behind_the_limit_are_counted(tmp_path: Path) -> None:
    rows = [f'{number},"a\nb"\n' for number in range(20_000)]
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(rows))
    x, _ = _of(tmp_path / "t.csv", text_bytes=1000)
    assert (x.rows, x.rows_read) == (20_000, 8192)
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(rows).rstrip("\n"))
    assert _of(tmp_path / "t.csv", text_bytes=1000)[0].rows == 20_000


def test_json_lines_by_their_keys(tmp_path: Path) -> None:
    lines = [{"loss": 1.0, "ok": True, "text": "a"}, {"loss": None, "ok": True, "nested": [1]}]
    (tmp_path / "t.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    found = {each.name: each for each in _of(tmp_path / "t.jsonl")}
    assert (found["loss"].rows, found["loss"].mean, found["loss"].nan_share) == (2, 1.0, 0.5)
    assert (found["ok"].mean, found["ok"].classes) == (None, {"True": 2})
    assert (found["nested"].mean, found["nested"].classes) == (None, {})


def test_lines_behind_the_limit_are_counted(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"x": 1, "t": "\\""}\n' * 20_000)
    found = {each.name: each for each in _of(tmp_path / "t.jsonl", text_bytes=1000)}
    assert (found["x"].rows, found["x"].rows_read, found["x"].mean) == (20_000, 8192, 1.0)


def test_rows_of_files_behind_the_limit_are_counted_too(tmp_path: Path) -> None:
    rows = "".join(f"{number},{number}\n" for number in range(20_000))
    for name, heading in (("1.csv", "x,y\n"), ("2.csv", "x,y\n")):
        (tmp_path / name).write_text(heading + rows)
    x, _ = _of(tmp_path, text_bytes=1000)
    assert (x.name, x.rows, x.rows_read) == ("x", 40_000, 8192)
    for path in tmp_path.iterdir():
        path.write_text(rows)
    first, _ = _of(tmp_path, text_bytes=1000)
    assert (first.name, first.rows, first.rows_read) == ("column 1", 40_000, 8192)


def test_lines_of_files_behind_the_limit_are_counted_too(tmp_path: Path) -> None:
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / name).write_text('{"x": 1}\n' * 20_000)
    (x,) = _of(tmp_path, text_bytes=1000)
    assert (x.rows, x.rows_read, x.mean) == (40_000, 8192, 1.0)


# folders


def test_images_are_counted_by_folder_and_not_opened(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/cat/2.PNG", "train/dog/1.jpg", "read.me"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no image")
    images, jpg, png = _of(tmp_path)
    assert (images.format, images.rows) == ("images", 3)
    assert images.classes == {"train/cat": 2, "train/dog": 1}
    assert [(each.name, each.rows) for each in (jpg, png)] == [(".jpg", 1), (".png", 2)]


def test_images_beside_each_other_have_no_class(tmp_path: Path) -> None:
    (tmp_path / "1.png").touch()
    (found,) = _of(tmp_path)
    assert (found.rows, found.classes) == (1, {})


def test_files_of_one_format_count_together(tmp_path: Path) -> None:
    arrays = [RANDOM.random(size) for size in (3, 500, 1)]
    for number, array in enumerate(arrays):
        (tmp_path / "deep" / str(number)).mkdir(parents=True)
        np.save(tmp_path / "deep" / str(number) / "x.npy", array)
    (found,) = _of(tmp_path)
    together = np.concatenate(arrays)
    assert found.rows == 504
    assert found.mean == pytest.approx(together.mean(), rel=1e-13)
    assert found.deviation == pytest.approx(together.std(), rel=1e-13)


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside.npy"
    np.save(outside, np.ones(3))
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.npy").symlink_to(outside)
    (data / "loop").symlink_to(".")
    assert _of(data) == ()


def test_there_are_fifty_at_most(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",".join(map(str, range(90))) + "\n")
    np.save(tmp_path / "x.npy", np.ones(3))
    assert len(_of(tmp_path)) == MAX_STATISTICS


def test_without_time_nothing_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    clock = iter([0.0, *[1000.0] * 9])
    budget = ReadingBudget(ReadingLimits(), lambda: next(clock))
    assert data_statistics(FILES, tmp_path / "x.npy", "x.npy", budget) == ()


def test_where_the_time_ends_meanwhile_nothing_is_told(tmp_path: Path) -> None:
    for number in range(9):
        np.save(tmp_path / f"{number}.npy", np.ones(3))
    clock = iter([*[0.0] * 6, *[1000.0] * 99])
    assert (
        data_statistics(
            FILES, tmp_path, "mini", ReadingBudget(ReadingLimits(), lambda: next(clock))
        )
        == ()
    )


def test_more_names_than_anyone_looks_at(tmp_path: Path) -> None:
    for name in ("1.png", "a/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert _of(tmp_path, max_names=4) == ()
    assert _of(tmp_path, max_names=5)[0].rows == 3


def test_a_file_is_told_by_the_name_that_it_has_for_the_training(tmp_path: Path) -> None:
    (tmp_path / "0a1b").write_bytes(_npy(np.ones(3)))
    budget = ReadingBudget(ReadingLimits(), lambda: 0.0)
    (found,) = data_statistics(FILES, tmp_path / "0a1b", "x.npy", budget)
    assert found.rows == 3
    assert _of(tmp_path / "0a1b") == ()


# broken files


def _bomb() -> bytes:
    """A header that promises more than there is."""
    good = _npy(np.ones(3))
    return good.replace(b"(3,)", b"(9" + b"9" * 18 + b",)").replace(b" " * 18 + b"\n", b"\n")


BROKEN = {
    "empty.npy": b"",
    "text.npy": b"no array",
    "short.npy": _npy(np.ones(100))[:-1],
    "huge.npy": _bomb(),
    "negative.npy": _npy(np.ones(3)).replace(b"(3,)", b"(-3,"),
    "header.npy": b"\x93NUMPY\x01\x00\x04\x00((((",
    "text.npz": b"PK\x03\x04",
    "binary.csv": b"\x00\xff,\n\x00",
    "ragged.csv": b"a,b\n1\n1,2,3\n",
    "quote.csv": b'a,b\n"1,2',
    "list.jsonl": b"[1]\n",
    "text.jsonl": b"{\n}\n",
    "deep.jsonl": b'{"a":' + b"[" * 100_000,
    "number.jsonl": b'{"a": 1' + b"0" * 400 + b"}\n",
    # each half would be a row
    "line.jsonl": b'{"a": 1}'.ljust(2**20) + b'{"a": 2}\n',
}


@each_row("name", BROKEN)
def test_a_broken_file_has_no_statistics_and_others_keep_theirs(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BROKEN[name])
    np.save(tmp_path / "sound.npy", np.ones(3))
    assert [each.rows for each in _of(tmp_path)] == [3]


def test_a_zip_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    header = _npy(np.zeros(0)).replace(b"(0,)", b"(%d,)" % 2**27).replace(b" " * 8 + b"\n", b"\n")
    length = int.from_bytes(header[8:10], "little") + len(header) - len(_npy(np.zeros(0)))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        data = header[:8] + length.to_bytes(2, "little") + header[10:] + bytes(2**27)
        archive.writestr("x.npy", data)
    (found,) = _of(tmp_path / "x.npz", array_bytes=2**25)
    assert (found.rows, found.rows_read) == (2**27, 2**22)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(0, 50))
def test_moments_do_not_depend_on_where_the_blocks_end(values: list[float], cut: int) -> None:
    whole, parts = Moments(), Moments()
    whole.add(np.array(values))
    for piece in (values[:cut], values[cut:]):
        parts.add(np.array(piece, dtype=float))
    assert parts.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-9)
    assert parts.deviation == pytest.approx(whole.deviation, rel=1e-6, abs=1e-6)


def test_the_confined_process_answers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, content in BROKEN.items():
        (data / name).write_bytes(content)
    np.savez(data / "mini.npz", x=np.full((1000, 1000), 2.5))
    with real_reader() as reader:
        (found,) = reader.ask(DataStatisticsQuestion(path=data))
    assert (found.name, found.rows, found.mean, found.deviation) == ("x", 1000, 2.5, 0.0)
