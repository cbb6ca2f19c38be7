"""Preprocessing through whole gates: twice, compared, handed to the trainings."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from data_training import PREPARE, READS, UNSEEDED
from gate_bench import Bench
from played_training import Project

from gate.errors import DataError, RunError
from gate.verdict.verdict import Outcome


def test_preprocessing_runs_twice_and_feeds_the_trainings(
    bench: Bench, project: Project, mini: Path
) -> None:
    project.write("train.py", READS)
    project.write("prepare.py", PREPARE)
    prepared = (
        f"data:\n  - {{path: {mini}, as: raw}}\n"
        "preprocess: {command: python3 prepare.py, out: data/ready}\n"
    )
    project.settings(prepared)
    bench.record()
    found = bench.gate()
    assert found.verdict.outcome is Outcome.REPRODUCED
    assert [one.name for one in found.verdict.data] == ["data/ready", "raw"]
    project.write("prepare.py", PREPARE.replace("read_text())", "read_text().replace('.', '.1'))"))
    project.commit()
    verdict = bench.gate().verdict
    codes = {each.code: each.message for each in verdict.findings}
    assert codes["data-moved"] == "data/ready, 1 of 1 file (first: losses.txt)"
    # the data that it was recorded with is nowhere to be restored from
    undo = (
        "If unintended: undo the change to code, packages or input that made the preprocessing "
        "write other data."
    )
    assert undo in [step.text for step in verdict.next_steps]
    (mini / "losses.txt").write_text("2.5 2.25 2.0")
    restore = "If unintended: restore the data that the baseline was recorded with."
    assert restore in [step.text for step in bench.gate().verdict.next_steps]


def test_preprocessing_that_does_not_repeat_has_words_of_its_own(
    bench: Bench, project: Project, mini: Path
) -> None:
    project.write("train.py", READS)
    project.write("prepare.py", PREPARE + UNSEEDED)
    project.settings(
        f"data:\n  - {{path: {mini}, as: raw}}\n"
        "preprocess: {command: python3 prepare.py, out: data/ready}\n"
    )
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.NONDETERMINISTIC, False)
    assert verdict.cause == (
        "the preprocessing is not repeatable: two runs of python3 prepare.py wrote different data "
        "(data/ready, 1 of 2 files (first: id.csv), line 3)"
    )
    (step,) = verdict.next_steps
    assert step.text.startswith("Seed its random draws, sort what it lists")
    assert bench.gate().proposed is None


def test_preprocessing_may_not_write_over_other_data(bench: Bench, project: Project) -> None:
    """Git LFS, whose object the clone has: no program is asked."""
    content = b"0.5"
    digest = hashlib.sha256(content).hexdigest()
    kept = project.path / ".git/lfs/objects" / digest[:2] / digest[2:4] / digest
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    project.write(
        "data/x.bin",
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 3\n",
    )
    project.write("prepare.py", "import pathlib; pathlib.Path('data/made').write_text('1')")
    declared = "data:\n  - {lfs: data/*.bin}\npreprocess: {command: python3 prepare.py, out: OUT}\n"
    cache = f"fetch: {{cache: {bench.out.parent}/cache}}\n"
    project.settings(declared.replace("OUT", "data/made") + cache)
    verdict = bench.gate().verdict
    assert [one.name for one in verdict.data] == ["data/*.bin", "data/made"]
    project.settings(declared.replace("OUT", "data") + cache)
    with pytest.raises(DataError, match="both have the place data"):
        bench.gate()


@pytest.mark.parametrize(
    ("script", "settings", "message"),
    [
        ("pass", "", "run preprocess-1: the command wrote nothing at data/ready"),
        ("raise SystemExit(3)", "", "run preprocess-1: python3 prepare.py exited with 3"),
        (PREPARE, ", max_bytes: 3", "run preprocess-1: what it wrote cannot be taken over"),
        (
            PREPARE + "(out / 'link').symlink_to('/etc/passwd')",
            "",
            "link is a link",
        ),
    ],
)
def test_preprocessing_that_fails_is_an_error(
    bench: Bench, project: Project, mini: Path, script: str, settings: str, message: str
) -> None:
    project.write("prepare.py", script)
    project.settings(
        f"data:\n  - {{path: {mini}, as: raw}}\n"
        f"preprocess: {{command: python3 prepare.py, out: data/ready{settings}}}\n"
    )
    with pytest.raises((RunError, DataError), match=message) as caught:
        bench.gate()
    assert caught.value.hint


def test_preprocessing_without_end_is_stopped(bench: Bench, project: Project) -> None:
    project.write("prepare.py", "import time; time.sleep(60)")
    made = "{command: python3 prepare.py, out: data/ready, timeout_seconds: 0.5}"
    project.settings(f"preprocess: {made}\n")
    with pytest.raises(RunError, match="run preprocess-1: timed out after") as caught:
        bench.gate()
    assert "preprocess.timeout_seconds" in caught.value.hint
