"""Lines in a folder: many writers, joined files, and lines that are none."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from history_table import FIRST, NOW, keep, line, rollback

from gate.fleet.reading import Reading, WhyLeftOut
from gate.fleet.stores import FolderStore, append, compact, mirror
from gate.system.files.files import LocalFiles
from gate.text.json_text import canonical_json
from gate.verdict.history_lines import HistoryLine, line_bytes

START = date(2000, 1, 1)
LATER = date(2100, 1, 1)
WRITER = """
import sys
from datetime import timedelta
from pathlib import Path
from history_table import FIRST, line
from gate.fleet.stores import FolderStore, append
from gate.system.files.files import LocalFiles

store = FolderStore(Path(sys.argv[1]), LocalFiles())
for number in range(25):
    append(store, line(FIRST + timedelta(seconds=number), number, runner=sys.argv[2]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "history", LocalFiles())


def read(
    folder: FolderStore, now: datetime = NOW
) -> tuple[list[HistoryLine], dict[WhyLeftOut, int]]:
    reading = Reading(folder, FIRST - timedelta(days=1), now)
    found = [moment.line for moment in reading.lines()]
    return [one for one in found if isinstance(one, HistoryLine)], dict(reading.left_out)


def files(folder: FolderStore) -> list[str]:
    return list(folder.names(START))


def test_two_writers_at_once_lose_no_line(folder: FolderStore, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(sys.path)}
    writers = [
        subprocess.Popen(
            (sys.executable, "-c", WRITER, str(tmp_path / "history"), name), env=environment
        )
        for name in ("one", "two")
    ]
    # beside them, files are joined again and again, and read
    while any(writer.poll() is None for writer in writers):
        compact(folder, START, LATER)
        read(folder)
    assert [writer.wait() for writer in writers] == [0, 0]
    lines, left_out = read(folder)
    assert (len(lines), left_out) == (50, {})
    assert [one.judged_at for one in lines] == sorted(one.judged_at for one in lines)


def test_a_line_that_is_written_twice_is_there_once(folder: FolderStore) -> None:
    assert append(folder, line(NOW, 1)) == append(folder, line(NOW, 1))
    assert len(files(folder)) == 1


def test_joined_files_hold_the_same_lines_in_order(folder: FolderStore) -> None:
    for hour in (5, 1, 3):
        append(folder, line(FIRST + timedelta(hours=hour), hour))
    before = read(folder)
    assert compact(folder, START, LATER) == 2
    (batch,) = files(folder)
    assert batch.startswith("2026-11-06/batch-")
    assert read(folder) == before
    # a late line beside the batch, and both joined again
    append(folder, line(FIRST + timedelta(hours=2), 2))
    assert [one.commit[-1] for one in read(folder)[0]] == ["1", "2", "3", "5"]
    assert compact(folder, START, LATER) == 1
    assert [one.commit[-1] for one in read(folder)[0]] == ["1", "2", "3", "5"]
    assert compact(folder, START, LATER) == 0


def test_a_call_that_ended_before_it_removed_anything_doubles_no_line(folder: FolderStore) -> None:
    keep(folder, *(line(FIRST + timedelta(hours=hour), hour) for hour in range(3)))
    for hour in range(3):
        append(folder, line(FIRST + timedelta(hours=hour), hour))
    assert len(read(folder)[0]) == 3


def test_newer_days_are_left_alone(folder: FolderStore) -> None:
    for seconds in range(2):
        append(folder, line(FIRST + timedelta(seconds=seconds), 1))
        append(folder, line(NOW - timedelta(seconds=seconds), 1))
    assert compact(folder, START, NOW.date()) == 1
    assert len(files(folder)) == 3


GOOD = line_bytes(line(FIRST, 1))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (GOOD[:200], WhyLeftOut.BROKEN),
        (b"{}", WhyLeftOut.FOREIGN),
        (b"null", WhyLeftOut.BROKEN),
        (b"\xff\xfe", WhyLeftOut.BROKEN),
        (b"[" * 900, WhyLeftOut.BROKEN),
        (GOOD.replace(b"history/2", b"history/3"), WhyLeftOut.FOREIGN),
        (GOOD.replace(b'"kind":"verdict"', b'"kind":"other"'), WhyLeftOut.BROKEN),
        (GOOD.replace(b'"sealed":false', b'"sealed":false,"sealed":true'), WhyLeftOut.BROKEN),
        (GOOD.replace(b'"spread":0.0', b'"spread":NaN'), WhyLeftOut.BROKEN),
        (GOOD.replace(b'"spread":0.0', b'"spread":1e999'), WhyLeftOut.BROKEN),
        (GOOD.replace(b"reproduced", b"splendid"), WhyLeftOut.BROKEN),
        (GOOD.replace(b'"passes":true', b'"passes":1'), WhyLeftOut.BROKEN),
        (b'"' + b"x" * 9000, WhyLeftOut.TOO_LONG),
        (line_bytes(line(NOW + timedelta(hours=2), 1)), WhyLeftOut.FUTURE),
        (GOOD.replace(b"+00:00", b""), WhyLeftOut.BROKEN),
    ],
)
def test_a_line_that_is_none_is_left_out_with_its_reason(
    folder: FolderStore, row: bytes, why: WhyLeftOut
) -> None:
    after = line_bytes(line(FIRST, 2))
    folder.write("2026-11-06/x.jsonl", row + b"\n" + after + b"\n")
    lines, left_out = read(folder)
    assert [one.commit[-1] for one in lines] == ["2"]
    assert left_out == {why: 1}


def test_a_torn_last_line_leaves_the_others(folder: FolderStore) -> None:
    folder.write("2026-11-06/x.jsonl", GOOD + b"\n" + line_bytes(line(FIRST, 2))[:-40])
    lines, left_out = read(folder)
    assert (len(lines), left_out) == (1, {WhyLeftOut.BROKEN: 1})


def test_a_line_of_another_form_is_read_by_the_strict_reader(folder: FolderStore) -> None:
    # spaces, and a text that looks like a key
    text = canonical_json(line(FIRST, 1, author='a":"b').model_dump(mode="json", exclude_none=True))
    folder.write("2026-11-06/x.jsonl", text.replace(b",", b", ") + b"\n")
    lines, left_out = read(folder)
    assert ([one.author for one in lines], left_out) == (['a":"b'], {})


def test_other_files_and_links_in_the_folder_are_no_lines(
    folder: FolderStore, tmp_path: Path
) -> None:
    append(folder, line(FIRST, 1))
    day = tmp_path / "history" / "2026-11-06"
    (day / "notes.txt").write_text("hello")
    (tmp_path / "history" / "README").write_text("hello")
    assert len(read(folder)[0]) == 1


def test_a_mirror_copies_what_it_lacks(folder: FolderStore, tmp_path: Path) -> None:
    copies = FolderStore(tmp_path / "copies", LocalFiles())
    append(folder, line(FIRST, 1))
    append(folder, rollback(3, succeeded=True))
    assert mirror(folder, START, copies) == 2
    assert mirror(folder, START, copies) == 0
    assert files(copies) == files(folder)
    assert mirror(folder, FIRST.astimezone(UTC).date(), copies) == 0
