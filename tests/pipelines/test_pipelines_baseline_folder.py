"""The baseline's folder as a pull request, or a person, may leave it; nothing is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from baseline_cases import FOLDER, folder_of
from evidence_cases import COMMIT, evidence_of
from gate_bench import Bench
from played_training import Project

from gate.baseline.entry import BaselineEntry, Baselines
from gate.errors import CommitError, DocumentError, GateError, StorageError
from gate.pipelines.policy_files import read_baselines
from gate.training.environment import Environment


def entry(device: str = "cpu", *, ahead: timedelta = timedelta()) -> BaselineEntry:
    run = evidence_of()
    return BaselineEntry(
        commit=COMMIT,
        recorded_at=(datetime.now(UTC) + ahead).isoformat(),
        training={},
        environment=Environment(parts={"device": device}),
        metrics=run.metrics,
        steps=run.steps,
        checkpoint=run.checkpoint,
    )


def put(project: Project, *entries: BaselineEntry) -> str:
    for name, data in folder_of(*entries).items():
        project.write(f"{FOLDER}/{name}", data)
    return project.commit()


def of_pull_request(bench: Bench, base: str, head: str) -> Baselines:
    request = replace(bench.request(), base_commit=base, commit=head, pull_request=True)
    return read_baselines(request, bench.adapters())


def test_the_base_decides_and_the_head_is_told(bench: Bench, project: Project) -> None:
    base = put(project, entry())
    head = put(project, entry("gpu"))
    found = of_pull_request(bench, base, head)
    assert found.base is not None
    assert found.head is not None
    assert (len(found.base.entries), len(found.head.entries)) == (1, 2)
    assert of_pull_request(bench, base, base).head is None


def test_the_order_of_writing_does_not_make_another_baseline(
    bench: Bench, project: Project
) -> None:
    base = put(project, entry(), entry("gpu"))
    project.write("other.txt", "x")
    assert of_pull_request(bench, base, project.commit()).head is None


Deed = Callable[[Path], object]


def renamed(folder: Path) -> None:
    next(folder.iterdir()).rename(folder / "mine.json")


def linked(folder: Path) -> None:
    (folder / "mine.json").symlink_to("/etc/passwd")


def one_file(folder: Path) -> None:
    data = next(folder.iterdir()).read_bytes()
    next(folder.iterdir()).unlink()
    folder.rmdir()
    folder.write_bytes(data)


def from_the_future(folder: Path) -> None:
    for name, data in folder_of(entry(ahead=timedelta(days=2))).items():
        (folder / name).write_bytes(data)


def ten_thousand(folder: Path) -> None:
    for number in range(10_000):
        (folder / f"{number}.json").touch()


def noted(folder: Path) -> None:
    (folder / "README.md").touch()


DEEDS: list[tuple[Deed, str]] = [
    (renamed, "mine.json: its entry belongs in a file called cpu-1-rank-torch-none-"),
    (linked, "mine.json is a link"),
    (one_file, "not a folder"),
    (from_the_future, "which is in the future"),
    (ten_thousand, "the limit is 500 entries"),
    (noted, "holds README.md, which is not the name of an entry"),
]


def clear(fault: GateError, told: str) -> bool:
    return told in fault.message and bool(fault.hint)


@pytest.mark.parametrize(("deed", "told"), DEEDS)
def test_a_folder_that_cannot_be_right_is_one_clear_error_in_the_work_tree(
    bench: Bench, project: Project, deed: Deed, told: str
) -> None:
    put(project, entry())
    deed(project.path / FOLDER)
    with pytest.raises((DocumentError, StorageError)) as caught:
        read_baselines(bench.request(), bench.adapters())
    assert clear(caught.value, told)


@pytest.mark.parametrize(("deed", "told"), DEEDS)
def test_a_folder_that_cannot_be_right_is_one_clear_error_in_a_pull_request(
    bench: Bench, project: Project, deed: Deed, told: str
) -> None:
    base = put(project, entry())
    deed(project.path / FOLDER)
    # git says how many it would not list
    told = told.replace("the limit is 500 entries", "holds more than 500 files")
    head = project.commit()
    with pytest.raises((DocumentError, CommitError)) as caught:
        of_pull_request(bench, base, head)
    assert clear(caught.value, told)


def test_a_folder_that_is_a_link_is_not_followed(bench: Bench, project: Project) -> None:
    base = put(project, entry())
    project.git("mv", FOLDER, "elsewhere")
    (project.path / FOLDER).symlink_to("../elsewhere")
    head = project.commit()
    with pytest.raises(CommitError, match=r"\.repro-gate/baseline is a link, not a folder"):
        of_pull_request(bench, base, head)
    with pytest.raises(StorageError, match=r"leads through .*baseline, a link"):
        read_baselines(bench.request(), bench.adapters())
