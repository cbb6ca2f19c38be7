"""The baseline's folder: one file for each entry, named after it, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from baseline_cases import folder_of
from each_row import each_row
from evidence_cases import COMMIT, PARTS, evidence_of

from gate.baseline.entry import Baseline, BaselineEntry, entry_name, may_be_entry
from gate.baseline.folder import (
    EntryFiles,
    files_in,
    read_entries,
    refuse_future,
    refuse_unfit,
    write_entries,
)
from gate.baseline.record import with_digest, with_entry
from gate.errors import DocumentError, StorageError
from gate.report.escape import prose
from gate.system.files.files import LocalFiles
from gate.text.documents import write_document
from gate.training.environment import Environment

FILES = LocalFiles()
NOW = datetime(2026, 7, 28, 12, 0, tzinfo=UTC)
NAMED = "because"
SHOWN = ".repro-gate/baseline"


def entry(reason: str = NAMED, at: datetime = NOW, **parts: str) -> BaselineEntry:
    run = evidence_of()
    return with_digest(
        BaselineEntry(
            commit=COMMIT,
            recorded_at=at.isoformat(),
            reason=reason,
            training={"train.seed": "1"},
            environment=Environment(parts={**PARTS, **parts}),
            metrics=run.metrics,
            steps=run.steps,
            checkpoint=run.checkpoint,
        )
    )


@each_row(
    ("parts", "words"),
    [
        ({}, "cpu-1-rank-torch-2.13.0"),
        ({"torch": "2.13.0+cu130", "world_size": "2"}, "cpu-2-ranks-torch-2.13.0"),
        (
            {"device": "2 x NVIDIA A100-SXM4-80GB (sm_80, 108 SMs, 79 GiB)", "world_size": "8"},
            "2-x-nvidia-a100-sxm4-80gb-sm-80-108-sms-8-ranks-torch-2.13.0",
        ),
        ({"device": "\u202e../../x", "torch": "\x1b/"}, "x-1-rank-torch-unknown"),
        ({"device": "ÄÖ", "world_size": "-1"}, "unknown-1-rank-torch-2.13.0"),
    ],
)
def test_a_file_is_named_after_the_environment(parts: dict[str, str], words: str) -> None:
    name = entry_name(entry(NAMED, NOW, **parts))
    assert name.rsplit("-", 2)[0] == words
    assert may_be_entry(name)
    # copied from a comment it is still the same name
    assert prose(name) == name


def test_the_name_is_of_environment_and_training_alone() -> None:
    one = entry_name(entry())
    assert entry_name(entry("other", NOW + timedelta(days=9))) == one
    assert entry_name(entry(packages="2" * 64)) != one
    assert entry_name(entry().model_copy(update={"training": {}})) != one


@each_row("name", ["../a.json", "a/b.json", ".json", "A.json", "a.json\n", "a.txt"])
def test_a_name_that_is_no_entrys_is_told(name: str) -> None:
    assert not may_be_entry(name)


def test_an_entry_is_one_fact_a_line_and_reads_back() -> None:
    files = folder_of(entry(), entry(device="gpu"))
    assert all(
        b'{"decimal": "2.5", "hex": "0x1.4000000000000p+1", "step": 1},\n' in data
        for data in files.values()
    )
    found = read_entries(files, SHOWN)
    assert found == with_entry(with_entry(None, entry(device="gpu")), entry())


def _refused(files: EntryFiles) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        read_entries(refuse_unfit(files, SHOWN), SHOWN)
    assert caught.value.hint
    return caught.value


def test_no_folder_and_no_file_are_no_baseline(tmp_path: Path) -> None:
    assert files_in(FILES, tmp_path / "none", SHOWN) is None
    assert read_entries(None, SHOWN) is None
    assert read_entries({}, SHOWN) is None


def test_a_renamed_file_is_told_its_name() -> None:
    ((name, data),) = folder_of(entry()).items()
    assert _refused({"mine.json": data}).message == (
        f"{SHOWN}/mine.json: its entry belongs in a file called {name}"
    )


def test_a_copied_file_is_told_of_the_other() -> None:
    ((name, data),) = folder_of(entry()).items()
    assert _refused({name: data, "mine.json": data}).message == (
        f"{SHOWN}/mine.json: holds an entry of the same environment and training as {name}"
    )


@pytest.mark.parametrize("edit", ["2.125", "because", "weight"])
def test_an_entry_that_was_edited_by_hand_is_refused(edit: str) -> None:
    ((name, data),) = folder_of(entry()).items()
    edited = data.replace(edit.encode(), edit.encode()[:-1] + b"9")
    assert edited != data
    assert _refused({name: edited}).message in {
        f"{SHOWN}/{name}: was edited by hand: it does not match its digest",
        f"{SHOWN}/{name}: 1 error",
    }


@each_row(
    ("data", "told"),
    [
        (b"{", "a.json: not valid JSON"),
        (b'{"commit": NaN}', "NaN"),
        (b'{"schema_version": "repro-gate.baseline/1", "entries": []}', "schema version"),
        (b"<<<<<<< ours\n{}\n", "a.json: not valid JSON"),
        (b"[" * 9999, "a.json: "),
    ],
)
def test_what_is_no_entry_is_one_clear_error(data: bytes, told: str) -> None:
    assert told in _refused({"a.json": data}).message


def test_an_unexpected_file_is_named() -> None:
    fault = _refused({**folder_of(entry()), "README.md": b"", "\x1b[2Jb": b""})
    assert fault.message == f"{SHOWN} holds b, which is not the name of an entry"
    assert fault.details == ("README.md",)


def test_a_file_of_an_editor_or_of_a_cut_write_is_passed_over(tmp_path: Path) -> None:
    write_entries(FILES, tmp_path, None, Baseline(entries=(entry(),)))
    (tmp_path / f".{entry_name(entry())}.x7").write_bytes(b"half")
    assert read_entries(files_in(FILES, tmp_path, SHOWN), SHOWN) == Baseline(entries=(entry(),))


def test_ten_thousand_entries_are_refused_before_one_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "baseline"
    folder.mkdir()
    for number in range(10_000):
        (folder / f"{number}.json").touch()
    with pytest.raises(DocumentError) as caught:
        files_in(FILES, folder, SHOWN)
    assert caught.value.message == f"{SHOWN} holds 10,000 files, the limit is 500 entries"
    assert "Remove entries of environments that are gone" in caught.value.hint


def test_too_many_bytes_are_refused(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.json").write_bytes(b" " * 7 * 1024**2)
    with pytest.raises(DocumentError, match="holds more than 16 MiB"):
        files_in(FILES, tmp_path, SHOWN)
    with pytest.raises(DocumentError, match="holds more than 16 MiB"):
        refuse_unfit({f"{n}.json": b" " * 7 * 1024**2 for n in range(3)}, SHOWN)


def test_links_are_refused_and_not_followed(tmp_path: Path) -> None:
    write_entries(FILES, tmp_path / "real", None, Baseline(entries=(entry(),)))
    (tmp_path / "folder").symlink_to("real")
    with pytest.raises(DocumentError, match=f"{SHOWN} is not a folder"):
        files_in(FILES, tmp_path / "folder", SHOWN)
    (tmp_path / "real/a.json").symlink_to(entry_name(entry()))
    with pytest.raises(StorageError, match=r"a\.json is a link, not a regular file"):
        files_in(FILES, tmp_path / "real", SHOWN)


def test_an_entry_from_the_future_is_refused() -> None:
    soon = Baseline(entries=(entry(at=NOW + timedelta(hours=23)),))
    assert refuse_future(soon, NOW, SHOWN) == soon
    late = Baseline(entries=(entry(at=NOW + timedelta(hours=25)),))
    with pytest.raises(
        DocumentError, match=r"recorded at 2026-07-29T13:00:00.*in the future"
    ) as it:
        refuse_future(late, NOW, SHOWN)
    assert "it says 2026-07-28T12:00:00+00:00" in it.value.hint


def test_only_what_is_another_is_written(tmp_path: Path) -> None:
    cpu, gpu = entry(), entry(device="gpu")
    before = Baseline(entries=(cpu, gpu))
    write_entries(FILES, tmp_path, None, before)
    times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = entry("better data")
    after = with_entry(before, again)
    assert write_entries(FILES, tmp_path, before, after) == (entry_name(cpu),)
    assert times.keys() == {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / entry_name(gpu)).stat().st_mtime_ns == times[entry_name(gpu)]
    assert (tmp_path / entry_name(cpu)).read_bytes() == write_document(with_digest(again))


def test_entries_of_another_training_go_with_their_files(tmp_path: Path) -> None:
    before = Baseline(entries=(entry(), entry(device="gpu")))
    write_entries(FILES, tmp_path, None, before)
    other = entry().model_copy(update={"training": {"train.seed": "2"}})
    # somebody else's, who recorded while this training ran
    theirs = folder_of(entry(cpu="two"))
    for name, data in theirs.items():
        (tmp_path / name).write_bytes(data)
    write_entries(FILES, tmp_path, before, with_entry(before, other))
    assert {path.name for path in tmp_path.iterdir()} == {entry_name(other), *theirs}


def test_a_crash_between_leaves_a_folder_that_can_be_read(tmp_path: Path) -> None:
    before = Baseline(entries=(entry(),))
    write_entries(FILES, tmp_path, None, before)

    class FullDisk(LocalFiles):
        def remove_tree(self, path: Path) -> None:
            raise StorageError(f"the power failed at {path}")

    other = entry().model_copy(update={"training": {"train.seed": "2"}})
    after = with_entry(before, other)
    with pytest.raises(StorageError, match="the power failed"):
        write_entries(FullDisk(), tmp_path, before, after)
    found = read_entries(files_in(FILES, tmp_path, SHOWN), SHOWN)
    assert found is not None
    assert sorted(map(entry_name, found.entries)) == sorted(
        map(entry_name, (*before.entries, *after.entries))
    )
