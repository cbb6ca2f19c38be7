"""Two calls with one output folder: the second one is told, and destroys nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from command_line import Run
from played_training import Project

from gate.pipelines.snapshots import claim_out
from gate.system.files.files import LocalFiles

HOLD = (
    "import sys; from pathlib import Path\n"
    "from gate.system.files.folder_lock import held_folder\n"
    "with held_folder(Path('repro-gate-out')): print('held', flush=True); sys.stdin.read()"
)
WORKS_THERE = [
    ("gate",),
    ("run",),
    ("judge", "evidence"),
    ("cost",),
    ("noise",),
    ("operators",),
    ("baseline", "record", "--reason", "first"),
]


@pytest.fixture
def first_call(project: Project) -> Iterator[int]:
    """Another call that works in the output folder and has written there; its process."""
    out = project.path / "repro-gate-out"
    claim_out(out, LocalFiles())
    (out / "work").mkdir()
    (out / "verdict.json").write_text("of the first call")
    with subprocess.Popen(
        (sys.executable, "-c", HOLD),
        cwd=project.path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        yield first.pid
    assert (out / "verdict.json").read_text() == "of the first call"
    assert (out / "work").is_dir()


@pytest.mark.parametrize("words", WORKS_THERE, ids=" ".join)
def test_a_second_call_ends_with_2_and_touches_nothing(
    first_call: int, project: Project, run: Run, words: tuple[str, ...]
) -> None:
    (project.path / "evidence").mkdir()
    (project.path / "evidence" / "manifest.json").write_text("never read")
    ended = run(*words)
    assert ended.code == 2
    assert f"another repro-gate call (process {first_call}) is using repro-gate-out" in ended.err
    assert "Wait for it, or choose another folder with --out." in ended.err


def test_the_doctor_tells_it_in_a_row_and_touches_nothing(first_call: int, run: Run) -> None:
    ended = run("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(ended.out)["examined"]}
    told = f"another repro-gate call (process {first_call}) is using repro-gate-out"
    assert ended.code == 3
    assert (rows["disk"]["health"], rows["disk"]["found"]) == ("fail", told)
    assert rows["disk"]["fix"] == "Wait for it, or choose another folder with --out."
    assert list(rows)[-1] == "baseline"


def test_a_file_of_that_name_is_told(project: Project, run: Run) -> None:
    (project.path / "repro-gate-out").write_text("mine")
    ended = run("gate")
    assert (ended.code, ended.out) == (2, "")
    assert "repro-gate-out is a file, not a folder" in ended.err
