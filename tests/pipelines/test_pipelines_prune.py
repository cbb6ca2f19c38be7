"""Which lines of a history stay, by class and age, and that nothing else goes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from history_table import line, rollback
from oci_double import OciDouble
from s3_server import LOGIN, s3_server

from gate.errors import SettingsError
from gate.fleet.reading import Reading, WhyLeftOut
from gate.fleet.remote_stores import opened_store
from gate.fleet.retention import LineClass, Retention
from gate.fleet.stores import FolderStore, append, compact
from gate.pipelines.fleet import FleetCall, local_folder
from gate.pipelines.prune import Pruned, prune
from gate.system.files.files import LocalFiles
from gate.verdict.history_lines import HistoryLine, RollbackLine, line_bytes
from gate.verdict.verdict import Outcome

FILES = LocalFiles()
START = date(2020, 1, 1)
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
RETENTION = Retention(today=NOW.date(), days=90, sealed_days=400)
SEALED = {"sealed": True}
CHANGED = {"sealed": True, "outcome": Outcome.BASELINE_CHANGE}


def days_ago(days: int) -> datetime:
    return NOW - timedelta(days=days)


def rolled_back(days: int) -> RollbackLine:
    return rollback(1, succeeded=True).model_copy(update={"judged_at": days_ago(days).isoformat()})


# by the number in the commit: 1 to 6 stay and 10 to 14 go
LINES = (
    line(days_ago(10), 6, **SEALED),
    line(days_ago(90), 1),
    line(days_ago(400), 2, **SEALED),
    line(days_ago(1500), 3, **CHANGED),
    # the newest verdict of a gate that has been silent for years, and its last good one
    line(days_ago(1200), 4, gate_id="quiet"),
    line(days_ago(1300), 5, gate_id="quiet", **SEALED),
    line(days_ago(91), 10),
    line(days_ago(401), 11, **SEALED),
    line(days_ago(1500), 12, outcome=Outcome.BASELINE_CHANGE),
    line(days_ago(1301), 13, gate_id="quiet", **SEALED),
    line(days_ago(91), 14, outcome=Outcome.CODE_DRIFT, passes=False),
)
ROLLBACKS = rolled_back(399), rolled_back(401)


def call(place: str | Path, cache: Path | None = None) -> FleetCall:
    days = (NOW.date() - START).days
    return FleetCall(
        place=str(place), days=days, now=NOW, variables=LOGIN, files=FILES, cache=cache
    )


def pruned(place: str | Path, *, dry_run: bool = False) -> Pruned:
    return prune(call(place), RETENTION, dry_run=dry_run)


def left(place: str | Path) -> list[int]:
    """The numbers of the commits whose lines are there; -1 is a rollback's."""
    with local_folder(call(place)) as folder:
        found = [moment.line for moment in Reading(folder, days_ago(2000), NOW).lines()]
    return sorted(int(one.commit, 16) if isinstance(one, HistoryLine) else -1 for one in found)


@pytest.fixture
def history(tmp_path: Path) -> FolderStore:
    folder = FolderStore(tmp_path / "history", FILES)
    for one in (*LINES, *ROLLBACKS):
        append(folder, one)
    return folder


@pytest.mark.parametrize("joined", [False, True])
def test_what_is_past_its_time_goes_and_what_a_rollback_needs_stays(
    history: FolderStore, tmp_path: Path, *, joined: bool
) -> None:
    if joined:
        compact(history, START, NOW.date())
    found = pruned(tmp_path / "history")
    assert left(tmp_path / "history") == [-1, 1, 2, 3, 4, 5, 6]
    assert found.dropped == Counter({LineClass.OTHER: 3, LineClass.SEALED: 3})
    # of days that lost a line, or could have
    assert found.kept == Counter({LineClass.NEWEST: 2, LineClass.BASELINE: 1, LineClass.SEALED: 2})
    again = pruned(tmp_path / "history")
    assert (again.dropped, again.kept) == ({}, found.kept)


def test_a_dry_run_counts_the_same_and_removes_nothing(
    history: FolderStore, tmp_path: Path
) -> None:
    before = {name: history.read(name) for name in history.names(START)}
    assert pruned(tmp_path / "history", dry_run=True).dropped == {
        LineClass.OTHER: 3,
        LineClass.SEALED: 3,
    }
    assert {name: history.read(name) for name in history.names(START)} == before


def test_lines_of_another_schema_stay_and_broken_ones_go_with_the_rest(
    history: FolderStore, tmp_path: Path
) -> None:
    usual = line_bytes(line(days_ago(100), 20))
    foreign = usual.replace(b"history/2", b"history/3")
    history.write("2026-08-18/x.jsonl", b"\n".join((usual, foreign, usual[:100], b"")))
    found = pruned(tmp_path / "history")
    assert (found.kept[LineClass.FOREIGN], found.dropped[LineClass.OTHER]) == (1, 5)
    (rest,) = (name for name in history.names(date(2026, 8, 18)) if name.startswith("2026-08-18"))
    assert history.read(rest) == foreign + b"\n"


def test_a_line_of_the_future_is_not_the_newest_of_its_gate(
    history: FolderStore, tmp_path: Path
) -> None:
    claimed = line(NOW + timedelta(days=400), 99, gate_id="quiet", **SEALED)
    history.write("2023-05-06/x.jsonl", line_bytes(claimed) + b"\n")
    pruned(tmp_path / "history")
    assert left(tmp_path / "history") == [-1, 1, 2, 3, 4, 5, 6]


def test_a_link_in_a_day_is_left_alone_and_what_it_names_too(
    history: FolderStore, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(line_bytes(LINES[6]) + b"\n")
    day = tmp_path / "history" / str(days_ago(91).date())
    (day / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    pruned(tmp_path / "history")
    assert (day / "link.jsonl").is_symlink()
    assert (tmp_path / "elsewhere").exists()
    assert left(tmp_path / "history") == [-1, 1, 2, 3, 4, 5, 6]
    assert compact(history, START, NOW.date()) == 0


def test_a_registry_is_refused_before_anything_is_written() -> None:
    with OciDouble() as server:
        place = f"oci://{server.address}/team/history"
        store = opened_store(place, {}, FILES)
        for one in LINES[:7]:
            append(store, one)
        before = dict(server.blobs)
        with pytest.raises(SettingsError, match="can be neither joined nor removed"):
            pruned(place)
        assert server.blobs == before


def test_objects_in_s3_go_and_a_cache_forgets_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    with s3_server(tmp_path) as url:
        for name, value in {**LOGIN, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        place, cache = "s3://data/team/history", tmp_path / "cache"
        store = opened_store(place, {}, FILES)
        for one in (*LINES, *ROLLBACKS):
            append(store, one)
        compact(store, START, NOW.date())
        with local_folder(call(place, cache)) as copies:
            before = set(copies.names(START))
        pruned(place)
        assert left(place) == [-1, 1, 2, 3, 4, 5, 6]
        with local_folder(call(place, cache)) as copies:
            assert set(copies.names(START)) == set(store.names(START)) != before


def test_a_file_that_cannot_be_read_is_counted_and_hides_no_other(
    history: FolderStore, tmp_path: Path
) -> None:
    day = tmp_path / "history" / str(days_ago(90).date())
    (day / "000000-link.jsonl").symlink_to("/dev/zero")
    (day / "folder.jsonl").mkdir()
    # a day that is a link, and one that is a file
    (tmp_path / "history/2026-11-20").symlink_to(day)
    (tmp_path / "history/2026-11-21").write_bytes(line_bytes(LINES[0]))
    reading = Reading(history, days_ago(2000), NOW)
    assert len(list(reading.lines())) == len((*LINES, *ROLLBACKS))
    assert reading.left_out == {WhyLeftOut.NO_FILE: 4}


@pytest.mark.parametrize("day", ["2026-11-20", "2026-99-99"])
def test_a_line_in_another_days_folder_does_not_count_a_second_time(
    history: FolderStore, day: str
) -> None:
    history.write(f"{day}/x.jsonl", line_bytes(LINES[0]) + b"\n")
    reading = Reading(history, days_ago(2000), NOW)
    assert len(list(reading.lines())) == len((*LINES, *ROLLBACKS))
    assert reading.left_out == {WhyLeftOut.OTHER_DAY: 1}
